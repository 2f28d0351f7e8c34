"""Run git for the ledger without leaving a trace in the user's repository.

Two ways to run it:

- `Repository.run`: in the user's own repository with the user's configuration (ignore rules, attributes),
  only for commands that read; hooks, fsmonitor and optional locks are switched off.
- `Private.run`: in a git directory of our own, made in a temporary folder, whose object store borrows from
  the user's and whose configuration is fixed. Whatever writes an index or an object runs here, and no
  setting of the user (`diff.noprefix`, colours, `core.autocrlf`, external diffs, hooks) can change what it
  says. Content is taken and given raw, byte for byte: end-of-line, `ident` and encoding conversions are
  off. Only `filter` drivers (git-lfs) stay on.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from labassist.errors import CodeError, NoRepositoryError

if TYPE_CHECKING:
    from git import Git

_OLDEST_GIT = (2, 32)
"""`GIT_CONFIG_GLOBAL` and `rev-parse --path-format` came with 2.31 and 2.32."""

GITLINK = "160000"
"""Mode of a submodule in a tree."""

_QUIET = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
}
_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=keep")

_FILE_SYSTEM = (
    "core.filemode",
    "core.symlinks",
    "core.ignorecase",
    "core.precomposeunicode",
    "core.trustctime",
    "core.checkstat",
    "core.attributesfile",
)
"""Settings that say what the file system can do: a private git directory takes these from the user's."""

_RAW_ATTRIBUTES = "* -text -ident !working-tree-encoding !eol\n"


@dataclass(frozen=True)
class Repository:
    """A non-bare repository: where its parts lie, and its HEAD (empty before the first commit)."""

    top: Path
    git_dir: Path
    common_dir: Path
    objects: Path
    index: Path
    head: str
    branch: str
    """Empty on a detached HEAD."""

    def run(
        self,
        *args: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        ok: tuple[int, ...] = (0,),
    ) -> bytes:
        """Run a git command that only reads, with the user's configuration. Raises CodeError."""
        places = {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(self.top)}
        status, out, err = run_git(
            self.top, *_SAFE, *args, stdin=stdin, env={**_QUIET, **places, **(env or {})}
        )
        if status not in ok:
            raise CodeError(f"git {args[0]} failed: {err.strip()}", where=str(self.top))
        return out

    @cached_property
    def config(self) -> dict[str, str]:
        """Return the effective configuration, every scope: lower-case `section.name` -> last value."""
        values: dict[str, str] = {}
        for entry in self.run("config", "--list", "-z").split(b"\0"):
            key, told, value = os.fsdecode(entry).partition("\n")
            if key:
                values[key] = value if told else "true"
        return values

    def has_commit(self, commit: str) -> bool:
        """Say whether the commit is in the object store."""
        places = {**_QUIET, "GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(self.top)}
        return run_git(self.top, "cat-file", "-e", commit + "^{commit}", env=places)[0] == 0

    def pin(self, run_id: str) -> None:
        """Make `refs/labassist/<run_id>` point at HEAD, so that no amend and gc can lose the commit."""
        ref = f"refs/labassist/{run_id}"
        self.run("-c", "core.logAllRefUpdates=false", "update-ref", "--no-deref", ref, self.head)

    def submodules(self) -> list[tuple[str, Repository]]:
        """Return each submodule that is checked out, nested ones too, by its path.

        Raises CodeError on one with changes: what ran is then in none of its commits.
        """
        found: list[tuple[str, Repository]] = []
        for line in split(self.run("ls-files", "-s", "-z")):
            facts, _, path = line.partition("\t")
            if not facts.startswith(GITLINK) or not (self.top / path / ".git").exists():
                continue
            module = open_repository(self.top / path, submodule=True)
            state = module.run("status", "--porcelain", "--untracked-files=all", "--ignore-submodules=none")
            if state:
                first = state.decode(errors="replace").splitlines()[0].strip()
                raise CodeError(
                    f"the submodule has changes that are not committed ({first})",
                    where=path,
                    mend=f"commit them there, or let its .gitignore name what is not code: git -C {path} commit -a",
                )
            found.append((path, module))
            found += [(f"{path}/{name}", nested) for name, nested in module.submodules()]
        return found


@dataclass
class Private:
    """A temporary git directory that borrows a repository's objects and writes only into itself."""

    folder: Path
    work_tree: Path
    wide: bool
    """Object ids are SHA-256, not SHA-1."""
    settings: dict[str, str] = field(default_factory=dict)

    def blob_id(self, data: bytes) -> str:
        """Return the id that git gives to a file with this content."""
        header = b"blob %d\0" % len(data)
        return (hashlib.sha256 if self.wide else hashlib.sha1)(header + data).hexdigest()

    @property
    def index(self) -> Path:
        """The private index."""
        return self.folder / "index"

    @property
    def filters(self) -> set[str]:
        """Names of the filter drivers that are configured here."""
        return {key.split(".", 1)[1].rsplit(".", 1)[0] for key in self.settings if key.startswith("filter.")}

    def run(self, *args: str, stdin: bytes = b"") -> bytes:
        """Run a git command in this directory and return its output. Raises CodeError."""
        folder = str(self.folder)
        env = {
            **_QUIET,
            "GIT_DIR": folder,
            "GIT_COMMON_DIR": folder,
            "GIT_WORK_TREE": str(self.work_tree),
            "GIT_INDEX_FILE": str(self.index),
            "GIT_OBJECT_DIRECTORY": str(self.folder / "objects"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_PARAMETERS": "",
            "GIT_CONFIG_COUNT": str(len(self.settings)),
        }
        for number, (key, value) in enumerate(self.settings.items()):
            env[f"GIT_CONFIG_KEY_{number}"] = key
            env[f"GIT_CONFIG_VALUE_{number}"] = value
        status, out, err = run_git(self.work_tree, *_SAFE, *args, stdin=stdin, env=env)
        if status:
            raise CodeError(f"git {args[0]} failed: {err.strip()}", where=str(self.work_tree))
        return out

    def set_entries(self, entries: Iterable[tuple[str, str, str]]) -> None:
        """Set `(octal mode, object id, path)` in the index, without file times; mode "0" removes the path."""
        nothing = "0" * (64 if self.wide else 40)
        lines = b"".join(
            os.fsencode(f"{mode} {object_id or nothing}\t{path}") + b"\0" for mode, object_id, path in entries
        )
        if lines:
            self.run("update-index", "-z", "--index-info", stdin=lines)

    def write_tree(self) -> str:
        """Return the id of the index as a tree, which may name objects that are not here."""
        return self.run("write-tree", "--missing-ok").decode().strip()


def open_repository(folder: Path, *, submodule: bool = False) -> Repository:
    """Return the repository that encloses `folder`; for a submodule, the one whose `.git` lies in it.

    Raises NoRepositoryError when there is no git program or no repository, CodeError on a bare one and on
    one that git refuses because another user owns it; each with the mend.
    """
    env = dict(_QUIET)
    if submodule:
        env |= {"GIT_DIR": str(folder / ".git"), "GIT_WORK_TREE": str(folder)}
    places = ("--show-toplevel", "--absolute-git-dir", "--git-common-dir")
    paths = ("--git-path", "objects", "--git-path", "index")
    status, out, err = run_git(folder, "rev-parse", "--path-format=absolute", *places, *paths, env=env)
    if status:
        raise _not_opened(folder, err)
    lines = os.fsdecode(out).split("\n")
    if len(lines) != 6:
        raise CodeError(
            "the path of the repository holds a line break", where=str(folder), mend="rename the folder"
        )
    top, git_dir, common, objects, index = map(Path, lines[:5])
    env |= {"GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(top)}
    head = run_git(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}", env=env)[1].decode().strip()
    branch = os.fsdecode(run_git(folder, "symbolic-ref", "--quiet", "--short", "HEAD", env=env)[1]).strip()
    return Repository(top, git_dir, common, objects, index, head, branch)


@contextmanager
def private(repo: Repository, commit: str, work_tree: Path, scratch: Path | None = None) -> Iterator[Private]:
    """Make a private git directory at `commit` over `work_tree`, inside `scratch`, and remove it after.

    While it is in use its file `lock` is held, as of every folder there: whoever sweeps the scratch folder
    after a kill leaves it alone.
    """
    config = repo.config
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="labassist-git-", dir=scratch))
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "refs").mkdir()
        (folder / "info").mkdir()
        (folder / "objects" / "info").mkdir(parents=True)
        (folder / "HEAD").write_text(commit + "\n")
        (folder / "objects" / "info" / "alternates").write_bytes(os.fsencode(repo.objects) + b"\n")
        wide = len(commit) == 64
        (folder / "config").write_text(
            f"[core]\n\trepositoryformatversion = {int(wide)}\n\tbare = false\n"
            + ("[extensions]\n\tobjectformat = sha256\n" if wide else "")
        )
        attributes = repo.common_dir / "info" / "attributes"
        own = attributes.read_text(errors="surrogateescape") if attributes.is_file() else ""
        (folder / "info" / "attributes").write_text(f"{own}\n{_RAW_ATTRIBUTES}", errors="surrogateescape")
        settings = {key: value for key, value in config.items() if key.startswith("filter.")}
        settings |= {key: config[key] for key in _FILE_SYSTEM if key in config}
        settings |= {"core.looseCompression": "0", "lfs.storage": str(repo.common_dir / "lfs")}
        yield Private(folder, work_tree, wide, settings)
    finally:
        shutil.rmtree(folder)
        os.close(lock)


def copy_index(repo: Repository, into: Private) -> None:
    """Copy the user's index, keeping its time: git trusts a file's size and time only when older."""
    if repo.index.is_file():
        shutil.copy2(repo.index, into.index)
        for shared in repo.index.parent.glob("sharedindex.*"):
            shutil.copy2(shared, into.folder / shared.name)


def split(out: bytes) -> list[str]:
    """Split NUL-terminated output of git into names."""
    return [os.fsdecode(name) for name in out.split(b"\0")[:-1]]


def joined(names: Iterable[str]) -> bytes:
    """Return names as NUL-terminated input for git."""
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def run_git(
    folder: Path, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> tuple[int, bytes, str]:
    """Run git in `folder` and return its exit status, output and complaint. Raises CodeError without git."""
    git = _git(folder)
    with tempfile.TemporaryFile() as source:
        source.write(stdin)
        source.seek(0)
        status, out, err = git.execute(
            ["git", *args],
            istream=source,
            with_extended_output=True,
            with_exceptions=False,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
            env=dict(env or {}),
        )
    return status, out, err if isinstance(err, str) else os.fsdecode(err)


def _git(folder: Path) -> Git:
    """Return gitpython's runner for `folder`; gitpython takes 80 ms to load, so only when git is needed."""
    program = shutil.which("git")
    if program is None:
        raise NoRepositoryError(
            "there is no git program", mend="install git, for example: apt-get install git"
        )
    try:
        from git import Git
    except ImportError as error:
        # Not the same as no git: a run that is told so would be recorded without its code.
        raise CodeError(
            f"git cannot be used: {error}", where=program, mend="see that `git --version` works in this shell"
        ) from error
    version = _version(program)
    if version[:2] < _OLDEST_GIT:
        raise CodeError(f"git {'.'.join(map(str, version))} is too old", mend="install git 2.32 or newer")
    return Git(folder)


@cache
def _version(program: str) -> tuple[int, ...]:
    """Return the version of a git program, asked once."""
    from git import Git

    version: tuple[int, ...] = Git(Path(program).parent).version_info
    return version


def _not_opened(folder: Path, complaint: str) -> CodeError:
    """Return the error for a repository that git does not open, with its mend."""
    if "dubious ownership" in complaint:
        return CodeError(
            "git refuses this repository because another user owns it",
            where=str(folder),
            mend=f"if you trust it: git config --global --add safe.directory '{_named(complaint, folder)}'",
        )
    if "work tree" in complaint:
        return CodeError(
            "this repository is bare: it has no files to run",
            where=str(folder),
            mend="clone it, and work in the clone",
        )
    if "not a git repository" in complaint:
        return NoRepositoryError(
            "not inside a git repository, so the code of a run cannot be recorded",
            where=str(folder),
            mend="make a workspace with `labassist new DIR`, or here: git init && git add -A && git commit -m start",
        )
    return CodeError(f"git cannot open the repository: {complaint.strip()}", where=str(folder))


def _named(complaint: str, folder: Path) -> str:
    """Return the folder that git names in its complaint about ownership."""
    parts = complaint.split("'")
    return parts[1] if len(parts) > 2 else str(folder)
