"""Commits that came with imported runs: a bare repository in the ledger, and bundles to and from it.

The user's own repository is never written by an import. Whoever needs a recorded commit asks `holder`,
which looks there first and then in `ledger/code.git`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labassist.errors import CodeError
from labassist.ledger.gitcmd import Private, Repository, open_repository, private, run_git

NAME = "code.git"
RUNS = "refs/labassist/"
MODULES = "refs/labassist-modules/"

_ENV = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1"}


@dataclass
class Packed:
    """What a bundle of code holds."""

    file: Path | None
    """None: no commit was needed, or none is here."""
    inner: dict[str, str] = field(default_factory=dict)
    """Run -> the workspace's place in its repository, where it is not its top."""
    shallow: list[str] = field(default_factory=list)
    """Commits whose parents are not here, as in a shallow clone."""
    notes: list[str] = field(default_factory=list)


def kept(ledger: Path, top: Path) -> Repository | None:
    """Return the ledger's own repository, as if it were checked out at `top`; None where there is none."""
    store = ledger / NAME
    if not (store / "HEAD").is_file():
        return None
    return Repository(top, store, store, store / "objects", store / "index", "", "")


def holder(workspace: Path, ledger: Path, commit: str) -> Repository:
    """Return the repository that has a commit: the one around the workspace, else the ledger's own.

    Where none has it the first is returned, if there is one. Raises CodeError.
    """
    try:
        repo: Repository | None = open_repository(workspace)
    except CodeError as error:
        repo, trouble = None, error
    if repo is not None and repo.has_commit(commit):
        return repo
    own = kept(ledger, repo.top if repo else workspace)
    if own is not None and own.has_commit(commit):
        return own
    if repo is None:
        raise trouble
    return repo


def inner(workspace: Path, ledger: Path, run: str, commit: str) -> Path:
    """Return where in the recorded repository the workspace of a run lay. Raises CodeError."""
    return _inner(workspace, ledger, run, holder(workspace, ledger, commit))


def _inner(workspace: Path, ledger: Path, run: str, repo: Repository) -> Path:
    if repo.git_dir != ledger / NAME:
        return workspace.relative_to(repo.top)
    status, out, _ = _git(ledger, "config", "--get", f"labassist.{run}.workspace")
    return Path(os.fsdecode(out).strip()) if status == 0 else Path()


def pack(
    workspace: Path,
    ledger: Path,
    runs: Iterable[dict[str, Any]],
    into: Path,
    scratch: Path,
    *,
    branches: bool = False,
) -> Packed:
    """Write a git bundle with the commits of these runs, and all that they need, to `into`.

    With `branches` every branch of the workspace's repository is in it under its own name, so that it can be
    cloned. A commit that is not here is noted. Raises CodeError where git fails.
    """
    packed = Packed(None)
    refs: dict[str, str] = {}
    sources: dict[Path, Repository] = {}
    found: dict[tuple[str, str], Repository | None] = {}
    for document in runs:
        code = document["code"]
        if code["vcs"] != "git":
            continue
        run = document["id"]
        wanted = [("", code["commit"])] + [
            (e.rpartition(" ")[0], e.rpartition(" ")[2]) for e in code.get("submodules", [])
        ]
        for path, commit in wanted:
            if (path, commit) not in found:
                found[path, commit] = _module(workspace, ledger, path, commit)
            repo = found[path, commit]
            if repo is None:
                what = f"commit {commit[:12]} of the submodule {path}" if path else f"commit {commit[:12]}"
                packed.notes.append(f"run {run}: its {what} is not here, so it cannot be replayed there")
                continue
            sources[repo.objects] = repo
            refs[f"{MODULES}{commit}" if path else RUNS + run] = commit
            place = "" if path else _inner(workspace, ledger, run, repo).as_posix()
            if place not in ("", "."):
                packed.inner[run] = place
    if branches:
        refs |= _branches(workspace, sources)
    if not refs:
        return packed
    repos = list(sources.values())
    first = next(iter(refs.values()))
    with private(repos[0], first, into.parent, scratch) as git:
        packed.shallow = borrow(git, repos)
        lines = "".join(f"create {ref} {commit}\n" for ref, commit in refs.items())
        git.run("update-ref", "--stdin", stdin=lines.encode())
        names = "".join(f"{ref}\n" for ref in refs)
        git.run("bundle", "create", "--quiet", str(into.resolve()), "--stdin", stdin=names.encode())
    packed.file = into
    return packed


def check(ledger: Path) -> str:
    """Return what git finds wrong with the ledger's own repository, nothing where it is whole or absent."""
    if not (ledger / NAME / "HEAD").is_file():
        return ""
    status, out, err = _git(ledger, "fsck", "--no-dangling", "--no-progress")
    return " ".join((err or os.fsdecode(out)).split()) if status else ""


def unpack(
    file: Path, ledger: Path, runs: Sequence[str], places: dict[str, str], shallow: Sequence[str]
) -> None:
    """Put a bundle's commits into the ledger's own repository, pinned for these runs. Raises CodeError."""
    store = _made(ledger, _format_of(file))
    if shallow:
        known = set((store / "shallow").read_text().split()) if (store / "shallow").exists() else set()
        (store / "shallow").write_text("".join(f"{one}\n" for one in sorted(known | set(shallow))))
    out = _must(ledger, "-c", "core.fsync=all", "bundle", "unbundle", str(file.resolve()))
    wanted = set(runs)
    lines = []
    for pair in os.fsdecode(out).splitlines():
        commit, _, ref = pair.partition(" ")
        if ref.startswith(MODULES) or ref.removeprefix(RUNS) in wanted:
            lines.append(f"update {ref} {commit}\n")
    _must(ledger, "update-ref", "--stdin", stdin="".join(lines).encode())
    set_places(ledger, {run: place for run, place in places.items() if run in wanted})


def set_places(ledger: Path, places: dict[str, str]) -> None:
    """Remember where in its repository the workspace of each run lay. Raises CodeError."""
    for run, place in places.items():
        _must(ledger, "config", f"labassist.{run}.workspace", place)


def fetch(ledger: Path, url: str, ssh: Sequence[str]) -> None:
    """Fetch every pinned commit of another repository into the ledger's own. Raises CodeError."""
    _made(ledger, None)
    specs = [f"+{space}*:{space}*" for space in (RUNS, MODULES)]
    words = ("-c", "core.fsync=all", "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", url, *specs)
    try:
        _must(ledger, *words, env={"GIT_SSH_COMMAND": shlex.join(ssh)})
    except CodeError as error:
        if "mismatched algorithms" in error.what:
            raise _other_format(ledger, "of another kind (SHA-1 or SHA-256)") from error
        raise


def _made(ledger: Path, wanted: str | None) -> Path:
    """Return the ledger's own repository, made where it is missing, of the workspace's object format.

    Git cannot read objects of two formats at once, and an export reads both repositories. Raises CodeError
    where `wanted` is another one.
    """
    store = ledger / NAME
    there = (store / "HEAD").is_file()
    have = wanted or "sha1"
    with contextlib.suppress(CodeError):  # no repository, or one that git refuses
        around = kept(ledger, ledger) if there else open_repository(ledger.parent)
        if around is not None:
            have = around.run("rev-parse", "--show-object-format").decode().strip()
    if wanted and wanted != have:
        raise _other_format(ledger, wanted.upper().replace("SHA", "SHA-"))
    if not there:
        ledger.mkdir(parents=True, exist_ok=True)
        _must(ledger, "init", "--quiet", "--bare", "--template=", f"--object-format={have}", str(store))
    return store


def _format_of(bundle: Path) -> str:
    """Return the object format of a git bundle; only one that is not SHA-1 says it."""
    with bundle.open("rb") as file:
        head = itertools.takewhile(lambda line: line.startswith((b"#", b"@")), file)
        found = [line.strip().partition(b"=")[2] for line in head if line.startswith(b"@object-format=")]
    return found[0].decode() if found else "sha1"


def _other_format(ledger: Path, kind: str) -> CodeError:
    return CodeError(
        f"the commits of these runs are {kind}, and git cannot hold them beside those of this workspace",
        where=str(ledger.parent),
        mend="import them into a workspace in a repository of their kind: "
        "git init --object-format=sha256 DIR && labassist new DIR",
    )


def _branches(workspace: Path, sources: dict[Path, Repository]) -> dict[str, str]:
    """Return every branch and tag of the workspace's repository with its commit; none without a repository."""
    try:
        repo = open_repository(workspace)
    except CodeError:
        return {}
    sources[repo.objects] = repo
    out = repo.run("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads/", "refs/tags/")
    return {name: commit for commit, name in (line.split(" ", 1) for line in os.fsdecode(out).splitlines())}


def borrow(git: Private, repos: Sequence[Repository]) -> list[str]:
    """Let a private directory read the objects of several repositories; return what is shallow in them."""
    lines = b"".join(os.fsencode(repo.objects) + b"\n" for repo in repos)
    (git.folder / "objects" / "info" / "alternates").write_bytes(lines)
    shallow: set[str] = set()
    for repo in repos:
        path = repo.common_dir / "shallow"
        if path.is_file():
            shallow |= set(path.read_text().split())
    if shallow:
        (git.folder / "shallow").write_text("".join(f"{one}\n" for one in sorted(shallow)))
    return sorted(shallow)


def _module(workspace: Path, ledger: Path, path: str, commit: str) -> Repository | None:
    """Return the repository that has a commit: of a submodule that lies at `path`, or of the workspace."""
    repo: Repository | None
    try:
        if path:
            repo = open_repository(open_repository(workspace).top / path, submodule=True)
        else:
            repo = holder(workspace, ledger, commit)
    except CodeError:
        repo = None
    if repo is not None and repo.has_commit(commit):
        return repo
    own = kept(ledger, workspace)
    return own if own is not None and own.has_commit(commit) else None


def _git(
    ledger: Path, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> tuple[int, bytes, str]:
    env = {
        **(env or {}),
        **_ENV,
        "GIT_DIR": str(ledger / NAME),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    return run_git(ledger, *args, stdin=stdin, env=env)


def _must(ledger: Path, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
    status, out, err = _git(ledger, *args, stdin=stdin, env=env)
    if status:
        what = args[2] if args[0] == "-c" else args[0]
        raise CodeError(f"git {what} failed: {err.strip()}", where=str(ledger / NAME))
    return out
