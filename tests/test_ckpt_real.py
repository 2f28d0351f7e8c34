"""Real checkpoints of the real libraries, checked; and what the fast tests' layouts say is what these say.

Needs the `train` extra, and lightning, torchdata and deepspeed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ckpt_layouts
import ckpt_real
import pytest
import torch

from labassist.resume.check import Report, Several, check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def report(path: Path, *args: Any) -> Report:
    found = check(path, *args)
    assert isinstance(found, Report)
    return found


def codes(found: Report, *severities: str) -> set[str]:
    return {one.code for one in found.found.findings if one.severity in (severities or ("warning", "error"))}


def like(real: Report, layout: Report) -> None:
    """Demand that a layout is judged as the library's own checkpoint is."""
    assert real.found.format == layout.found.format
    assert real.found.states == layout.found.states
    assert real.verdict == layout.verdict
    assert codes(real, "notice", "warning", "error") == codes(layout, "notice", "warning", "error")


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ckpt_real.hf(tmp_path_factory.mktemp("hf"))


def test_a_trainers_checkpoints_are_exact_in_and_between_epochs(hf: Path, tmp_path: Path) -> None:
    found = check(hf.parent)
    assert isinstance(found, Several)
    assert [(one.verdict, one.found.step) for one in found.reports] == [
        ("EXACT", 4),
        ("EXACT", 8),
        ("EXACT", 12),
    ]
    assert found.reports[0].found.facts["mid_epoch"] and not found.reports[2].found.facts["mid_epoch"]
    like(report(hf), report(ckpt_layouts.hf(tmp_path)))


@pytest.mark.parametrize(("length", "blamed"), [(24, set()), (25, {"plan-dataset"}), (48, {"plan-dataset"})])
def test_a_trainers_epochs_tell_the_length_of_the_dataset(hf: Path, length: int, blamed: set[str]) -> None:
    for one in sorted(hf.parent.glob("checkpoint-*")):
        assert codes(report(one, {"dataset_length": length})) == blamed


def test_a_trainer_without_its_schedule_is_degraded(hf: Path, tmp_path: Path) -> None:
    path = shutil.copytree(hf, tmp_path / hf.name)
    (path / "scheduler.pt").unlink()
    found = report(path)
    assert found.verdict == "DEGRADED"
    assert codes(found) == {"scheduler-missing", "optimizer-skipped"}


def test_only_the_model_is_said_to_be_only_the_model(tmp_path: Path) -> None:
    like(
        report(ckpt_real.hf(tmp_path / "real", save_only_model=True)),
        report(ckpt_layouts.hf_only_model(tmp_path / "layout")),
    )


def test_early_stopping_forgets_its_patience(tmp_path: Path) -> None:
    from transformers import EarlyStoppingCallback

    more = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "save_steps": 4}
    stop = EarlyStoppingCallback(early_stopping_patience=50, early_stopping_threshold=100.0)
    path = ckpt_real.hf(tmp_path, [stop], metric_for_best_model="loss", **more)
    assert codes(report(path)) == {"early-stopping-reset"}


def test_an_adapter_is_exact_and_one_of_nf4_has_the_dtype_fault(tmp_path: Path) -> None:
    like(report(ckpt_real.trl(tmp_path / "plain")), report(ckpt_layouts.hf_peft(tmp_path / "layout")))
    found = report(ckpt_real.trl(tmp_path / "nf4", nf4=True))
    assert found.verdict == "DEGRADED" and codes(found) == {"adapter-dtype"}


def test_accelerate(tmp_path: Path) -> None:
    found = report(ckpt_real.accelerate(tmp_path / "real"))
    assert found.found.format == "accelerate" and codes(found) == set()
    assert found.found.states["data_position"] == "absent" and found.verdict == "DEGRADED"
    found = report(ckpt_real.accelerate(tmp_path / "stateful", stateful=True))
    like(found, report(ckpt_layouts.accelerate(tmp_path / "layout")))
    assert found.verdict == "EXACT"


def test_lightning(tmp_path: Path) -> None:
    found = check(ckpt_real.lightning(tmp_path / "real"))
    assert isinstance(found, Several) and len(found.reports) == 4
    for one in found.reports:
        like(one, report(ckpt_layouts.lightning(tmp_path / f"layout-{one.found.step}")))


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_says_when_its_epoch_is_over(tmp_path: Path, workers: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(list(range(8)), batch_size=2, num_workers=workers)
    batches = iter(loader)
    next(batches)
    torch.save(loader.state_dict(), tmp_path / "loader.pt")
    found = report(tmp_path / "loader.pt")
    like(found, report(ckpt_layouts.torchdata(tmp_path / "layout", workers=workers)))
    for _ in range(3):
        next(batches)
    torch.save(loader.state_dict(), tmp_path / "loader.pt")
    assert codes(report(tmp_path / "loader.pt", {"dataset_length": 8})) == {"epoch-boundary"}
    assert codes(report(tmp_path / "loader.pt", {"dataset_length": 9})) == set()
    again = StatefulDataLoader(list(range(8)), batch_size=2, num_workers=workers)
    again.load_state_dict(torch.load(tmp_path / "loader.pt", weights_only=False))
    assert list(again) == []  # the epoch that is skipped


def test_lightning_skips_an_epoch_after_the_last_batch_of_a_stateful_loader(tmp_path: Path) -> None:
    paths = ckpt_real.lightning(tmp_path / "real", every=4, stateful=True)
    found = report(paths / "epoch=0-step=4.ckpt")
    assert codes(found) == {"epoch-boundary"}
    assert ckpt_real.lightning_epochs(paths / "epoch=0-step=4.ckpt", tmp_path / "again") == {2}  # and not 1


def two_ranks(kind: str, out: Path) -> Path:
    script = Path(__file__).parent / "scripts" / "ckpt_two_ranks.py"
    words = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
        kind,
        str(out),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, env=env, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.parametrize("kind", ["zero2", "zero3"])
def test_deepspeed_with_two_processes(tmp_path: Path, kind: str) -> None:
    path = two_ranks(kind, tmp_path / "real")
    found = report(path)
    assert found.found.world_size == 2 and found.found.step == 3
    like(found, report(ckpt_layouts.deepspeed(tmp_path / "layout", stage=int(kind[4:]))))
    assert "zero-world-size" in codes(report(path, {"world_size": 1}))
    next(path.glob("*/*rank_1*optim_states.pt")).unlink()
    assert "rank-file-missing" in codes(report(path))


def test_a_trainer_with_deepspeed(tmp_path: Path) -> None:
    path = two_ranks("hf-zero2", tmp_path / "real") / "checkpoint-4"
    found = report(path)
    assert found.found.world_size == 2
    like(found, report(ckpt_layouts.hf_deepspeed(tmp_path / "layout")))
    (path / "latest").write_text("global_step9")
    assert codes(report(path)) == {"latest-wrong"}


def test_a_distributed_checkpoint_of_two_processes(tmp_path: Path) -> None:
    path = two_ranks("fsdp", tmp_path / "real")
    found = report(path)
    assert (found.found.world_size, found.found.step, found.found.scheduler_step) == (2, 3, 3)
    like(found, report(ckpt_layouts.dcp(tmp_path / "layout")))
    (path / "__1_0.distcp").unlink()
    assert "rank-file-missing" in codes(report(path))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_ranks("hf", tmp_path_factory.mktemp("two")) / "checkpoint-4"


def test_a_trainer_with_two_processes(two: Path) -> None:
    found = report(two)
    assert found.verdict == "EXACT" and found.found.world_size == 2
    assert codes(report(two, {"world_size": 2})) == set()
    assert "world-size-changed" in codes(report(two, {"world_size": 1}))


def test_one_process_to_two(hf: Path) -> None:
    assert "world-size-changed" in codes(report(hf, {"world_size": 2}))


def test_the_rank_files_of_two_processes_are_told_apart(two: Path, tmp_path: Path) -> None:
    path = shutil.copytree(two, tmp_path / two.name)
    first, second = path / "rng_state_0.pth", path / "rng_state_1.pth"
    kept = {file: file.read_bytes() for file in (first, second)}
    second.unlink()
    found = report(path)
    assert codes(found) == {"rng-rank-missing"} and found.verdict == "DEGRADED"
    first.write_bytes(kept[second])
    second.write_bytes(kept[first])
    assert codes(report(path)) == {"ranks-swapped"}
    first.write_bytes(kept[first])
    found = report(path)
    assert codes(found) == {"rank-copied"}
    assert [one.rank for one in found.found.findings if one.code == "rank-copied"] == [1]
