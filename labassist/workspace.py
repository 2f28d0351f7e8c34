"""A workspace: a git repository with labs/ (what a learner edits) and ledger/ (what was run)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labassist import content
from labassist.errors import InputError

VARIABLE = "LABASSIST_WORKSPACE"
"""Environment variable that names the workspace where --workspace does not."""

COURSE = {"lab.toml", "checks.py", "steps", "solutions", "__pycache__"}
"""What of a lab stays in the package, so that an upgrade brings better texts and checks."""

GITIGNORE = """\
__pycache__/
.venv/
.env
.labassist/
# Recorded runs are results, not source: only the ledger's page and its schema are tracked.
/ledger/*
!/ledger/README.md
!/ledger/schema/
"""

IGNORED = """\
# labassist: recorded runs are results, not source.
/.labassist/
/ledger/*
!/ledger/README.md
!/ledger/schema/
"""
"""What a repository of somebody's own gets appended to its .gitignore."""

FALLBACK_IDENTITY = ("-c", "user.name=labassist", "-c", "user.email=labassist@localhost")
"""Who commits where git knows nobody."""


@dataclass(frozen=True)
class Workspace:
    """The places of a workspace. Nothing is created by looking."""

    root: Path

    @property
    def labs(self) -> Path:
        """Job files and scripts, one folder a lab."""
        return self.root / "labs"

    @property
    def ledger(self) -> Path:
        """Journal, view, objects and runs."""
        return self.root / "ledger"

    @property
    def scratch(self) -> Path:
        """Folder for restored code; safe to delete, ignored by git."""
        return self.root / ".labassist" / "scratch"

    @property
    def cache(self) -> Path:
        """Folder for downloads and converted models; safe to delete, ignored by git."""
        return self.root / ".labassist" / "cache"

    @property
    def packages(self) -> Path:
        """Folder with copies of labassist as recorded, one a version, which trainers import."""
        return self.root / ".labassist" / "packages"

    @classmethod
    def find(cls, explicit: str | Path | None = None) -> Workspace:
        """Return the workspace: `explicit`, else LABASSIST_WORKSPACE, else the enclosing one.

        Raises InputError when the named folder is no workspace, or no folder around here is one.
        """
        named, source = explicit, "--workspace"
        if named is None:
            named, source = os.environ.get(VARIABLE) or None, VARIABLE
        if named is not None:
            root = Path(named).expanduser().resolve()
            if not root.is_dir():
                raise InputError("no such folder", where=f"{source} {named}", mend=_MEND)
            if not is_workspace(root):
                raise InputError(
                    "not a workspace (it has no labs/ and ledger/)", where=f"{source} {named}", mend=_MEND
                )
            return cls(root)
        try:
            here = Path.cwd()
        except FileNotFoundError:
            raise InputError("the current folder has been deleted", mend="cd to one that exists") from None
        for folder in (here, *here.parents):
            if is_workspace(folder):
                return cls(folder)
        raise InputError("no workspace here or in a folder above", where=str(here), mend=_MEND)


_MEND = (
    "make one with `labassist new DIR` (in a repository of your own, `labassist new .` makes it one), "
    "or name one with --workspace DIR"
)


def is_workspace(folder: Path) -> bool:
    """Tell whether a folder has what makes it a workspace."""
    return (folder / "labs").is_dir() and (folder / "ledger").is_dir()


@dataclass(frozen=True)
class Made:
    """What `new` made."""

    workspace: Workspace
    commit: str
    """The first commit, which holds every job file as it came."""
    notes: tuple[str, ...]
    """What a person should know: a fallback identity was used, the folder lies inside a repository."""
    added: tuple[str, ...] = ()
    """What a repository of the person's own was given, uncommitted; empty where the workspace is a new one."""


def new(folder: str | Path) -> Made:
    """Make a workspace in `folder`, which must be empty or not exist, and commit it.

    The top folder of a repository becomes a workspace too: it gets a ledger and an empty labs/, and nothing is
    committed. Raises InputError when the folder holds something else, or there is no git. On any failure
    nothing is left.
    """
    try:
        root = Path(folder).expanduser().resolve()
    except FileNotFoundError:
        raise InputError("the current folder has been deleted", mend="cd to one that exists") from None
    if root.exists() and not root.is_dir():
        raise InputError("this is a file", where=str(root), mend="name a folder that does not exist yet")
    if root.is_dir() and any(root.iterdir()):
        if is_workspace(root):
            raise InputError(
                "this is a workspace already", where=str(root), mend="work in it, or name another folder"
            )
        return _adopt(root)
    if shutil.which("git") is None:
        raise InputError(
            "a workspace is a git repository, and there is no git program",
            mend="install git (Debian: apt-get install git), then run this again",
        )
    existed = root.is_dir()
    root.mkdir(parents=True, exist_ok=True)
    try:
        _fill(root)
        commit, notes = _commit(root)
    except BaseException:
        for left in root.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        if not existed:
            root.rmdir()
        raise
    return Made(Workspace(root), commit, notes)


def _adopt(root: Path) -> Made:
    """Make a repository of the person's own a workspace. Nothing is committed, and no file of theirs replaced."""
    top = ""
    if shutil.which("git"):
        top = _git(root, "rev-parse", "--show-toplevel").stdout.strip()
    if not top:
        raise InputError(
            "this folder is not empty",
            where=str(root),
            mend="name one that does not exist yet, or make this one a repository: git init",
        )
    if Path(top).resolve() != root:
        raise InputError(
            "this folder is not empty, and not the top of its repository",
            where=str(root),
            mend=f"name one that does not exist yet, or labassist new {top}",
        )
    for name in ("labs", "ledger"):
        if os.path.lexists(root / name):
            raise InputError(
                f"this repository has a {name} of its own, where a workspace keeps "
                + ("its jobs" if name == "labs" else "what was recorded"),
                where=str(root / name),
                mend="rename it, or make a workspace elsewhere: labassist new DIR",
            )
    source = content.root()
    ignore = root / ".gitignore"
    before = ignore.read_bytes() if ignore.exists() else None
    pages = [
        one for one in shipped(source) if one[0].parts[0] == "ledger" or one[0] == Path("labs/README.md")
    ]
    try:
        for inside, path in pages:
            (root / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, root / inside)
        with ignore.open("ab") as file:
            file.write((b"\n" if before and not before.endswith(b"\n") else b"") + IGNORED.encode())
    except BaseException:
        for name in ("labs", "ledger"):
            shutil.rmtree(root / name, ignore_errors=True)
        if before is not None:
            ignore.write_bytes(before)
        else:
            ignore.unlink(missing_ok=True)
        raise
    return Made(
        Workspace(root),
        "",
        (),
        ("labs/README.md", "ledger/", f"{len(IGNORED.splitlines())} lines of .gitignore"),
    )


def job_files(labs: Path) -> Iterator[Path]:
    """Yield the paths, relative to `labs`, of what a workspace gets a copy of, in order.

    That is each file of a lab, but for the course's own (COURSE), and the page of labs/.
    """
    for path in sorted(labs.rglob("*")):
        inside = path.relative_to(labs)
        if not path.is_file() or COURSE.intersection(inside.parts):
            continue
        lab = labs / inside.parts[0]
        if inside == Path("README.md") or any((lab / name).is_file() for name in ("jobs.toml", "lab.toml")):
            yield inside


def shipped(source: Path) -> Iterator[tuple[Path, Path]]:
    """Yield path in a workspace and content file of all that `new` copies and `upgrade` merges."""
    for inside in job_files(source / "labs"):
        yield Path("labs") / inside, source / "labs" / inside
    for path in sorted((source / "templates").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(source), path
    for path in (source / "ledger" / "README.md", *sorted((source / "ledger" / "schema").glob("*.json"))):
        yield path.relative_to(source), path


def _fill(root: Path) -> None:
    """Copy job files, templates and the ledger's page into a new workspace."""
    for inside, path in shipped(content.root()):
        target = root / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    (root / ".gitignore").write_text(GITIGNORE, encoding="utf-8")


def _commit(root: Path) -> tuple[str, tuple[str, ...]]:
    """Start the repository and commit everything; return the commit and the notes."""
    notes = []
    outer = _git(root, "rev-parse", "--show-toplevel")
    if outer.returncode == 0:
        notes.append(
            f"{root} lies inside the repository {outer.stdout.strip()}; it is a repository of its own, "
            "so add it to the outer .gitignore"
        )
    _must(_git(root, "-c", "init.defaultBranch=main", "init", "--quiet", "--template="))
    identity: tuple[str, ...] = ()
    if any(_git(root, "var", name).returncode for name in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT")):
        identity = FALLBACK_IDENTITY
        notes.append(
            "git does not know who you are, so the first commit is by `labassist`; tell it with "
            "`git config --global user.name` and `user.email`"
        )
    _must(_git(root, "add", "--all"))
    message = "Start a labassist workspace"
    _must(
        _git(root, *identity, "-c", "commit.gpgSign=false", "commit", "--quiet", "--no-verify", "-m", message)
    )
    return _must(_git(root, "rev-parse", "HEAD")), tuple(notes)


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run git in `root`, whatever repository the caller's environment points at (a hook sets GIT_DIR)."""
    environment = {key: value for key, value in os.environ.items() if key not in _REPOSITORY_VARIABLES}
    return subprocess.run(
        ["git", *words],
        cwd=root,
        env={**environment, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


_REPOSITORY_VARIABLES = {
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_PREFIX",
}


def _must(result: subprocess.CompletedProcess[str]) -> str:
    """Return git's output; raise InputError with its own words when it failed."""
    if result.returncode:
        words = result.stderr.strip() or result.stdout.strip() or f"exit {result.returncode}"
        raise InputError(
            f"git could not make the workspace's repository: {words}", mend="mend that, then run this again"
        )
    return result.stdout.strip()
