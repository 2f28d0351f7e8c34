"""Runs outlive their supervisors, and nobody but the machine that recorded a run may bury it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import (
    QUICK,
    answer,
    kill_trainer,
    labassist,
    run_folder,
    train,
    wait_closed,
    wait_for_step,
    wait_until,
)
from leash import Leash

from labassist.ledger import curves
from labassist.ledger.store import Ledger
from labassist.ledger.verdict import compare
from labassist.workspace import Workspace, new

pytestmark = [pytest.mark.fault, pytest.mark.ci]

JOB = ("run", "01-first-loop/train", "--profile", "tiny", *QUICK)


@pytest.fixture
def leash(workspace: Workspace) -> Leash:
    """The workspace's job waits at step 58 of its 60."""
    return Leash(workspace.root)


def start(leash: Leash, *more: str) -> Any:
    return answer(*JOB, *more, "--detach", cwd=leash.lab, env=leash.env)


def supervisor(folder: Path) -> int:
    return int((folder / "supervised").read_text())


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_an_adopted_run_finishes_with_its_own_exit_status_and_a_whole_curve(
    leash: Leash, workspace: Workspace
) -> None:
    run = start(leash)
    folder = run_folder(workspace.root, run)
    wait_for_step(folder, 3)
    watching = supervisor(folder)
    os.kill(watching, signal.SIGKILL)
    wait_until(lambda: gone(watching), "the supervisor's death")
    labassist("attach", cwd=workspace.root)  # or the run's shim: whoever sees it first
    leash.free()
    closed = wait_closed(workspace.root, run)
    assert (closed["state"], closed["exit"], closed["step"]) == ("finished", 0, 60)
    assert len(closed["adopted"]) == 1
    assert list(curves.read_curve(folder / "metrics-rank0.jsonl").steps) == list(range(1, 61))
    assert answer("audit", cwd=workspace.root)["ok"] is True


def test_an_unwatched_run_that_ended_is_closed_by_its_own_end_marker(
    leash: Leash, workspace: Workspace
) -> None:
    run = start(leash)
    folder = run_folder(workspace.root, run)
    wait_for_step(folder, 3)
    os.kill(supervisor(folder), signal.SIGKILL)
    leash.free()
    wait_until(lambda: (folder / "end.json").exists(), "the shim's end marker")
    closed = wait_closed(workspace.root, run)
    assert (closed["state"], closed["exit"], closed["step"]) == ("finished", 0, 60)


def test_sigterm_to_the_supervisor_is_a_request_for_a_checkpoint(leash: Leash, workspace: Workspace) -> None:
    run = start(leash)
    folder = run_folder(workspace.root, run)
    wait_for_step(folder, 3)
    os.kill(supervisor(folder), signal.SIGTERM)
    closed = wait_closed(workspace.root, run)
    assert closed["state"] == "stopped"
    assert (folder / "checkpoints" / f"step-{closed['step']:08d}" / "COMMIT").exists()


def test_a_trainer_that_will_not_stop_is_killed_after_the_grace_time(workspace: Workspace) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    run = answer(
        "run",
        "--detach",
        "--",
        sys.executable,
        "-c",
        stubborn,
        cwd=workspace.root,
        env={"LABASSIST_GRACE": "0.5"},
    )
    folder = run_folder(workspace.root, run)
    wait_until(
        lambda: (folder / "log.txt").exists() and b"ready" in (folder / "log.txt").read_bytes(), "the command"
    )
    labassist("stop", run["id"], cwd=workspace.root)
    closed = wait_closed(workspace.root, run)
    assert (closed["state"], closed["signal"]) == ("stopped", signal.SIGKILL)


@pytest.mark.parametrize(
    ("code", "state", "exit_status", "number", "returned"),
    [
        ("pass", "finished", 0, None, 0),
        ("raise SystemExit(7)", "failed", 7, None, 7),
        ("import os; os.kill(os.getpid(), 9)", "failed", None, 9, 137),
    ],
)
def test_a_command_keeps_its_exit_status(
    workspace: Workspace, code: str, state: str, exit_status: int | None, number: int | None, returned: int
) -> None:
    labassist("run", "--", sys.executable, "-c", code, cwd=workspace.root, status=returned)
    run = answer("show", "@last", cwd=workspace.root)
    assert (run["state"], run.get("exit"), run.get("signal")) == (state, exit_status, number)


def test_in_a_copy_of_the_ledger_a_living_run_is_only_unseen(
    leash: Leash, workspace: Workspace, tmp_path: Path
) -> None:
    leash.upto(28)
    run = start(leash)
    folder = run_folder(workspace.root, run)
    wait_for_step(folder, 25)
    copy = tmp_path / "copy"
    # A checkpoint that is being written has another name a moment later.
    shutil.copytree(workspace.root, copy, symlinks=True, ignore=shutil.ignore_patterns("*.tmp"))
    assert "unseen since" in labassist("runs", cwd=copy).stdout
    assert answer("show", run["id"], cwd=copy)["state"] == "running"
    assert answer("attach", cwd=copy)["runs"] == []
    assert "running" in labassist("runs", cwd=workspace.root).stdout
    done = labassist("resume", run["id"], "--set=steps=40", "--json", cwd=copy)
    assert "may still be alive" in done.stderr
    assert json.loads(done.stdout)["resumed_from"]["step"] >= 10
    labassist("stop", run["id"], cwd=workspace.root)
    assert wait_closed(workspace.root, run)["state"] == "stopped"


@pytest.fixture
def readonly(workspace: Workspace) -> Iterator[Workspace]:
    """A workspace with one run, on a file system that cannot be written."""
    train(workspace.root)
    root = str(workspace.root)
    if os.getuid() == 0:  # modes do not stop root
        subprocess.run(["mount", "--bind", root, root], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
    else:
        subprocess.run(["chmod", "-R", "a-w", root], check=True)
    yield workspace
    if os.getuid() == 0:
        subprocess.run(["umount", root], check=True)
    else:
        subprocess.run(["chmod", "-R", "u+w", root], check=True)


def test_a_read_only_ledger_can_be_read_and_says_why_it_records_nothing(readonly: Workspace) -> None:
    assert "finished" in labassist("runs", cwd=readonly.root).stdout
    assert answer("show", "@last", cwd=readonly.root)["step"] == 60
    assert answer("audit", cwd=readonly.root)["ok"] is True
    done = labassist(*JOB, cwd=readonly.root, status=2)
    assert len(done.stderr.splitlines()) == 1
    assert "cannot record here" in done.stderr
    done = labassist("note", "@last", "x", cwd=readonly.root, status=2)
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, just above the least that a run asks for."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=230m", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_on_a_full_disk_earlier_records_stay_readable_and_the_run_can_go_on(
    small_disk: Path, tmp_path: Path
) -> None:
    root = new(small_disk / "lab").workspace.root
    leash = Leash(root, tmp_path)
    leash.upto(120)
    longer = ("--set=steps=300", "--set=every.checkpoint=50", "--set=every.eval=300")
    whole = train(root, *longer)
    filler = small_disk / "filler"
    run = start(leash, *longer)
    folder = run_folder(root, run)
    wait_for_step(folder, 120)
    with contextlib.suppress(OSError), open(filler, "wb") as file:
        while True:
            file.write(b"x" * 65536)
            file.flush()
    leash.free()
    wait_until(lambda: gone(trainer(folder)), "the trainer's end")
    for words in (("runs",), ("show", whole["id"]), ("attach",)):
        labassist(*words, cwd=root)
    filler.unlink()
    closed = wait_closed(root, run)
    assert closed["state"] == "failed"
    assert "No space left" in closed["reason"]
    resumed = answer("resume", run["id"], cwd=root)
    assert resumed["state"] == "finished"
    with Ledger.open(root / "ledger") as ledger:
        ours, theirs = curves.joined(ledger, whole["id"]), curves.joined(ledger, resumed["id"])
    assert compare(ours, theirs, None).verdict == "BITWISE"
    assert answer("audit", cwd=root)["ok"] is True


def trainer(folder: Path) -> int:
    return int(json.loads((folder / "alive").read_text() or "{}").get("trainer", 0))


def test_a_flooded_log_is_shown_inert(workspace: Workspace) -> None:
    flood = (
        "import sys\n"
        "line = b'\\x1b[31mred\\x1b]0;title\\x07\\x1b[2J ' + b'x' * 200 + b'\\n'\n"
        "for _ in range(100): sys.stdout.buffer.write(line * 4700)\n"
        "sys.stdout.buffer.write(b'no newline at the end')\n"
    )
    labassist("run", "--", sys.executable, "-c", flood, cwd=workspace.root)
    run = answer("show", "@last", cwd=workspace.root)
    assert (run_folder(workspace.root, run) / "log.txt").stat().st_size > 100_000_000
    shown = subprocess.Popen(
        [sys.executable, "-m", "labassist", "logs", "@last"], cwd=workspace.root, stdout=subprocess.PIPE
    )
    assert shown.stdout is not None
    first = shown.stdout.read(1_000_000)
    shown.kill()
    shown.wait()
    shown.stdout.close()
    assert b"\x1b" not in first
    assert b"\x07" not in first
    assert first.startswith(b"red xxx")


def test_two_runs_at_once_do_not_mix(leash: Leash, workspace: Workspace) -> None:
    runs = [start(leash, f"--set=optim.lr=0.00{n}") for n in (1, 2)]
    for run in runs:
        wait_for_step(run_folder(workspace.root, run), 58)
    leash.free()
    closed = [wait_closed(workspace.root, run) for run in runs]
    assert [run["state"] for run in closed] == ["finished", "finished"]
    for run in closed:
        assert list(curves.read_curve(run_folder(workspace.root, run) / "metrics-rank0.jsonl").steps) == [
            *range(1, 61)
        ]
    assert closed[0]["last"]["loss"] != closed[1]["last"]["loss"]
    assert answer("audit", cwd=workspace.root)["ok"] is True


def test_a_trainer_killed_alone_is_failed_with_its_signal(leash: Leash, workspace: Workspace) -> None:
    run = start(leash)
    folder = run_folder(workspace.root, run)
    wait_for_step(folder, 2)
    kill_trainer(folder, signal.SIGSEGV)
    closed = wait_closed(workspace.root, run)
    assert (closed["state"], closed["signal"]) == ("failed", signal.SIGSEGV)


LAUNCHER = """\
import subprocess, sys
code = '''
import time
from labassist import record
recorder = record.start(total_steps=5000)
for step in range(1, 5001):
    recorder.record(step, loss=1 / step)
    time.sleep(0.01)
'''
subprocess.run([sys.executable, "-c", code], start_new_session=True)
"""


def test_what_still_records_ends_with_a_launcher_that_was_killed(workspace: Workspace) -> None:
    (workspace.root / "launcher.py").write_text(LAUNCHER)
    run = answer("run", "--detach", "--", sys.executable, "launcher.py", cwd=workspace.root)
    folder = run_folder(workspace.root, run)
    wait_for_step(folder, 3)
    with (folder / "events-rank0.jsonl").open() as file:
        rank = json.loads(file.readline())["pid"]
    kill_trainer(folder)
    closed = wait_closed(workspace.root, run)
    assert (closed["state"], closed["signal"]) == ("failed", signal.SIGKILL) and gone(rank)
    assert closed["warnings"][0].startswith(
        "its command was killed, and with it 1 process that still recorded"
    )
    found = answer("audit", cwd=workspace.root)
    assert found["ok"] and not any("after byte" in line for line in found["not_covered"])


def test_a_command_that_ends_badly_because_it_was_asked_to_stop_is_stopped(workspace: Workspace) -> None:
    slow = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); print('up', flush=True); time.sleep(60)"
    run = answer("run", "--detach", "--", sys.executable, "-c", slow, cwd=workspace.root)
    log = run_folder(workspace.root, run) / "log.txt"
    wait_until(lambda: log.exists() and b"up" in log.read_bytes(), "the command")
    labassist("stop", "--wait", run["id"], cwd=workspace.root, status=None)
    closed = wait_closed(workspace.root, run)
    assert (closed["state"], closed["exit"]) == ("stopped", 3)
    assert closed["reason"] == "asked to stop: stopped before its first step, exit status 3"
