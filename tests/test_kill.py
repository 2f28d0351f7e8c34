"""kill -9 at any moment: what was committed is resumed from, and the whole equals an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
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
from labassist.workspace import new

pytestmark = [pytest.mark.fault, pytest.mark.ci]

JOB = ("run", "01-first-loop/train", "--profile", "tiny", *QUICK)

STUBBORN = (
    "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; "
    "print('ready', flush=True); time.sleep(600)"
)


@pytest.fixture(scope="module")
def leash(tmp_path_factory: pytest.TempPathFactory) -> Leash:
    """A workspace whose first run went through undisturbed; those that `start` starts wait before their end."""
    root = new(tmp_path_factory.mktemp("kill") / "lab").workspace.root
    leash = Leash(root)
    train(root)
    return leash


@pytest.fixture
def lab(leash: Leash) -> Path:
    return leash.lab


def start(leash: Leash, *more: str) -> Any:
    return answer(*JOB, *more, "--detach", cwd=leash.lab, env=leash.env)


def committed(folder: Path) -> list[int]:
    return sorted(int(path.parent.name[5:]) for path in folder.glob("checkpoints/step-????????/COMMIT"))


def check_resumed(lab: Path, killed: Any) -> None:
    """Resume a killed run and hold the lineage against the undisturbed one."""
    whole = undisturbed(lab)
    folder = run_folder(lab, killed)
    before = committed(folder)
    done = labassist("resume", killed["id"], "--json", cwd=lab)
    resumed = json.loads(done.stdout)
    k = before[-1] if before else 0
    assert f"resumed from step {k}" in done.stderr
    assert resumed["resumed_from"] == {"run": killed["id"], "step": k}
    with Ledger.open(lab / "ledger") as ledger:
        own = curves.read_curve(run_folder(lab, resumed) / "metrics-rank0.jsonl")
        assert list(own.steps) == list(range(k + 1, 61))
        ours, theirs = curves.joined(ledger, whole), curves.joined(ledger, resumed["id"])
        tensors = [
            ledger.objects.get_json((ledger.checkpoint(run, 60) or {})["manifest"])["tensors"]
            for run in (whole, resumed["id"])
        ]
    found = compare(ours, theirs, (tensors[0], tensors[1]))
    assert found.verdict == "BITWISE", found
    assert found.steps == 60


def undisturbed(lab: Path) -> str:
    return str(answer("runs", "--where", "state=finished", cwd=lab)["runs"][0]["id"])


@pytest.mark.parametrize("step", [5, 35])
def test_a_killed_run_resumes_from_its_last_committed_step(leash: Leash, lab: Path, step: int) -> None:
    run = start(leash)
    wait_for_step(run_folder(lab, run), step)
    kill_trainer(run_folder(lab, run))
    killed = wait_closed(lab, run)
    assert (killed["state"], killed["signal"]) == ("failed", signal.SIGKILL)
    check_resumed(lab, killed)


def kill_in_a_save(leash: Leash, step: int, fsync: int) -> Any:
    """Kill a run inside the save at `step`, before this one of its fsyncs, and return its record."""
    leash.hold_save(step, fsync)
    try:
        run = start(leash)
        folder = run_folder(leash.lab, run)
        wait_until((folder / "checkpoints" / f"step-{step:08d}.tmp").exists, "a save in flight")
        kill_trainer(folder)
    finally:
        leash.hold_save(0)
    assert committed(folder) == list(range(10, step, 10))
    return wait_closed(leash.lab, run)


def test_killed_inside_a_save_the_checkpoint_before_it_stands(leash: Leash, lab: Path) -> None:
    check_resumed(lab, kill_in_a_save(leash, 20, 0))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_seeded_kills(leash: Leash, lab: Path) -> None:
    chance = random.Random(20261130)
    for trial in range(20):
        if trial % 4 == 0:
            killed = kill_in_a_save(leash, 10 * chance.randint(1, 5), chance.randint(0, 6))
        else:
            run = start(leash)
            wait_for_step(run_folder(lab, run), chance.randint(1, 58))
            kill_trainer(run_folder(lab, run))
            killed = wait_closed(lab, run)
        assert killed["state"] == "failed"
        check_resumed(lab, killed)


@pytest.mark.parametrize(("dropped", "series"), [("rng", "loss"), ("data_position", "batch")])
def test_without_a_state_the_resumed_run_diverges_at_its_first_step(
    leash: Leash, lab: Path, dropped: str, series: str
) -> None:
    run = start(leash)
    folder = run_folder(lab, run)
    wait_for_step(folder, 35)
    kill_trainer(folder)
    killed = wait_closed(lab, run)
    k = committed(folder)[-1]
    script = lab / "labs" / "01-first-loop" / "train.py"
    text = script.read_text()
    # The order's `drop` is what an ablation uses: here it is put there by hand, in the job itself.
    line = "    step = recorder.restore(states)\n"
    assert line in text
    drop = f"    import dataclasses\n    recorder.order = dataclasses.replace(order, resume=order.resume and dataclasses.replace(order.resume, drop=({dropped!r},)))\n"
    script.write_text(text.replace(line, drop + line))
    try:
        resumed = answer("resume", killed["id"], cwd=lab)
    finally:
        script.write_text(text)
    with Ledger.open(lab / "ledger") as ledger:
        found = compare(curves.joined(ledger, undisturbed(lab)), curves.joined(ledger, resumed["id"]), None)
    assert found.verdict == "DIVERGED"
    assert found.first_difference is not None
    assert (found.first_difference["step"], found.first_difference["series"]) == (k + 1, series)


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 23])
def test_ctrl_c_asks_for_a_checkpoint_and_the_resumed_lineage_replays_bitwise(
    leash: Leash, lab: Path, step: int
) -> None:
    """Step 0 is ctrl-c at once, before the trainer has even imported torch: it must hold all the same."""
    running = subprocess.Popen(
        [sys.executable, "-m", "labassist", *JOB],
        cwd=lab,
        env={**os.environ, **leash.env},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    run = {"id": running.stderr.readline().split()[1]}
    if step:
        wait_for_step(run_folder(lab, run), step)
    running.send_signal(signal.SIGINT)
    _out, talk = running.communicate()
    assert running.returncode == 130
    assert "asked for a checkpoint" in talk
    stopped = answer("show", run["id"], cwd=lab)
    assert stopped["state"] == "stopped"
    assert stopped["step"] < 60
    if step:
        assert committed(run_folder(lab, run))[-1] == stopped["step"]
    check_resumed(lab, stopped)
    if step:
        assert answer("replay", "@last", cwd=lab)["verdict"] == "BITWISE"
        assert answer("replay", "@last", "--segment", cwd=lab)["verdict"] == "BITWISE"
        assert answer("replay", run["id"], cwd=lab)["verdict"] == "BITWISE"


def test_ctrl_c_twice_kills(lab: Path) -> None:
    job = [sys.executable, "-m", "labassist", "run", "--", sys.executable, "-c", STUBBORN]
    running = subprocess.Popen(job, cwd=lab, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    folder = run_folder(lab, {"id": running.stderr.readline().split()[1]})
    wait_until(
        lambda: (folder / "log.txt").exists() and b"ready" in (folder / "log.txt").read_bytes(), "the command"
    )
    running.send_signal(signal.SIGINT)
    assert "asked for a checkpoint" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    running.send_signal(signal.SIGINT)
    _out, talk = running.communicate()
    assert running.returncode == 130
    assert talk.count("killing the run") == 1
    assert answer("show", folder.name, cwd=lab)["signal"] == signal.SIGKILL


def test_a_finished_or_living_run_is_not_resumed(leash: Leash, lab: Path) -> None:
    assert "finished all" in labassist("resume", undisturbed(lab), cwd=lab, status=2).stderr
    run = start(leash)
    wait_for_step(run_folder(lab, run), 1)
    assert "alive" in labassist("resume", run["id"], cwd=lab, status=2).stderr
    assert "still running" in labassist("replay", run["id"], cwd=lab, status=2).stderr
    labassist("stop", run["id"], cwd=lab)
    assert wait_closed(lab, run)["state"] == "stopped"


def test_without_a_supervisor_the_run_is_adopted_and_keeps_its_exit_status(leash: Leash, lab: Path) -> None:
    run = start(leash)
    folder = run_folder(lab, run)
    wait_for_step(folder, 5)
    supervisor = int((folder / "supervised").read_text())
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not alive(supervisor), "the supervisor's death")
    done = labassist("attach", "--json", cwd=lab)
    wait_until(lambda: answer("show", run["id"], cwd=lab).get("adopted"), "the adoption")
    assert [one["id"] for one in json.loads(done.stdout)["runs"]] == [run["id"]]
    kill_trainer(folder)
    closed = wait_closed(lab, run)
    assert (closed["state"], closed["signal"]) == ("failed", signal.SIGKILL)
    assert len(closed["adopted"]) == 1


def test_when_everything_is_killed_the_run_is_lost_and_can_be_resumed(leash: Leash, lab: Path) -> None:
    run = start(leash)
    folder = run_folder(lab, run)
    wait_for_step(folder, 25)
    pids = json.loads((folder / "alive").read_text())
    for pid in (int((folder / "supervised").read_text()), pids["shim"], pids["trainer"]):
        os.kill(pid, signal.SIGKILL)
    closed = wait_closed(lab, run)
    assert closed["state"] == "lost"
    assert closed["step"] >= 25
    check_resumed(lab, closed)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
