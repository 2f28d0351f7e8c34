"""Every bad input gets one clear line and status 2, and nothing is journalled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import QUICK, answer, labassist, train

from labassist.workspace import Workspace, new

JOB = "01-first-loop/train"


def one_line(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if not line.startswith("note:")]
    assert len(lines) == 1, stderr
    assert "Traceback" not in stderr
    return lines[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "01-first-lop/train"], "did you mean 01-first-loop"),
        (["run", "01-first-loop/trian"], "did you mean train"),
        (["run", JOB, "--set", "optim.lrr=1"], "did you mean optim.lr"),
        (["run", JOB, "--set", "steps=many"], "a whole number"),
        (["run", JOB, "--set", "steps"], "key=value"),
        (["run", JOB, "--set", "model.dropout=2"], "above 0.95"),
        (["run", JOB, "--profile", "huge"], "tiny"),
        (["run", JOB, "--config", "none.toml"], "no such file"),
        (["run", JOB, "--seed", "-1"], "seed"),
        (["run"], "no JOB"),
        (["run", JOB, "--", "true"], "not both"),
        (["run", "--", "no-such-program"], "no such program"),
        (["run", "--out", "../x", "--", "true"], "outside the workspace"),
        (["replay", "@last"], "none has been recorded"),
        (["show", "@-0"], "not a name"),
        (["show", "zzz"], "no run 'zzz'"),
        (["runs", "--where", "lr"], "not an expression"),
        (["repley", "@last"], "did you mean replay"),
    ],
)
def test_one_line_and_status_2(workspace: Workspace, words: list[str], says: str) -> None:
    done = labassist(*words, cwd=workspace.root, status=2)
    assert says in one_line(done.stderr)
    assert answer("runs", cwd=workspace.root)["runs"] == []


def test_a_missing_corpus_is_refused_before_anything_is_recorded(workspace: Workspace) -> None:
    words = ("run", JOB, "--profile", "tiny", *QUICK, "--set", "data.path=no/such.txt")
    done = labassist(*words, cwd=workspace.root, status=2)
    assert "no/such.txt" in one_line(done.stderr)
    assert answer("runs", cwd=workspace.root)["runs"] == []


def test_a_corpus_that_is_too_short_fails_the_run_with_the_trainers_own_line(workspace: Workspace) -> None:
    (workspace.root / "short.txt").write_text("too short")
    words = ("run", JOB, "--profile", "tiny", *QUICK, "--set", "data.path=short.txt")
    done = labassist(*words, cwd=workspace.root, status=None)
    assert done.returncode not in (0, 130)
    assert "8 characters do not give" in done.stderr
    assert "Traceback" not in done.stderr
    run = answer("show", "@last", cwd=workspace.root)
    assert run["state"] == "failed"
    assert run["exit"] == done.returncode


def test_without_git_the_mend_is_named(workspace: Workspace, tmp_path: Path) -> None:
    done = labassist("run", JOB, cwd=workspace.root, status=2, env={"PATH": str(tmp_path)})
    assert "git" in one_line(done.stderr)
    done = labassist("new", str(tmp_path / "other"), cwd=tmp_path, status=2, env={"PATH": str(tmp_path)})
    assert "install git" in one_line(done.stderr)


def test_without_a_commit_the_commands_to_make_one_are_named(tmp_path: Path) -> None:
    root = new(tmp_path / "lab").workspace.root
    subprocess.run(["rm", "-rf", ".git"], cwd=root, check=True)
    done = labassist("run", JOB, cwd=root, status=2)
    assert "git init" in one_line(done.stderr)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    done = labassist("run", JOB, cwd=root, status=2)
    assert "git add -A && git commit" in one_line(done.stderr)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_dubious_ownership_is_named_with_its_mend(workspace: Workspace) -> None:
    subprocess.run(["chown", "-R", "12345:12345", str(workspace.root)], check=True)
    done = labassist("run", JOB, cwd=workspace.root, status=2)
    assert "safe.directory" in one_line(done.stderr)


def test_a_detached_head_and_strange_file_names_are_recorded_as_they_are(tmp_path: Path) -> None:
    root = new(tmp_path / "a lab, with ünïcode").workspace.root
    (root / "labs" / 'notes on 学习 "quoted".txt').write_text("x\n")
    subprocess.run(["git", "checkout", "-q", "--detach"], cwd=root, check=True)
    run = train(root)
    assert run["code"].get("branch", "") == ""
    assert answer("replay", "@last", cwd=root)["verdict"] == "BITWISE"


def test_outside_a_workspace_the_way_in_is_named(tmp_path: Path) -> None:
    done = labassist("runs", cwd=tmp_path, status=2)
    assert "labassist new" in one_line(done.stderr)


def test_a_secret_in_the_change_refuses_the_run_and_is_not_stored(workspace: Workspace) -> None:
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"[:36]
    script = workspace.labs / "01-first-loop" / "train.py"
    script.write_text(script.read_text() + f'\nTOKEN = "{token}"\n')
    done = labassist("run", JOB, "--profile", "tiny", cwd=workspace.root, status=2)
    line = one_line(done.stderr)
    assert "labs/01-first-loop/train.py" in line
    assert token not in done.stderr
    kept = subprocess.run(
        ["grep", "-rl", token, str(workspace.ledger)], capture_output=True, text=True, check=False
    )
    assert kept.stdout == ""


@pytest.mark.parametrize("words", ["new lab", "runs"])
def test_a_folder_that_was_deleted_under_the_shell_is_said(tmp_path: Path, words: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f"rmdir '{gone}'; exec '{sys.executable}' -m labassist {words}"
    done = subprocess.run(["sh", "-c", line], cwd=gone, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the current folder has been deleted; cd to one that exists" in done.stderr
