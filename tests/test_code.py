"""Code is recorded as it ran and restored byte for byte, and the user's repository is not touched."""

from __future__ import annotations

import os
import random
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from code_repo import change_everything, git, write

from labassist.ledger.code import capture
from labassist.ledger.objects import Objects
from labassist.ledger.records import Code


def test_clean_repository(round_trip: Callable[..., tuple[Code, Path]], repo: Path) -> None:
    code, _ = round_trip()
    assert not code.dirty
    assert (code.patch, code.extra) == ("", "")
    assert code.branch == "main"
    assert code.commit == git(repo, "rev-parse", "HEAD").strip()


@pytest.mark.fault
def test_every_kind_of_change(round_trip: Callable[..., tuple[Code, Path]], repo: Path) -> None:
    change_everything(repo)
    code, into = round_trip()
    assert code.dirty
    assert stat.S_IMODE((into / "private.txt").stat().st_mode) == 0o600


HOSTILE = (
    "[diff]\n\tnoprefix = true\n\tmnemonicPrefix = true\n\texternal = false\n\trenames = copies\n"
    "\talgorithm = patience\n\tcontext = 0\n\tsuppressBlankEmpty = true\n\tsubmodule = log\n"
    "\torderFile = /nowhere\n\trelative = true\n\tinterHunkContext = 9\n"
    "[color]\n\tui = always\n\tdiff = always\n[core]\n\tquotePath = false\n\tpager = false\n"
    "\tfsmonitor = false\n\thooksPath = HOOKS\n\tlogAllRefUpdates = always\n\tabbrev = 4\n"
    "[apply]\n\twhitespace = fix\n\tignoreWhitespace = change\n[commit]\n\tgpgSign = true\n"
    "[status]\n\tshowUntrackedFiles = no\n[index]\n\tversion = 4\n[add]\n\tignoreErrors = true\n"
)


def test_the_users_configuration_changes_nothing(
    round_trip: Callable[..., tuple[Code, Path]], repo: Path, git_config: Path, tmp_path: Path
) -> None:
    change_everything(repo)
    plain, _ = round_trip()
    hooks = tmp_path / "hooks"
    for name in ("reference-transaction", "post-index-change", "post-checkout", "fsmonitor"):
        write(hooks, name, "#!/bin/sh\nexit 1\n", 0o755)
    git_config.write_text(git_config.read_text() + HOSTILE.replace("HOOKS", str(hooks)))
    hostile, _ = round_trip()
    assert (hostile.patch, hostile.digest) == (plain.patch, plain.digest)


@pytest.mark.parametrize("setting", ["input", "true"])
def test_line_ends_are_kept_whatever_git_converts(
    round_trip: Callable[..., tuple[Code, Path]], repo: Path, git_config: Path, setting: str
) -> None:
    git_config.write_text(git_config.read_text() + f"[core]\n\tautocrlf = {setting}\n\tsafecrlf = false\n")
    write(repo, "train.py", "a = 1\r\nb = 2\r\nc = 3\r\n")
    write(repo, "mixed.txt", "one\r\ntwo\n")
    git(repo, "add", "-A")
    round_trip()
    git(repo, "commit", "-q", "-m", "converted", "--allow-empty")
    assert git(repo, "status", "--porcelain") == ""
    round_trip()


def test_attributes_that_convert(round_trip: Callable[..., tuple[Code, Path]], repo: Path) -> None:
    write(repo, ".gitattributes", "*.txt text eol=crlf\n*.id ident\n*.u16 working-tree-encoding=UTF-16\n")
    write(repo, "a.txt", "one\ntwo\n")
    write(repo, "b.id", "$Id$\n")
    write(repo, "c.u16", "text".encode("utf-16"))
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "converted")
    for name in ("a.txt", "b.id", "c.u16"):
        (repo / name).unlink()
    git(repo, "checkout", "--", ".")
    assert b"\r\n" in (repo / "a.txt").read_bytes()
    assert (repo / "b.id").read_bytes() != b"$Id$\n"
    round_trip()


def test_files_that_git_was_told_not_to_look_at(
    round_trip: Callable[..., tuple[Code, Path]], repo: Path
) -> None:
    git(repo, "update-index", "--assume-unchanged", "train.py")
    git(repo, "update-index", "--skip-worktree", "run.sh")
    write(repo, "train.py", "unseen = 1\n")
    write(repo, "run.sh", "unseen\n", 0o755)
    assert git(repo, "status", "--porcelain") == ""
    round_trip()


def test_a_file_taken_out_of_the_index_that_is_still_there(
    round_trip: Callable[..., tuple[Code, Path]], repo: Path
) -> None:
    git(repo, "rm", "-q", "--cached", "train.py", "run.sh")
    write(repo, ".gitignore", "ignored/\n*.ign\nrun.sh\n")
    round_trip()


def test_a_conflict_is_taken_as_the_working_tree_holds_it(
    round_trip: Callable[..., tuple[Code, Path]], repo: Path
) -> None:
    git(repo, "checkout", "-q", "-b", "other")
    write(repo, "train.py", "a = 'theirs'\nb = 2\nc = 3\n")
    git(repo, "commit", "-q", "-a", "-m", "theirs")
    git(repo, "checkout", "-q", "main")
    write(repo, "train.py", "a = 'ours'\nb = 2\nc = 3\n")
    git(repo, "commit", "-q", "-a", "-m", "ours")
    subprocess.run(["git", "merge", "other"], cwd=repo, capture_output=True)
    assert "UU train.py" in git(repo, "status", "--porcelain")
    round_trip()


def test_kinds_that_change_places(round_trip: Callable[..., tuple[Code, Path]], repo: Path) -> None:
    """A file becomes a folder, a folder a link, a link a file."""
    (repo / "old.txt").unlink()
    write(repo, "old.txt/inside", "x")
    (repo / "data/weights.bin").unlink()
    (repo / "data").rmdir()
    (repo / "data").symlink_to("old.txt")
    write(repo, "link", "a file now")
    git(repo, "add", "link")
    round_trip()


def test_equal_code_has_an_equal_digest(repo: Path, objects: Objects) -> None:
    write(repo, "train.py", "changed\n")
    write(repo, "new.py", "new\n")
    digests = {capture(repo, objects, "r1").digest}
    git(repo, "add", "new.py")
    digests.add(capture(repo, objects, "r2").digest)
    git(repo, "checkout", "-q", "-b", "side")
    digests.add(capture(repo, objects, "r3").digest)
    git(repo, "commit", "-q", "-a", "-m", "all of it")
    digests.add(capture(repo, objects, "r4").digest)
    git(repo, "commit", "-q", "--amend", "-m", "another message")
    git(repo, "checkout", "-q", "--detach")
    detached = capture(repo, objects, "r5")
    digests.add(detached.digest)
    assert len(digests) == 1
    assert detached.branch == ""
    write(repo, "train.py", "changed!\n")
    assert capture(repo, objects, "r6").digest not in digests
    git(repo, "checkout", "-q", "train.py")
    (repo / "train.py").chmod(0o755)
    assert capture(repo, objects, "r7").digest not in digests


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 30))]
)
def test_random_changes(
    round_trip: Callable[..., tuple[Code, Path]], repo: Path, git_config: Path, seed: int
) -> None:
    draw = random.Random(seed)
    git_config.write_text(
        git_config.read_text() + f"[core]\n\tautocrlf = {draw.choice(['true', 'input', 'false'])}\n"
    )
    for step in range(3):
        for _ in range(12):
            path = draw.choice(["", "d/", "d/e/", "f/"]) + draw.choice(["a", "b", "c c", "ü", "x.bin"])
            if (
                any((repo / path).parents[i].is_file() for i in range(path.count("/")))
                or (repo / path).is_dir()
            ):
                continue
            place = repo / path
            kind = draw.randrange(7)
            if kind == 0 and os.path.lexists(place):
                place.unlink()
            elif kind == 1 and place.is_file() and not place.is_symlink():
                place.chmod(draw.choice([0o644, 0o755, 0o600]))
            elif kind == 2:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.unlink(missing_ok=True)
                place.symlink_to(draw.choice(["a", "../x", "no where"]))
            elif kind == 3:
                write(repo, path, draw.randbytes(draw.randrange(3000)), draw.choice([0o644, 0o755]))
            else:
                ends = draw.choice(["\n", "\r\n"])
                lines = [str(draw.randrange(5)) for _ in range(draw.randrange(40))]
                write(repo, path, ends.join(lines) + draw.choice(["", ends]))
            if draw.random() < 0.4 and os.path.lexists(place):
                git(repo, "add", "--", path)
        round_trip()
        if step < 2:
            git(repo, "add", "-A")
            git(repo, "commit", "-q", "--allow-empty", "-m", f"step {step}")
