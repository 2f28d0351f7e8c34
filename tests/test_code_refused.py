"""What a record of code leaves out, names only, or refuses: limits, secrets, what is no code."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest
from code_repo import SECRET, git, git_state, tree, write

from labassist.errors import CodeError
from labassist.ledger.code import capture
from labassist.ledger.kept import listing
from labassist.ledger.objects import Objects
from labassist.ledger.records import Kept
from labassist.ledger.restore import missing, restore


@pytest.mark.fault
def test_files_over_the_limit_are_recorded_by_hash(repo: Path, objects: Objects, tmp_path: Path) -> None:
    """Neither the patch nor the store grows with a huge file, new, changed, staged or deleted."""
    noise = random.Random(0)
    for name in ("tracked.big", "gone.big", "shrunk.big"):
        write(repo, name, noise.randbytes(300_000))
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "big")
    write(repo, "tracked.big", noise.randbytes(300_000))
    (repo / "gone.big").unlink()
    write(repo, "shrunk.big", b"small now")
    write(repo, "untracked.big", noise.randbytes(300_000))
    write(repo, "staged.big", noise.randbytes(300_000))
    git(repo, "add", "staged.big")
    before = git_state(repo)
    code = capture(repo, objects, "run-1", untracked_limit=100_000)
    assert git_state(repo) == before
    assert sum(objects.path(name).stat().st_size for name in objects) < 5_000
    by_path = {kept.path: kept for kept in listing(code.extra, objects)}
    for name in ("tracked.big", "untracked.big", "staged.big"):
        assert not by_path[name].stored
        assert by_path[name].sha256 == hashlib.sha256((repo / name).read_bytes()).hexdigest()
    restore(code, objects, repo, tmp_path / "same")
    assert tree(tmp_path / "same") == tree(repo)
    assert missing(code, objects, tmp_path / "same") == []
    write(repo, "tracked.big", b"changed since")
    (repo / "untracked.big").unlink()
    restore(code, objects, repo, tmp_path / "later")
    assert [kept.path for kept in missing(code, objects, tmp_path / "later")] == [
        "tracked.big",
        "untracked.big",
    ]
    assert not (tmp_path / "later/tracked.big").exists()
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "later")
    assert capture(repo, objects, "run-2", untracked_limit=100_000).digest != code.digest


def test_all_untracked_files_together_are_bounded(
    repo: Path, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labassist.ledger.code.TOTAL_LIMIT", 2500)
    for name in ("u1", "u2", "u3"):
        write(repo, name, name * 500)
    stored = {kept.path: kept.stored for kept in listing(capture(repo, objects, "r").extra, objects)}
    assert stored == {"u1": True, "u2": True, "u3": False}


@pytest.mark.fault
def test_secrets_in_untracked_files_are_recorded_by_name(
    repo: Path, objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "plainwordsofmykey")
    write(repo, "watch.py", "start('plainwordsofmykey')\n")
    write(repo, ".env", "A=1\n")
    write(repo, "keys/id_rsa", "x\n")
    write(repo, "login.py", f"login(token='{SECRET}')\n")
    code = capture(repo, objects, "run-1")
    kept = listing(code.extra, objects)
    assert [(file.path, file.sha256, file.stored) for file in kept] == [
        (".env", "", False),
        ("keys/id_rsa", "", False),
        ("login.py", "", False),
        ("watch.py", "", False),
    ]
    assert not any(SECRET.encode() in objects.get(name) for name in objects)
    restore(code, objects, repo, tmp_path / "into")
    assert missing(code, objects, tmp_path / "into") == kept


@pytest.mark.fault
@pytest.mark.parametrize("place", [f"{SECRET}.txt", f"of {SECRET}/a.txt"])
def test_a_secret_in_a_file_name_refuses_the_run_and_is_not_shown(
    repo: Path, objects: Objects, place: str
) -> None:
    write(repo, place, "x\n")
    with pytest.raises(CodeError, match="the file name holds a secret .* git ignore it") as caught:
        capture(repo, objects, "run-1")
    assert SECRET not in str(caught.value) and "[redacted" in str(caught.value)
    assert not any(SECRET.encode() in objects.get(name) for name in objects)
    write(repo, ".gitignore", "*.txt\n")
    capture(repo, objects, "run-2")


@pytest.mark.fault
@pytest.mark.parametrize("staged", [False, True])
def test_a_secret_in_a_tracked_file_refuses_the_run(repo: Path, objects: Objects, staged: bool) -> None:
    write(repo, "train.py", f"a = 1\nb = 2\nlogin('{SECRET}')\nc = 3\n")
    if staged:
        git(repo, "add", "train.py")
    with pytest.raises(CodeError) as caught:
        capture(repo, objects, "run-1")
    assert caught.value.where == "train.py:3"
    assert "environment variable" in caught.value.mend
    assert SECRET not in str(caught.value)
    assert list(objects) == [] or not any(SECRET.encode() in objects.get(name) for name in objects)
    assert not (repo / ".git/refs/labassist").exists()


def test_a_secret_in_a_file_with_an_odd_name(repo: Path, objects: Objects) -> None:
    name = 'new "é\n.py'
    write(repo, name, f"++ b/x\n\nlogin('{SECRET}')\n")
    git(repo, "add", name)
    with pytest.raises(CodeError) as caught:
        capture(repo, objects, "run-1")
    assert caught.value.where == f"{name}:3"


def test_the_ledger_itself_is_not_code(repo: Path, objects: Objects) -> None:
    """Also where nobody told git to ignore it, and where the workspace is inside the repository."""
    for place in ("ledger/journal.jsonl", ".labassist/x", "inner/ledger/a", "inner/.labassist/b"):
        write(repo, place, "x")
    write(repo, "inner/train.py", "x")
    names = [kept.path for kept in listing(capture(repo, objects, "r1").extra, objects)]
    assert names == ["inner/.labassist/b", "inner/ledger/a", "inner/train.py"]
    names = [kept.path for kept in listing(capture(repo / "inner", objects, "r2").extra, objects)]
    assert names == [".labassist/x", "inner/train.py", "ledger/journal.jsonl"]


def test_refusals_say_the_mend(
    repo: Path, objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CodeError, match="git init"):
        capture(empty, objects, "r")
    git(empty, "init", "-q")
    with pytest.raises(CodeError, match="git commit"):
        capture(empty, objects, "r")
    bare = tmp_path / "bare"
    git(tmp_path, "clone", "-q", "--bare", str(repo), str(bare))
    with pytest.raises(CodeError, match="bare"):
        capture(bare, objects, "r")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(CodeError, match="safe.directory"):
        capture(repo, objects, "r")
    monkeypatch.delenv("GIT_TEST_ASSUME_DIFFERENT_OWNER")
    monkeypatch.setenv("PATH", str(empty))
    with pytest.raises(CodeError, match="install git"):
        capture(repo, objects, "r")


def test_a_file_name_that_is_not_utf8_is_refused(repo: Path, objects: Objects) -> None:
    Path(os.fsdecode(os.fsencode(repo) + b"/bad\xff.txt")).write_text("x")
    with pytest.raises(CodeError, match="rename"):
        capture(repo, objects, "r")


def test_kept_paths_are_text(repo: Path, objects: Objects) -> None:
    write(repo, "ü.py", "x")
    assert listing(capture(repo, objects, "r").extra, objects) == [
        Kept("ü.py", 1, hashlib.sha256(b"x").hexdigest())
    ]
