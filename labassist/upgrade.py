"""`labassist upgrade`: merge the job files of a newer labassist into a workspace, three-way.

Base is what the last upgrade brought, kept as a commit that `refs/labassist-base` points at, or else the
workspace's first commit; ours is the working tree, theirs the installed package. A file with changes that
are in no commit is never touched, so every earlier content can be had back from git.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from labassist import __version__, content
from labassist.errors import CodeError, InputError, counted
from labassist.ledger.gitcmd import Repository, open_repository, run_git
from labassist.workspace import FALLBACK_IDENTITY, Workspace, shipped

BASE = "refs/labassist-base"
_MINE = "yours"
_MARK = f"<<<<<<< {_MINE}\n"
_BINARY = 255
"""How `git merge-file` says that it cannot merge, as for a file that is no text."""


class Change(NamedTuple):
    """What becomes of one file."""

    path: str
    content: bytes
    what: str
    """added, updated, merged, conflict."""


@dataclass
class Upgraded:
    """What an upgrade did."""

    changes: list[Change] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """File -> why it was left as it is, although the package's has changed."""
    waiting: list[str] = field(default_factory=list)
    """Files in which the conflicts of an earlier upgrade are still marked."""
    commit: str = ""
    """The commit with the merged files; empty where nothing changed or conflicts wait."""

    def of(self, what: str) -> list[str]:
        """Return the files of one kind of change."""
        return [change.path for change in self.changes if change.what == what]

    @property
    def conflicts(self) -> list[str]:
        """The files that a person has to edit, of this upgrade and of an earlier one."""
        return [*self.of("conflict"), *self.waiting]

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `upgrade --json`."""
        named = {what: self.of(what) for what in ("added", "updated", "merged")}
        return {
            "version": __version__,
            **named,
            "conflicts": self.conflicts,
            "kept": self.kept,
            "commit": self.commit,
        }

    def text(self) -> str:
        """Return the answer in lines for a person."""
        lines = [f"{change.what} {change.path}" for change in self.changes]
        lines += [f"kept {path}: {why}" for path, why in self.kept.items()]
        lines += [f"conflict {path}, of an earlier upgrade" for path in self.waiting]
        if self.conflicts:
            lines.append(
                f"conflicts are marked {_MARK.strip()} … >>>>>>> labassist {__version__} in "
                f"{counted(len(self.conflicts), 'files')}: edit, then git commit; git checkout FILE gives yours back"
            )
        if self.commit:
            lines.append(f"committed as {self.commit[:12]}; git revert {self.commit[:12]} takes it back")
        elif not self.conflicts:
            lines.append(f"nothing to do: the job files are those of labassist {__version__}")
        return "\n".join(lines)


def upgrade(workspace: Workspace) -> Upgraded:
    """Merge newer job files and commit them, or leave conflicts marked and uncommitted.

    Raises InputError for labassist's own checkout or a file with uncommitted changes, and then nothing was
    changed; CodeError where git fails.
    """
    source = content.root()
    if source.resolve() == workspace.root.resolve():
        raise InputError(
            "this is labassist's own checkout", where=str(source), mend="git pull brings newer files"
        )
    repo = open_repository(workspace.root)
    if not repo.head:
        raise InputError(
            "there is no commit yet", where=str(repo.top), mend="git add -A && git commit -m start"
        )
    theirs = {inside.as_posix(): path.read_bytes() for inside, path in shipped(source)}
    base = _base(repo, workspace)
    done = Upgraded()
    for path, new in theirs.items():
        _decide(workspace.root, path, base.get(path), new, done)
    for path in base.keys() - theirs.keys():
        if (workspace.root / path).exists():
            done.kept[path] = "labassist has it no more"
    if done.changes:
        _refuse_uncommitted(repo, workspace, [change.path for change in done.changes])
        for change in done.changes:
            _write(workspace.root / change.path, change.content)
    if base != theirs:
        _keep_base(repo, theirs)
    if done.changes and not done.of("conflict"):
        done.commit = _commit(repo, workspace, [change.path for change in done.changes])
    return done


def _decide(root: Path, path: str, base: bytes | None, new: bytes, done: Upgraded) -> None:
    place = root / path
    if base == new:
        if _MARK.encode() in (place.read_bytes() if place.is_file() else b""):
            done.waiting.append(path)
        return
    if place.is_dir() or place.is_symlink():
        done.kept[path] = "it is no plain file here"
        return
    ours = place.read_bytes() if place.exists() else None
    if ours == new:
        return
    if ours is None and base is None:
        done.changes.append(Change(path, new, "added"))
    elif ours is None:
        done.kept[path] = "it was deleted here"
    elif ours == base:
        done.changes.append(Change(path, new, "updated"))
    else:
        merged, conflicts = _merge(base or b"", ours, new)
        if merged is None:
            done.kept[path] = "it was changed here and is no text that could be merged"
        else:
            done.changes.append(Change(path, merged, "conflict" if conflicts else "merged"))


def _merge(base: bytes, ours: bytes, theirs: bytes) -> tuple[bytes | None, int]:
    """Return the merged file and its number of conflicts; None where it cannot be merged."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, data in (("yours", ours), ("before", base), ("theirs", theirs)):
            (folder / part).write_bytes(data)
        labels = ("-L", _MINE, "-L", "before", "-L", f"labassist {__version__}")
        status, out, err = run_git(folder, "merge-file", "-p", *labels, "yours", "before", "theirs")
    if status >= _BINARY or status < 0:
        if "binary" not in err:
            raise CodeError(f"git merge-file failed: {err.strip()}")
        return None, 0
    return out, status


def _base(repo: Repository, workspace: Workspace) -> dict[str, bytes]:
    """Return the files that the workspace's own are to be compared with."""
    prefix = workspace.root.resolve().relative_to(repo.top.resolve()).as_posix()
    status, out, _ = run_git(
        repo.top, "rev-parse", "--verify", "--quiet", f"{BASE}^{{commit}}", env=_places(repo)
    )
    if status == 0:
        commit, inner = out.decode().strip(), ""
    else:
        inner = "" if prefix == "." else f"{prefix}/"
        adding = ("log", "--format=%H", "--diff-filter=A", "--", f"{inner}labs")
        commits = repo.run(*adding).decode().split()
        if not commits:
            return {}
        commit = commits[-1]
    listed = repo.run("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]
    found = {}
    for line in listed:
        facts, _, name = line.partition(b"\t")
        path = os.fsdecode(name)
        inside = path.removeprefix(inner)
        shipped_there = path.startswith(inner) and inside.startswith(("labs/", "templates/", "ledger/"))
        if facts.split(b" ")[1] == b"blob" and shipped_there:
            found[inside] = repo.run("cat-file", "blob", facts.split(b" ")[2].decode())
    return found


def _refuse_uncommitted(repo: Repository, workspace: Workspace, paths: list[str]) -> None:
    places = [str(workspace.root / path) for path in paths]
    out = repo.run("status", "--porcelain", "-z", "--untracked-files=all", "--", *places)
    if out:
        first = os.fsdecode(out.split(b"\0")[0][3:])
        raise InputError(
            "it has changes that are in no commit, and the newer version has changes too",
            where=first,
            mend="git commit it, then upgrade again: so nothing of yours can be lost",
        )


def _write(place: Path, data: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(place.name + ".labassist-part")
    partial.write_bytes(data)
    if place.exists():
        partial.chmod(place.stat().st_mode & 0o777)
    os.replace(partial, place)


def _keep_base(repo: Repository, theirs: dict[str, bytes]) -> None:
    """Keep what was brought as a commit of its own, for the next upgrade to compare with."""
    with tempfile.TemporaryDirectory() as name:
        env = {**_places(repo), "GIT_INDEX_FILE": str(Path(name) / "index")}
        lines = []
        for path, data in theirs.items():
            blob = _must(repo, env, "hash-object", "-w", "--stdin", stdin=data)
            lines.append(f"100644 {blob}\t{path}\0")
        _must(repo, env, "update-index", "-z", "--index-info", stdin="".join(lines).encode())
        tree = _must(repo, env, "write-tree")
        status, out, _ = run_git(repo.top, "rev-parse", "--verify", "--quiet", BASE, env=env)
        parent = ("-p", out.decode().strip()) if status == 0 else ()
        message = f"The job files of labassist {__version__}"
        commit = _must(repo, env, *FALLBACK_IDENTITY, "commit-tree", tree, *parent, "-m", message)
        _must(repo, env, "update-ref", BASE, commit)


def _commit(repo: Repository, workspace: Workspace, paths: list[str]) -> str:
    """Commit these files and nothing else; return the commit."""
    env = _places(repo)
    places = [str(workspace.root / path) for path in paths]
    known = all(
        run_git(repo.top, "var", name, env=env)[0] == 0
        for name in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT")
    )
    identity = () if known else FALLBACK_IDENTITY
    message = f"Upgrade the job files to labassist {__version__}"
    # Forced, because a person's own ignore rules may name a file that is part of a lab.
    _must(repo, env, "add", "--force", "--", *places)
    options = ("-c", "commit.gpgSign=false", "commit", "--quiet", "--no-verify", "-m", message, "--only")
    _must(repo, env, *identity, *options, "--", *places)
    return _must(repo, env, "rev-parse", "HEAD")


def _places(repo: Repository) -> dict[str, str]:
    return {"GIT_DIR": str(repo.git_dir), "GIT_WORK_TREE": str(repo.top)}


def _must(repo: Repository, env: dict[str, str], *args: str, stdin: bytes = b"") -> str:
    status, out, err = run_git(repo.top, *args, stdin=stdin, env=env)
    if status:
        raise CodeError(
            f"git failed: {err.strip() or out.decode(errors='replace').strip()}", where=str(repo.top)
        )
    return out.decode().strip()
