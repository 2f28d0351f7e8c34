"""Record the code of a run: exactly the files that ran, without touching the user's repository.

What ran is the working tree. It is taken raw, byte for byte, whatever is staged:

- `patch` brings the tree of the recorded commit to the tracked files as they are on disk;
- `extra` lists what the patch does not hold: untracked files that git does not ignore, and tracked files
  that are larger than the limit or that a filter (git-lfs) keeps outside the repository;
- `changed` lists every file of the patch, and those under a filter, with the hash of its content as it ran:
  what a restore is checked against. An entry with mode 0 is a file that was deleted.

An extra file whose path is also in `changed` lies over what the patch holds for it (the pointer that a
filter left); any other one takes the place of what the commit has there. `digest` is that of the resulting
tree, so it is the same for the same code, committed or not, staged or not, on whatever branch.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from labassist.errors import CodeError
from labassist.ledger import patches, secrets
from labassist.ledger.gitcmd import GITLINK, Private, Repository, open_repository, private, split
from labassist.ledger.kept import GONE, LINK, code_digest, digest_without_git, put_listing, take_away
from labassist.ledger.objects import Objects
from labassist.ledger.records import Code, Kept
from labassist.ledger.staging import stage
from labassist.record.protocol import file_sha256

FILE_LIMIT = 16 << 20
"""Largest file that is kept whole, in bytes; of a larger one the hash is recorded."""
TOTAL_LIMIT = 256 << 20
"""Most bytes of untracked files kept with one run; what comes after, by path, is recorded by hash."""
HASH_LIMIT = 1 << 30
"""Files larger than this are recorded by name and size only: hashing them would delay every start."""
SCRIPTS = ".labassist/script/"
"""Where a script from outside the repository stands in a restored tree."""

_STATE = "trainer_state.json"
_CHECKPOINT = re.compile(rf"(^|/)checkpoint-\d+/{_STATE}$")
"""What marks a checkpoint folder of a Hugging Face Trainer: what a run makes, and no part of its code."""


class _Entry(NamedTuple):
    """A path that differs from HEAD: octal modes and object ids, before and on disk; "000000" is none."""

    old_mode: str
    new_mode: str
    old_id: str
    new_id: str


def capture(
    workspace: Path,
    objects: Objects,
    run_id: str,
    *,
    script: Path | None = None,
    outputs: Sequence[str] = (),
    untracked_limit: int = FILE_LIMIT,
    scratch: Path | None = None,
) -> Code:
    """Record the whole repository that encloses `workspace`, and pin its commit for `run_id`.

    `script` is kept too where git would leave it out (ignored, or outside the repository: see
    `script_place`). Untracked files at or below one of `outputs`, relative to `workspace`, are what the run
    makes and no part of its code. Temporary files go to `scratch`, or to the system's place for them. Raises CodeError
    with the mend: no git, no repository, no commit, a dirty submodule, a secret in the change.
    """
    repo = open_repository(workspace)
    if not repo.head:
        raise CodeError(
            "this repository has no commit yet", where=str(repo.top), mend="git add -A && git commit -m start"
        )
    submodules = repo.submodules()
    with private(repo, repo.head, repo.top, scratch) as git:
        code = _Capture(repo, git, objects, untracked_limit).take(workspace, script, outputs)
    for _, module in submodules:
        module.pin(run_id)
    repo.pin(run_id)
    code.submodules = [f"{path} {module.head}" for path, module in submodules]
    return code


def capture_without_git(script_paths: list[Path], objects: Objects, base: Path | None = None) -> Code:
    """Record the files of a command that runs outside a repository, named as seen from `base` (the cwd).

    Raises CodeError when one cannot be read or holds a secret.
    """
    root = (base or Path.cwd()).resolve()
    extra = []
    for path in sorted({script.resolve() for script in script_paths}):
        data = _read(path, str(path))
        _refuse_secret(script_place(path, root), data)
        mode = stat.S_IMODE(path.stat().st_mode)
        extra.append(Kept(script_place(path, root), len(data), objects.put(data), mode=mode))
    return Code(vcs="none", extra=put_listing(extra, objects), digest=digest_without_git(extra))


def script_place(script: Path, base: Path) -> str:
    """Return the path of a script in a restored tree: its own inside `base`, else a place of ours."""
    real, root = script.resolve(), base.resolve()
    if real.is_relative_to(root):
        return real.relative_to(root).as_posix()
    return SCRIPTS + real.name


class _Capture:
    """One capture: the steps share the repository, the private git directory and the limits."""

    def __init__(self, repo: Repository, git: Private, objects: Objects, limit: int) -> None:
        self.repo = repo
        self.git = git
        self.objects = objects
        self.limit = limit
        self.total = 0
        self.extra: list[Kept] = []
        self.changed: list[Kept] = []

    def take(self, workspace: Path, script: Path | None, outputs: Sequence[str]) -> Code:
        """Record everything and return the record, without its pin, package and submodules."""
        filtered = stage(self.repo, self.git)
        whole = self.git.write_tree()
        untracked = self._untracked(workspace.resolve(), script, outputs)
        changes = self._changes(whole)
        self._set_large_aside(changes)
        patch = self.git.run("diff-tree", "-p", *patches.OPTIONS, self.repo.head, self.git.write_tree())
        self._refuse_secrets(patch)
        for path, entry in sorted(changes.items()):
            if entry.new_mode != GITLINK:
                self._note(path, entry.new_mode, "" if path in filtered else entry.new_id)
        for path in sorted(filtered):
            self._keep_filtered(path, modified=path in changes)
        for path in untracked:
            self._keep_untracked(path)
        self.extra.sort(key=lambda kept: kept.path)
        take_away(self.git, self.extra, self.changed)
        return Code(
            vcs="git",
            commit=self.repo.head,
            branch=secrets.redact_text(self.repo.branch),
            patch=self.objects.put(patch) if patch else "",
            extra=put_listing(self.extra, self.objects),
            changed=put_listing(self.changed, self.objects),
            digest=code_digest(self.git, self.extra, self.changed, self.objects),
            dirty=bool(patch or self.extra),
        )

    def _untracked(self, workspace: Path, script: Path | None, outputs: Sequence[str]) -> list[str]:
        """Return the untracked paths to record: not ignored, not the ledger's own, and the script."""
        env = {"GIT_INDEX_FILE": str(self.git.index)}
        names = set(split(self.repo.run("ls-files", "--others", "--exclude-standard", "-z", env=env)))
        own: tuple[str, ...] = ()
        if workspace.is_relative_to(self.repo.top):
            inner = workspace.relative_to(self.repo.top)
            own = tuple(f"{(inner / name).as_posix()}/" for name in ("ledger", ".labassist", *outputs))
        own += tuple(name.removesuffix(_STATE) for name in names if _CHECKPOINT.search(name))
        names = {name for name in names if not f"{name}/".startswith(own)}
        place = "" if script is None else script_place(script, self.repo.top)
        if script is not None and place not in split(self.git.run("ls-files", "-z")):
            data = _read(script.resolve(), str(script))
            _refuse_secret(str(script), data)
            if place.startswith(SCRIPTS):
                mode = stat.S_IMODE(script.stat().st_mode)
                self.extra.append(Kept(place, len(data), self.objects.put(data), mode=mode))
            else:
                names.add(place)
        return sorted(names)

    def _changes(self, tree: str) -> dict[str, _Entry]:
        """Return what differs between HEAD and `tree`, by path."""
        fields = split(self.git.run("diff-tree", "-r", "--raw", "--no-renames", "-z", self.repo.head, tree))
        return {
            path: _Entry(*facts.removeprefix(":").split(" ")[:4])
            for facts, path in zip(fields[::2], fields[1::2], strict=True)
        }

    def _set_large_aside(self, changes: dict[str, _Entry]) -> None:
        """Take files over the limit out of the patch: they go to `extra`, or are noted as deleted."""
        wanted = {entry.new_id for entry in changes.values() if entry.new_mode not in ("000000", GITLINK)}
        wanted |= {entry.old_id for entry in changes.values() if entry.old_mode not in ("000000", GITLINK)}
        out = self.git.run("cat-file", "--batch-check", stdin="".join(f"{one}\n" for one in wanted).encode())
        facts = [line.split(" ") for line in out.decode().splitlines()]
        sizes = {fields[0]: int(fields[2]) for fields in facts if len(fields) == 3}
        for path, entry in list(changes.items()):
            if max(sizes.get(entry.new_id, 0), sizes.get(entry.old_id, 0)) <= self.limit:
                continue
            del changes[path]
            added = entry.old_mode == "000000"
            self.git.set_entries([("0", "", path) if added else (entry.old_mode, entry.old_id, path)])
            if entry.new_mode == "000000":
                self.changed.append(Kept(_text(path), 0, "", stored=False, mode=GONE))
            else:
                self._keep(path, tracked=True)

    def _note(self, path: str, new_mode: str, new_id: str) -> None:
        """Note a file of the patch with its hash. Raises CodeError when it changed under our hands."""
        if new_mode == "000000":
            self.changed.append(Kept(_text(path), 0, "", stored=False, mode=GONE))
            return
        data, mode = self._content(path)
        if new_id and self.git.blob_id(data) != new_id:
            raise CodeError("changed while it was being recorded", where=path, mend="start the run again")
        sha = hashlib.sha256(data).hexdigest()
        self.changed.append(Kept(_text(path), len(data), sha, stored=False, mode=mode))

    def _keep_filtered(self, path: str, *, modified: bool) -> None:
        """Note a file under a filter, and keep its content where only the user's disk has it."""
        if modified:
            self._keep(path, tracked=True)
            return
        facts = self._facts(path)
        sha = self._hash(path) if facts.st_size <= self.limit else ""
        mode = stat.S_IMODE(facts.st_mode)
        self.changed.append(Kept(_text(path), facts.st_size, sha, stored=False, mode=mode))

    def _keep_untracked(self, path: str) -> None:
        """Keep an untracked file; a secret, another repository or an unreadable file by its name only."""
        place = self.repo.top / path
        if (
            path.endswith("/")
            or secrets.denied(path)
            or not (place.is_symlink() or os.access(place, os.R_OK))
        ):
            self.extra.append(Kept(_text(path), 0, "", stored=False))
            return
        try:
            self._keep(path, tracked=False)
        except CodeError:
            if os.path.lexists(place):  # else it was somebody's temporary file
                raise

    def _keep(self, path: str, *, tracked: bool) -> None:
        """Add a file to `extra`: whole up to the limits, else by its hash."""
        facts = self._facts(path)
        size, mode = facts.st_size, stat.S_IMODE(facts.st_mode)
        if stat.S_ISREG(facts.st_mode) and (size > self.limit or self.total + size > TOTAL_LIMIT):
            sha = self._hash(path) if size <= HASH_LIMIT else ""
            self.extra.append(Kept(_text(path), size, sha, stored=False, mode=mode))
            return
        data, mode = self._content(path)
        if tracked:
            _refuse_secret(path, data)
        elif _findings(data):
            self.extra.append(Kept(_text(path), 0, "", stored=False))
            return
        self.total += len(data)
        self.extra.append(Kept(_text(path), len(data), self.objects.put(data), mode=mode))

    def _facts(self, path: str) -> os.stat_result:
        """Return what the file system says of a path. Raises CodeError when it is gone."""
        try:
            return (self.repo.top / path).lstat()
        except OSError as error:
            raise _unread(path, error) from error

    def _content(self, path: str) -> tuple[bytes, int]:
        """Return a file's bytes and mode; of a link its target, with the mode of links."""
        place = self.repo.top / path
        if place.is_symlink():
            return os.fsencode(os.readlink(place)), LINK
        return _read(place, path), stat.S_IMODE(place.stat().st_mode)

    def _hash(self, path: str) -> str:
        """Return the SHA-256 of a file, read a block at a time."""
        try:
            return file_sha256(self.repo.top / path)
        except OSError as error:
            raise _unread(path, error) from error

    def _refuse_secrets(self, patch: bytes) -> None:
        """Raise CodeError where an added line of the patch holds a secret."""
        for change in patches.read(patch):
            for finding in secrets.scan("\n".join(text for _, text in change.lines), os.environ):
                _refuse(change.path, change.lines[finding.line - 1][0], finding.kind)


def _read(place: Path, path: str) -> bytes:
    """Return a file's bytes. Raises CodeError."""
    try:
        return place.read_bytes()
    except OSError as error:
        raise _unread(path, error) from error


def _unread(path: str, error: OSError) -> CodeError:
    return CodeError(f"cannot be read: {error.strerror}", where=path, mend="make it readable, or remove it")


def _findings(data: bytes) -> list[secrets.Finding]:
    """Return the secrets in a file, none where it is binary."""
    return [] if b"\0" in data[:8192] else secrets.scan(data.decode(errors="replace"), os.environ)


def _refuse_secret(path: str, data: bytes) -> None:
    for finding in _findings(data)[:1]:
        _refuse(path, finding.line, finding.kind)


def _refuse(path: str, line: int, kind: str) -> None:
    raise CodeError(
        f"the uncommitted change holds a secret ({kind}), which the ledger never stores",
        where=f"{path}:{line}",
        mend="read it from an environment variable instead",
    )


def _text(path: str) -> str:
    """Return a path that JSON can hold. Raises CodeError on one that is not UTF-8 or holds a secret."""
    mend = "rename it, or have git ignore it"
    try:
        path.encode("utf-8")
    except UnicodeEncodeError as error:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise CodeError("the file name is not UTF-8", where=shown, mend=mend) from error
    for finding in secrets.scan(path):
        what = f"the file name holds a secret ({finding.kind}), which the ledger never stores"
        raise CodeError(what, where=secrets.redact_text(path), mend=mend)
    return PurePosixPath(path).as_posix() + ("/" if path.endswith("/") else "")
