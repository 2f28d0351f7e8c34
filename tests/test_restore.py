"""Recorded code is brought back exactly or not at all, and never over anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from code_repo import git, git_state, tree, write

from labassist.errors import CodeError, RestoreError
from labassist.ledger.code import capture
from labassist.ledger.kept import listing
from labassist.ledger.objects import Objects
from labassist.ledger.records import Code
from labassist.ledger.restore import restore


@pytest.mark.fault
def test_commit_amended_and_collected(repo: Path, objects: Objects, tmp_path: Path) -> None:
    write(repo, "train.py", "a = 'first'\n")
    git(repo, "commit", "-q", "-a", "-m", "never pushed")
    write(repo, "train.py", "a = 'first, changed'\n")
    code = capture(repo, objects, "run-1")
    wanted = tree(repo)
    write(repo, "train.py", "a = 'second'\n")
    git(repo, "commit", "-q", "-a", "--amend", "-m", "amended")
    git(repo, "reflog", "expire", "--expire=now", "--all")
    git(repo, "gc", "-q", "--prune=now")
    git(repo, "checkout", "-q", "--orphan", "elsewhere")
    before = git_state(repo)
    restore(code, objects, repo, tmp_path / "into")
    assert tree(tmp_path / "into") == wanted
    assert git_state(repo) == before


def test_restore_never_writes_over_anything(repo: Path, objects: Objects) -> None:
    write(repo, "train.py", "precious\n")
    code = capture(repo, objects, "r")
    before = git_state(repo)
    with pytest.raises(RestoreError, match="empty"):
        restore(code, objects, repo, repo)
    assert git_state(repo) == before


def test_restore_refuses_what_it_cannot_make_exact(repo: Path, objects: Objects, tmp_path: Path) -> None:
    write(repo, "train.py", "changed\n")
    write(repo, "new.py", "new\n")
    code = capture(repo, objects, "r")
    stranger = tmp_path / "stranger"
    git(tmp_path, "init", "-q", str(stranger))
    into = tmp_path / "into"
    with pytest.raises(RestoreError, match="is not in this repository"):
        restore(code, objects, stranger, into)
    assert not into.exists()
    other = objects.put(objects.get(code.patch).replace(b"+changed", b"+cheated"))
    for bad in (
        {"patch": other},
        {"patch": ""},
        {"extra": ""},
        {"extra": objects.put_json([{"path": "../evil", "bytes": 1, "sha256": objects.put(b"x")}])},
        {"extra": objects.put_json([{"path": ".git/hooks/x", "bytes": 1, "sha256": objects.put(b"x")}])},
        {"patch": "0" * 64},
        {"extra": objects.put_json(["nonsense"])},
    ):
        wrong = Code(**{**{name: getattr(code, name) for name in code.__struct_fields__}, **bad})
        with pytest.raises(CodeError):
            restore(wrong, objects, repo, into)
        assert not into.exists()
    assert not (tmp_path / "evil").exists()


def test_a_file_behind_a_link_of_the_record_is_refused(objects: Objects, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    files = [
        {"path": "d", "bytes": 1, "sha256": objects.put(os.fsencode(victim)), "mode": 0o120000},
        {"path": "d/x", "bytes": 1, "sha256": objects.put(b"x")},
    ]
    extra = objects.put_json(files)
    from labassist.ledger.kept import digest_without_git

    code = Code(vcs="none", extra=extra, digest=digest_without_git(listing(extra, objects)))
    with pytest.raises(RestoreError, match="behind a symbolic link"):
        restore(code, objects, tmp_path, tmp_path / "into")
    assert list(victim.iterdir()) == []
