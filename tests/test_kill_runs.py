"""kill -9 of trainer, supervisor and reader at random moments; many recording at once; a disk that fills up.

The trainer is the small one of `little.py` with the real recorder; test_kill.py has the same with torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import little
import pytest
from command import answer, labassist, run_folder, wait_closed, wait_for_step, wait_until

from labassist.ledger import curves
from labassist.ledger.audit import audit
from labassist.ledger.store import Ledger
from labassist.ledger.verdict import compare
from labassist.runs import life
from labassist.runs.recover import recover
from labassist.workspace import new

pytestmark = [pytest.mark.fault, pytest.mark.ci]

STEPS, EVERY, PAUSE = 150, 10, 0.004
READERS = (
    ("runs",),
    ("show", "@last"),
    ("curve", "@last", "--csv", "-"),
    ("audit",),
    ("fsck",),
    ("logs", "@last"),
)


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return new(tmp_path / "lab").workspace.root


def kill_readers(lab: Path, chance: random.Random) -> None:
    words = chance.choice(READERS)
    reader = subprocess.Popen(
        [sys.executable, "-m", "labassist", *words],
        cwd=lab,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(chance.uniform(0, 0.4))
    reader.kill()
    reader.wait()


def kill_one(folder: Path, who: str) -> None:
    """Kill one process of a run, where it still is one."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        pid = (
            int((folder / "supervised").read_text()) if who == "supervisor" else life.pids(folder)["trainer"]
        )
        os.kill(pid, signal.SIGKILL)


def closed(lab: Path, run: dict[str, Any]) -> dict[str, Any]:
    """Return the run's record when nobody lives any more; the next labassist process adopts and closes."""
    folder = run_folder(lab, run)

    def over() -> bool:
        with Ledger.open(lab / "ledger") as ledger:
            recover(ledger)
            return (ledger.run(run["id"]) or {})["state"] != "running" and not life.held(
                folder / "supervised"
            )

    wait_until(over, "the end of the run")
    with Ledger.open(lab / "ledger") as ledger:
        return ledger.run(run["id"]) or {}


def kill_trials(lab: Path, trials: int) -> None:
    """Kill the trainer, the supervisor or a reader of each run at a random moment; nothing acknowledged is lost."""
    chance = random.Random(trials)
    whole = little.record(lab, STEPS, EVERY)
    for trial in range(trials):
        who = ("trainer", "supervisor", "reader")[trial % 3]
        acks = lab.parent / f"acks-{trial}"
        detached = ("--detach",)
        run = little.record(lab, STEPS, EVERY, pause=PAUSE, before=detached, env={"LITTLE_ACKS": str(acks)})
        folder = run_folder(lab, run)
        wait_until(lambda folder=folder: life.pids(folder), "the trainer's start")
        time.sleep(chance.uniform(0, 0.8))
        if who == "reader":
            kill_readers(lab, chance)
        else:
            kill_one(folder, who)
        done = closed(lab, run)
        said = [int(line) for line in acks.read_text().split()] if acks.exists() else []
        kept = curves.read_curve(folder / "metrics-rank0.jsonl")
        assert set(said) <= set(kept.steps), (trial, who)
        if who != "trainer":
            assert (done["state"], done["exit"], said) == ("finished", 0, list(range(1, STEPS + 1))), (
                trial,
                who,
            )
        elif done["state"] != "finished":
            assert done["state"] in ("failed", "lost"), (trial, done)
            if not little.steps_of(lab, run["id"]):
                continue  # a command without a checkpoint is not gone on with
            done = answer("resume", run["id"], cwd=lab)
            assert done["resumed_from"]["step"] == little.steps_of(lab, run["id"])[-1]
        with Ledger.open(lab / "ledger") as ledger:
            ours, theirs = (curves.joined(ledger, one["id"]) for one in (whole, done))
            assert compare(ours, theirs, None).verdict == "BITWISE", (trial, who)
            assert ledger.journal.verify() == []
    found = audit(lab / "ledger", lab)
    assert found.ok, found.problems


def test_kills_at_random_moments(lab: Path) -> None:
    kill_trials(lab, 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thirty_kills_at_random_moments(lab: Path) -> None:
    kill_trials(lab, 30)


@pytest.mark.slow
def test_a_resume_says_which_checkpoints_it_could_not_use_and_why(lab: Path) -> None:
    failed = little.record(lab, 60, 10, status=7, env={"LITTLE_CRASH": "33"})
    checkpoints = run_folder(lab, failed) / "checkpoints"
    os.truncate(checkpoints / "step-00000030" / "model.safetensors", 40)
    shutil.rmtree(checkpoints / "step-00000020")
    said = labassist("resume", failed["id"], cwd=lab).stderr.splitlines()
    assert any(
        line.startswith("note: passed over step-00000030 (model.safetensors): the file has 40 bytes")
        for line in said
    )
    gone = f"note: the checkpoint at step 20 of run {failed['id']} is not here: somebody removed it"
    assert gone in said and f"resumed from step 10 of run {failed['id']}" in said


def test_eight_record_at_once_and_nothing_is_mixed(lab: Path) -> None:
    little.write(lab)
    words = [sys.executable, "-m", "labassist", "--json", "run", "--"]
    recorders = [
        subprocess.Popen(
            [*words, "python", little.SCRIPT, str(40 + number), "10", "0.01"], cwd=lab, stdout=subprocess.PIPE, text=True
        )
        for number in range(8)
    ]  # fmt: skip
    documents = [json.loads(one.communicate(timeout=120)[0]) for one in recorders]
    assert [one.returncode for one in recorders] == [0] * 8
    runs = {run["id"]: run for run in answer("runs", cwd=lab)["runs"]}
    assert len(runs) == 8
    for number, document in enumerate(documents):
        assert runs[document["id"]]["step"] == 40 + number
        curve = curves.read_curve(run_folder(lab, document) / "metrics-rank0.jsonl")
        assert list(curve.steps) == list(range(1, 41 + number))
        assert little.steps_of(lab, document["id"]) == [10, 20, 30, 40]
    found = audit(lab / "ledger", lab)
    assert found.ok, found.problems
    assert len({line["n"] for line in little.lines(lab)}) == len(little.lines(lab))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 320 MiB: a run wants 200 free before it starts."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=320m", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_in_a_checkpoint_keeps_the_one_before(lab: Path, disk: Path) -> None:
    whole = little.record(lab, 60, 10)
    env = {"LABASSIST_ARTIFACTS": str(disk), "LITTLE_BALLAST": str(90 << 20)}
    failed = little.record(lab, 60, 10, status=1, env=env)
    assert (failed["state"], failed["step"]) == ("failed", 40)
    assert "No space left" in labassist("logs", failed["id"], cwd=lab).stdout
    assert little.steps_of(lab, failed["id"]) == [10, 20, 30]
    assert audit(lab / "ledger", lab).ok
    labassist("prune", failed["id"], "--keep-last", "1", cwd=lab)
    resumed = answer("resume", failed["id"], cwd=lab)
    assert resumed["resumed_from"]["step"] == 30
    with Ledger.open(lab / "ledger") as ledger:
        ours, theirs = (curves.joined(ledger, one["id"]) for one in (whole, resumed))
    assert compare(ours, theirs, None).verdict == "BITWISE"
    assert audit(lab / "ledger", lab).ok


@pytest.mark.slow
def test_a_disk_that_fills_up_under_the_curve_keeps_what_was_recorded(disk: Path) -> None:
    lab = new(disk / "lab").workspace.root
    acks = disk.parent / "acks"
    run = little.record(lab, 5000, 50, pause=0.002, before=("--detach",), env={"LITTLE_ACKS": str(acks)})
    folder = run_folder(lab, run)
    wait_for_step(folder, 60)
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(max(1, min(1 << 20, shutil.disk_usage(disk).free))))
    wait_until(lambda: not life.held(folder / "alive"), "the trainer's end")
    # What is known is shown while nothing can be written.
    assert answer("runs", cwd=lab)["runs"][0]["id"] == run["id"]
    filler.unlink()
    done = wait_closed(lab, run)
    assert done["state"] == "failed"
    assert "No space left" in done["reason"]  # its log had no room
    said = [int(line) for line in acks.read_text().split()]
    assert said == list(curves.read_curve(folder / "metrics-rank0.jsonl").steps)
    resumed = answer("resume", run["id"], "--detach", cwd=lab)
    # The line of a step may still have had room where its checkpoint had none.
    assert resumed["resumed_from"]["step"] == little.steps_of(lab, run["id"])[-1] >= said[-1] - 50
    labassist("stop", resumed["id"], cwd=lab)
    assert wait_closed(lab, resumed)["state"] == "stopped"
    assert audit(lab / "ledger", lab).ok
