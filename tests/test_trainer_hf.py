"""A stock script with transformers' Trainer and the one line: every step recorded, replayed, resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import answer, labassist, run_folder, wait_closed, wait_for_step

from labassist.ledger import curves
from labassist.ledger.store import Ledger
from labassist.record.inspect import committed, folder_of, inspect
from labassist.runs import life
from labassist.workspace import new

SCRIPTS = Path(__file__).parent / "scripts"
ONE = ("--threads", "1", "--", "python", "hf_trainer.py")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = new(tmp_path_factory.mktemp("hf") / "lab").workspace.root
    shutil.copy(SCRIPTS / "hf_trainer.py", root)
    return root


@pytest.fixture(scope="module")
def whole(lab: Path) -> Any:
    """One run of the script from beginning to end."""
    return _run(lab)


def _run(lab: Path, *words: str, status: int = 0, **env: str) -> Any:
    done = labassist("run", "--json", *ONE, *words, cwd=lab, status=status, env=env)
    return json.loads(done.stdout)


def by_hand(lab: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a person does, without labassist."""
    return subprocess.run(
        [sys.executable, "hf_trainer.py", *words],
        cwd=lab,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def results_differ(lab: Path, a: Any, b: Any) -> list[str]:
    found = answer("diff", a["id"], b["id"], cwd=lab)
    unlike = [name for name, series in found["curves"].items() if series["first_difference"]]
    assert found["curves"]["loss"]["compared"] and found["checkpoints"]["compared"]
    return unlike + ["checkpoints"] * bool(found["checkpoints"]["first_difference"])


def test_every_step_is_recorded_whatever_logging_steps_says(lab: Path, whole: Any) -> None:
    assert (whole["state"], whole["step"], whole["total_steps"]) == ("finished", 30, 30)
    curve = curves.read_curve(run_folder(lab, whole) / "metrics-rank0.jsonl")
    assert set(curve.series) == {"loss", "lr", "grad_norm", "batch"}
    assert all(list(series) == list(range(1, 31)) for series in curve.series.values())
    rates = [curve.series["lr"][step] for step in (1, 2, 5)]
    assert rates == [0.0, 0.0005, 0.002]  # the rate of the update itself: warm-up over four
    assert len(set(curve.series["batch"].values())) == 30
    assert whole["config"]["gradient_accumulation_steps"] == 2
    assert whole["tokens_per_step"] == 2 * 4 * 24


def test_the_flags_the_seeds_and_the_generators_are_read_back(lab: Path, whole: Any) -> None:
    with Ledger.open(lab / "ledger") as ledger:
        kept = ledger.objects.get_json(whole["randomness"])
    assert kept["flags"]["deterministic_algorithms"] is True
    assert kept["flags"]["cublas_workspace_config"] == ":4096:8"
    assert kept["seeds"] == {"seed": 42, "by": "the trainer", "model_before": True, "trainer": 42}
    assert {"python", "numpy", "torch"} <= set(kept["rng"])


def test_checkpoints_are_sealed_as_the_trainer_saves_them(lab: Path, whole: Any) -> None:
    found = committed(run_folder(lab, whole))
    assert list(found) == [5, 10, 15, 20, 25, 30]
    manifest = inspect(found[10])
    assert manifest["states"] == {
        "model": "present", "optimizer": "present", "scheduler": "present", "scaler": "not_applicable",
        "rng": "present", "data_position": "derived",
    }  # fmt: skip
    assert folder_of(found[10], manifest) == lab / "out" / "checkpoint-10"
    names = set(manifest["tensors"])
    assert {
        "optimizer/state.0.exp_avg",
        "model/model.norm.weight",
        "scheduler/values",
        "rng_state/cpu",
    } <= names
    assert subprocess.run(
        ["git", "status", "--porcelain"], cwd=lab, capture_output=True, text=True
    ).stdout == ("?? hf_trainer.py\n")


def test_it_replays_bit_for_bit(lab: Path, whole: Any) -> None:
    replayed = answer("replay", whole["id"], cwd=lab)
    assert replayed["verdict"] == "BITWISE", replayed
    assert (replayed["compared"]["steps"], replayed["compared"]["series"]) == (30, 4)
    assert replayed["compared"]["tensors"] > 60


@pytest.mark.fault
def test_killed_in_the_middle_of_an_epoch_it_resumes_exactly(lab: Path, whole: Any) -> None:
    # 26 batches an epoch and 2 an update: the checkpoint at 20 lies inside the second epoch. Dropout draws
    # from the same generators as the augmentation.
    killed = _run(lab, status=137, KILL_AT="23")
    assert killed["signal"] == signal.SIGKILL
    resumed = answer("resume", killed["id"], cwd=lab)
    assert resumed["resumed_from"] == {"run": killed["id"], "step": 20}
    assert results_differ(lab, whole, resumed) == []
    assert answer("replay", resumed["id"], cwd=lab)["verdict"] == "BITWISE"


def test_without_the_line_augmentation_differs_at_the_first_resumed_step(lab: Path, tmp_path: Path) -> None:
    told = []
    for name, env in (("whole", {}), ("rest", {"RESUME": str(tmp_path / "out" / "checkpoint-10")})):
        losses = tmp_path / f"{name}.json"
        done = by_hand(lab, LINE="none", OUTPUT=str(tmp_path / "out"), STEPS="15", LOSSES=str(losses), **env)
        assert done.returncode == 0, done.stderr
        told.append(json.loads(losses.read_text()))
    assert len(told[1]) == 10
    assert told[0][-10] != told[1][0]


def test_audit_covers_the_folders_of_the_trainer(lab: Path, whole: Any) -> None:
    again = _run(lab, "limit", OUTPUT="out2")
    assert again["state"] == "finished"
    clean = answer("audit", again["id"], cwd=lab)
    gone = [line for line in clean["not_covered"] if "is gone" in line]
    assert clean["ok"] and len(gone) == 4  # save_total_limit=2 kept the last two
    file = lab / "out2" / "checkpoint-30" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    found = answer("audit", again["id"], cwd=lab, status=1)
    [problem] = found["problems"]
    assert problem["code"] == "checkpoint-altered" and "model/" in problem["tensor"]


def test_the_callback_form_and_a_stop_with_a_checkpoint(lab: Path) -> None:
    run = _start_detached(lab, LINE="callback", STEPS="40000", OUTPUT="out3")
    wait_for_step(run_folder(lab, run), 12)
    labassist("stop", run["id"], cwd=lab)
    stopped = wait_closed(lab, run)
    assert (stopped["state"], stopped["exit"]) == ("stopped", 0)
    assert max(committed(run_folder(lab, run))) == stopped["step"] < 40000
    with Ledger.open(lab / "ledger") as ledger:
        seeds = ledger.objects.get_json(stopped["randomness"])["seeds"]
    assert seeds == {"seed": 11, "by": "the script", "model_before": False, "trainer": 42}


def _start_detached(lab: Path, **env: str) -> Any:
    return json.loads(labassist("run", "--detach", "--json", *ONE, cwd=lab, env=env).stdout)


def test_run_alone_in_a_workspace_the_script_enlists_itself(lab: Path) -> None:
    done = by_hand(lab, "exact", OUTPUT="out4")
    assert done.returncode == 0, done.stderr
    assert "labassist: recorded as run" in done.stderr
    run = answer("show", "@last", cwd=lab)
    closed = wait_closed(lab, run)
    assert (closed["state"], closed["exit"], closed["step"]) == ("finished", 0, 30)
    assert (closed["mode"], closed["seed"], closed["threads"]) == ("exact", 11, 1)
    assert closed["argv"] == ["python", "hf_trainer.py", "exact"]
    assert "adopted" not in closed
    assert not life.held(run_folder(lab, run) / "alive")
    assert answer("replay", run["id"], cwd=lab)["verdict"] == "BITWISE"


@pytest.mark.fault
def test_alone_its_failure_and_its_death_are_known(lab: Path) -> None:
    failed = by_hand(lab, "fail", STEPS="6", OUTPUT="out5")
    assert failed.returncode == 1
    closed = wait_closed(lab, answer("show", "@last", cwd=lab))
    assert (closed["state"], closed["step"]) == ("failed", 6)
    killed = by_hand(lab, "exact", KILL_AT="13", OUTPUT="out6")
    assert killed.returncode == -signal.SIGKILL
    lost = wait_closed(lab, answer("show", "@last", cwd=lab))
    assert lost["state"] == "lost"
    resumed = answer("resume", lost["id"], cwd=lab, env={"OUTPUT": "out6"})
    assert (resumed["state"], resumed["step"], resumed["resumed_from"]["step"]) == ("finished", 30, 10)


def test_outside_a_workspace_it_trains_and_says_so(tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / "hf_trainer.py", tmp_path)
    done = by_hand(tmp_path, STEPS="2")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("labassist:")]
    assert said == ["labassist: training unrecorded: no workspace is around the current folder"]


RANKS = ("-m", "torch.distributed.run", "--nproc-per-node=2", "hf_trainer.py")


def test_each_rank_has_its_files_and_both_replay_elsewhere(lab: Path, tmp_path: Path) -> None:
    # The script writes outside the workspace: its replay must not write over that.
    env = {"STEPS": "10", "OUTPUT": str(tmp_path / "out"), "MASTER_PORT": "29617"}
    done = labassist("run", "--json", "--threads", "1", "--", "python", *RANKS, cwd=lab, env=env)
    run = json.loads(done.stdout)
    folder = run_folder(lab, run)
    ranks = [curves.read_curve(folder / f"metrics-rank{rank}.jsonl") for rank in (0, 1)]
    assert [list(one.steps) for one in ranks] == [list(range(1, 11))] * 2
    assert ranks[0].series["batch"] != ranks[1].series["batch"]
    manifest = inspect(committed(folder)[10])
    assert manifest["folder"] == str(tmp_path / "out" / "checkpoint-10")
    assert {name for name in manifest["files"] if "rng" in name} == {"rng_state_0.pth", "rng_state_1.pth"}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    replayed = answer("replay", run["id"], cwd=lab, env=env)
    assert replayed["verdict"] == "BITWISE" and replayed["compared"]["series"] == 8
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_ranks_stop_together(lab: Path, tmp_path: Path) -> None:
    env = {"STEPS": "40000", "OUTPUT": str(tmp_path / "out"), "MASTER_PORT": "29618"}
    words = ("run", "--detach", "--json", "--threads", "1", "--", "python", *RANKS)
    run = json.loads(labassist(*words, cwd=lab, env=env).stdout)
    folder = run_folder(lab, run)
    wait_for_step(folder, 5)
    labassist("stop", run["id"], cwd=lab)
    stopped = wait_closed(lab, run)
    last = [curves.read_curve(folder / f"metrics-rank{rank}.jsonl").steps[-1] for rank in (0, 1)]
    assert last[0] == last[1] == max(committed(folder)) == int((folder / "stop-at").read_text())
    assert stopped["state"] == "stopped"
