"""Bring recorded code back into an empty folder, exactly as it ran, and prove that it is exact."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path, PurePosixPath

from labassist.errors import CodeError, LedgerError, RestoreError
from labassist.ledger import codestore
from labassist.ledger.gitcmd import Private, Repository, open_repository, private
from labassist.ledger.kept import GONE, LINK, code_digest, digest_without_git, listing, take_away
from labassist.ledger.objects import Objects
from labassist.ledger.records import Code, Kept
from labassist.record.protocol import file_sha256

_ROOM = 1 << 20
"""Bytes; git says that it cannot write a file and not why, and with less than this it is the disk."""


def restore(code: Code, objects: Objects, repository: Path, into: Path) -> None:
    """Write the code of a run into `into`, which must be empty or absent, and verify every file of it.

    `repository` is any folder of a repository that has the commit, or the ledger's own one has it; nothing in
    it changes. For vcs none it is not looked at. A file that was recorded by hash only is copied from the repository's working tree
    where it still is the same; else it stays absent (see `missing`). Raises RestoreError, and then leaves
    `into` as it was.
    """
    existed = into.exists()
    if existed and (not into.is_dir() or any(into.iterdir())):
        raise RestoreError("code is restored into an empty folder only", where=str(into), mend="name another")
    into.mkdir(parents=True, exist_ok=True)
    try:
        _restore(code, objects, repository, into.resolve())
    except BaseException:
        shutil.rmtree(into)
        if existed:
            into.mkdir()
        raise


def missing(code: Code, objects: Objects, restored: Path) -> list[Kept]:
    """Return the recorded files that a restored tree lacks: large ones, secrets, other repositories."""
    return [
        kept
        for kept in listing(code.extra, objects)
        if not kept.stored and not os.path.lexists(restored / kept.path)
    ]


def _restore(code: Code, objects: Objects, repository: Path, into: Path) -> None:
    try:
        extra, changed = listing(code.extra, objects), listing(code.changed, objects)
        for kept in (*extra, *changed):
            _check_path(kept.path)
        if code.vcs == "git":
            repo = codestore.holder(repository, objects.folder.parent, code.commit)
            _check_out(code, objects, repo, into, extra, changed)
            _check_out_submodules(code, objects.folder.parent, repo, into)
            _copy_large(extra, repo.top, into)
        elif digest_without_git(extra) != code.digest:
            raise RestoreError(
                "the recorded files do not make the recorded digest", mend="see `labassist audit`"
            )
        for kept in extra:
            if kept.stored:
                _write(kept, objects.get(kept.sha256), into)
    except LedgerError as error:
        raise RestoreError(f"the record is not whole: {error}", mend="see `labassist audit`") from error
    laid_over = {kept.path for kept in extra}
    for kept in extra:
        if kept.stored:
            _verify(kept, into)
    for kept in changed:
        if kept.path not in laid_over:
            _verify(kept, into)


def _check_out(
    code: Code, objects: Objects, repo: Repository, into: Path, extra: list[Kept], changed: list[Kept]
) -> None:
    """Write the commit with its patch into `into`, through a private index, and check the digest."""
    if not repo.has_commit(code.commit):
        raise RestoreError(
            f"the commit {code.commit[:12]} is not in this repository",
            where=str(repo.top),
            mend="fetch it from a repository that has it, as git fetch PATH 'refs/labassist/*:refs/labassist/*', "
            "or import the bundle of the run",
        )
    with private(repo, code.commit, into, scratch=into.parent) as git:
        git.run("read-tree", code.commit)
        if code.patch:
            git.run("apply", "--cached", "--whitespace=nowarn", "-", stdin=objects.get(code.patch))
        take_away(git, extra, changed)
        _write_tree(git)
        if code_digest(git, extra, changed, objects) != code.digest:
            raise RestoreError(
                "commit, patch and files do not make the recorded digest", where=f"commit {code.commit[:12]}"
            )


def _write_tree(git: Private) -> None:
    """Write every file of the private index into its working tree."""
    try:
        git.run("checkout-index", "--all", "--force")
    except CodeError as error:
        if shutil.disk_usage(git.work_tree).free < _ROOM:
            what, mend = "the code cannot be written: no space left on this disk", "free some space there"
            raise RestoreError(what, where=str(git.work_tree), mend=mend) from error
        mend = "install the program of this filter, and fetch its content (git lfs fetch)"
        first, *more = error.what.splitlines()
        what = f"{first} (and {len(more)} lines like it)" if len(more) > 2 else error.what
        raise RestoreError(what, where=error.where, mend=mend if "filter" in error.what else "") from error


def _check_out_submodules(code: Code, ledger: Path, repo: Repository, into: Path) -> None:
    """Write each recorded submodule from the user's copy of it or the ledger's, outer ones first."""
    found: dict[str, Repository] = {}
    for entry in sorted(code.submodules):
        path, _, commit = entry.rpartition(" ")
        _check_path(path)
        module = found[path] = _submodule(repo, ledger, found, path, commit)
        (into / path).mkdir(parents=True, exist_ok=True)
        with private(module, commit, into / path, scratch=into.parent) as git:
            git.run("read-tree", commit)
            _write_tree(git)


def _submodule(
    repo: Repository, ledger: Path, outer: dict[str, Repository], path: str, commit: str
) -> Repository:
    """Return a local repository of the submodule that has the commit. Raises RestoreError."""
    if (repo.top / path / ".git").exists():
        module = open_repository(repo.top / path, submodule=True)
        if module.has_commit(commit):
            return module
    # Where it is not checked out, its store may still be there: in that of the submodule around it, under
    # its name, which is its path unless someone renamed it.
    around = max((name for name in outer if path.startswith(f"{name}/")), key=len, default="")
    inside = outer[around].git_dir if around else repo.common_dir
    store = inside / "modules" / path.removeprefix(f"{around}/")
    if (store / "HEAD").is_file():
        module = Repository(repo.top, store, store, store / "objects", store / "index", commit, "")
        if module.has_commit(commit):
            return module
    imported = codestore.kept(ledger, repo.top)
    if imported is not None and imported.has_commit(commit):
        return imported
    raise RestoreError(
        f"commit {commit[:12]} of the submodule is not here",
        where=path,
        mend=f"git submodule update --init --recursive -- {path}",
    )


def _copy_large(extra: list[Kept], top: Path, into: Path) -> None:
    """Copy files that were recorded by hash only from the working tree, where they are still the same."""
    for kept in extra:
        source, target = top / kept.path, into / kept.path
        if kept.stored or not kept.sha256 or not source.is_file() or source.is_symlink():
            continue
        if source.stat().st_size != kept.bytes or file_sha256(source) != kept.sha256:
            continue
        _make_parent(target, into)
        target.unlink(missing_ok=True)
        shutil.copyfile(source, target)
        target.chmod(kept.mode)
        _verify(kept, into)


def _write(kept: Kept, data: bytes, into: Path) -> None:
    """Write one kept file, in place of what the patch may have left there (the pointer of a filter)."""
    target = into / kept.path
    _make_parent(target, into)
    target.unlink(missing_ok=True)
    if kept.mode == LINK:
        os.symlink(os.fsdecode(data), target)
        return
    target.write_bytes(data)
    target.chmod(kept.mode)


def _make_parent(target: Path, into: Path) -> None:
    """Make the folders above `target`. Raises RestoreError where a link would lead out of `into`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.parent.resolve() != target.parent or not target.parent.is_relative_to(into):
        raise RestoreError("the record puts a file behind a symbolic link", where=str(target))


def _verify(kept: Kept, into: Path) -> None:
    """Check one restored file against the record. Raises RestoreError that names it."""
    place = into / kept.path
    if kept.mode == GONE:
        # A submodule or a folder may stand where a file was deleted.
        if place.is_symlink() or place.is_file():
            raise RestoreError("restored, but the run did not have it", where=kept.path)
        return
    if kept.mode == LINK:
        if not place.is_symlink():
            raise RestoreError("not restored as the symbolic link that it was", where=kept.path)
        target = os.fsencode(os.readlink(place))
        same, size = hashlib.sha256(target).hexdigest() == kept.sha256, len(target)
    else:
        if place.is_symlink() or not place.is_file():
            raise RestoreError("not restored", where=kept.path)
        size = place.stat().st_size
        same = size == kept.bytes if not kept.sha256 else file_sha256(place) == kept.sha256
        if same and (stat.S_IMODE(place.stat().st_mode) ^ kept.mode) & 0o100:
            raise RestoreError("restored with another executable bit", where=kept.path)
    if not same:
        raise RestoreError(
            f"restored, but not as it ran ({size} bytes here, {kept.bytes} recorded)",
            where=kept.path,
            mend="if the file is under a filter (git-lfs), install its program and configure it here",
        )


def _check_path(path: str) -> None:
    """Refuse a path of a record that would lead out of the folder that is restored into."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or parts[0].lower() == ".git":
        raise RestoreError("the record names a path outside the tree", where=path)
