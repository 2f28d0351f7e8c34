"""The runs of an experiment: a kill waits for a save that has begun, and nobody's checkpoints are written over."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labassist.errors import InputError
from labassist.record import trainer_outputs
from labassist.record.protocol import Order
from labassist.resume import experiment
from labassist.runs import life


@pytest.mark.fault
@pytest.mark.parametrize(("due", "waits"), [(5, True), (0, False)])
def test_a_kill_waits_for_a_save_that_has_begun(due: int, waits: bool, tmp_path: Path) -> None:
    lock = life.take(tmp_path / "alive")
    assert lock is not None
    rows = [json.dumps({"step": step, "loss": 1.0}) + "\n" for step in range(1, 10)]
    (tmp_path / "metrics-rank0.jsonl").write_text("".join(rows))
    place = tmp_path / "checkpoints" / "step-00000005.manifest.json"
    place.parent.mkdir()

    over = threading.Event()

    def seal() -> None:
        over.wait(0.3 if waits else 30)
        place.write_text("{}")

    def end(_folder: Path) -> None:
        seen.append(place.exists())
        over.set()

    sealing = threading.Thread(target=seal)
    sealing.start()
    seen: list[bool] = []
    experiment._end_at(tmp_path, 8, due, end)
    assert seen == [waits]
    sealing.join()


def test_a_run_too_short_to_be_interrupted_says_how_many_steps_it_takes() -> None:
    with pytest.raises(InputError, match="2 steps are too few") as caught:
        experiment._fit([1], 2)
    assert caught.value.mend == "train 4 steps or more"
    with pytest.raises(InputError, match="leaves fewer") as caught:
        experiment._fit([6], 8)
    assert caught.value.mend == "choose from 1 to 5"
    experiment._fit([5], 8)


def attached(output: Path, workspace: Path, run: str) -> None:
    folder = workspace / "ledger" / "runs" / run
    trainer: Any = SimpleNamespace(args=SimpleNamespace(output_dir=str(output)))
    trainer_outputs.settle(trainer, Order(config={}, run=run, experiment=True, root=workspace, folder=folder))


def wrote(workspace: Path, run: str, path: Path, **order: Any) -> None:
    """Leave a checkpoint, with the manifest and the order of the run that wrote it."""
    path.mkdir(parents=True, exist_ok=True)
    folder = workspace / "ledger" / "runs" / run
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "order.json").write_text(json.dumps(order))
    manifest = {"folder": str(path.relative_to(workspace)), "files": {}, "run": run}
    step = int(path.name.rpartition("-")[2])
    (folder / "checkpoints" / f"step-{step:08d}.manifest.json").write_text(json.dumps(manifest))


def test_an_experiment_does_not_write_over_the_checkpoints_of_others(tmp_path: Path) -> None:
    output = tmp_path / "outputs" / "mine"
    attached(output, tmp_path, "first")
    wrote(tmp_path, "first", output / "checkpoint-5", experiment=True)
    wrote(tmp_path, "second", output / "checkpoint-10", resume={"run": "first"})
    attached(output, tmp_path, "third")
    wrote(tmp_path, "real", output / "checkpoint-10")
    with pytest.raises(InputError, match="checkpoint-10"):
        attached(output, tmp_path, "fourth")
    (output / "checkpoint-10").rmdir()
    (output / "checkpoint-15").mkdir()
    with pytest.raises(InputError, match="checkpoint-15"):
        attached(output, tmp_path, "fifth")
