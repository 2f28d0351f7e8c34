"""The main promise: a recorded run can be replayed and resumed bit for bit, and what differs is named."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import answer, labassist, run_folder, train
from tinydb import TinyDB

from labassist.ledger import curves
from labassist.ledger.store import Ledger
from labassist.ledger.verdict import compare
from labassist.workspace import new

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one recorded run, shared by the tests that only read or add."""
    root = new(tmp_path_factory.mktemp("exact") / "lab").workspace.root
    train(root)
    return root


def last(lab: Path) -> Any:
    return answer("show", "@last", cwd=lab)


def test_the_view_a_stock_tinydb_reads_equals_the_runs_command(lab: Path) -> None:
    stock = TinyDB(lab / "ledger" / "view.json", access_mode="r")
    kept = [dict(document) for document in stock.all()]
    assert kept == answer("runs", cwd=lab)["runs"]
    assert kept[0]["state"] == "finished"


def test_a_run_records_what_it_is(lab: Path) -> None:
    run = last(lab)
    assert run["exit"] == 0
    assert run["step"] == 60
    assert run["config"]["optim.lr"] == 0.001
    assert len(json.dumps(run, separators=(",", ":"))) <= 3072
    objects = lab / "ledger" / "objects"
    randomness = json.loads((objects / run["randomness"]).read_text())
    assert randomness["flags"]["deterministic_algorithms"] is True
    assert "torch" in json.dumps(json.loads((objects / run["environment"]).read_text()))
    assert run["inputs"][0]["stored"] is True
    curve = curves.read_curve(run_folder(lab, run) / "metrics-rank0.jsonl")
    assert {"loss", "lr", "grad_norm", "batch", "val_loss"} <= set(curve.series)
    assert list(curve.steps) == list(range(1, 61))


def test_a_replay_is_bitwise_and_leaves_nothing_behind(lab: Path) -> None:
    before = snapshot(lab)
    replayed = answer("replay", "@last", cwd=lab)
    assert replayed["verdict"] == "BITWISE"
    assert replayed["compared"]["steps"] == 60
    assert replayed["compared"]["tensors"] > 20
    assert snapshot(lab) == before
    assert not list((lab / ".labassist" / "scratch").iterdir())
    assert answer("show", replayed["run"], cwd=lab)["verdict"]["verdict"] == "BITWISE"
    assert last(lab)["id"] == replayed["replay_of"]


def test_a_replay_trains_without_the_originals_curve_and_checkpoints(lab: Path, tmp_path: Path) -> None:
    original = run_folder(lab, last(lab))
    for name in ("metrics-rank0.jsonl", "checkpoints"):
        shutil.move(original / name, tmp_path / name)
    try:
        replayed = answer("replay", "@last", cwd=lab, status=5)
        assert replayed["verdict"] == "INCOMPLETE"
    finally:
        for name in ("metrics-rank0.jsonl", "checkpoints"):
            shutil.move(tmp_path / name, original / name)
    again = answer("show", replayed["run"], cwd=lab)
    assert (again["state"], again["step"]) == ("finished", 60)
    with Ledger.open(lab / "ledger") as ledger:
        ours, theirs = (curves.joined(ledger, run) for run in (replayed["replay_of"], again["id"]))
    assert compare(ours, theirs, None).verdict == "BITWISE"


def test_one_ulp_of_the_learning_rate_diverges_where_it_first_shows(lab: Path) -> None:
    moved = math.nextafter(0.001, 1.0)
    other = train(lab, f"--set=optim.lr={moved!r}")
    assert other["config"]["optim.lr"] == moved
    with Ledger.open(lab / "ledger") as ledger:
        first = ledger.find("@-2")["id"]
        found = compare(curves.joined(ledger, first), curves.joined(ledger, other["id"]), None)
    assert found.verdict == "DIVERGED"
    # The rate is warm-up or cosine times the base: the first step at which the products differ.
    rates = [
        curves.read_curve(run_folder(lab, {"id": run}) / "metrics-rank0.jsonl")
        for run in (first, other["id"])
    ]
    expected = next(
        step for step in rates[0].steps if rates[0].series["lr"][step] != rates[1].series["lr"][step]
    )
    assert found.first_difference is not None
    assert (found.first_difference["step"], found.first_difference["series"]) == (expected, "lr")


@pytest.mark.slow
def test_changed_code_is_captured_whole_and_replayed_from_the_record(lab: Path) -> None:
    script = lab / "labs" / "01-first-loop" / "train.py"
    original = script.read_text()
    base = train(lab)
    (lab / "labs" / "01-first-loop" / "start.py").write_text("WIDTH = 0.03\n")
    staged = original.replace(
        "from corpus import load\n", "from corpus import load\nfrom start import WIDTH\n"
    )
    script.write_text(staged)
    subprocess.run(["git", "add", "labs/01-first-loop/train.py"], cwd=lab, check=True)
    script.write_text(staged.replace('if "out" in name else 0.02', 'if "out" in name else WIDTH'))
    before = snapshot(lab)
    changed = train(lab)
    assert snapshot(lab) == before
    assert changed["code"]["digest"] != base["code"]["digest"]
    with Ledger.open(lab / "ledger") as ledger:
        found = compare(curves.joined(ledger, base["id"]), curves.joined(ledger, changed["id"]), None)
    assert found.first_difference is not None
    assert (found.first_difference["step"], found.first_difference["series"]) == (1, "loss")
    for run in (base, changed):
        assert answer("replay", run["id"], cwd=lab)["verdict"] == "BITWISE"
    assert snapshot(lab) == before
    subprocess.run(["git", "reset", "--hard", "--quiet"], cwd=lab, check=True)
    (lab / "labs" / "01-first-loop" / "start.py").unlink()


@pytest.mark.slow
@pytest.mark.fault
def test_a_replay_on_another_labassist_uses_the_recorded_one(lab: Path, tmp_path: Path) -> None:
    run = train(lab)
    other = tmp_path / "installed"
    shutil.copytree(Path(__file__).parents[1] / "labassist", other / "labassist")
    module = other / "labassist" / "record" / "determinism.py"
    text = module.read_text()
    assert "torch.manual_seed(seed)" in text
    module.write_text(text.replace("torch.manual_seed(seed)", "torch.manual_seed(seed + 1)"))
    env = {"PYTHONPATH": str(other)}
    assert answer("replay", run["id"], cwd=lab, env=env)["verdict"] == "BITWISE"
    replayed = answer("replay", run["id"], "--current-labassist", cwd=lab, status=4, env=env)
    assert replayed["verdict"] == "DIVERGED"
    assert replayed["first_difference"]["step"] == 1


@pytest.mark.slow
@pytest.mark.fault
def test_nan_is_recorded_bit_for_bit_and_marks_the_run(lab: Path) -> None:
    run = train(lab, "--set=optim.lr=1e30", "--set=clip=off")
    assert run["state"] == "finished"
    assert "loss is nan at step" in run["health"]
    assert run["last"]["loss"].startswith("nan:")
    assert "finished !" in labassist("runs", cwd=lab).stdout
    assert answer("replay", run["id"], cwd=lab)["verdict"] == "BITWISE"
    stopped = train(lab, "--set=optim.lr=1e30", "--set=clip=off", "--set=on_nan=stop")
    assert (stopped["state"], stopped["exit"]) == ("stopped", 0)
    assert "stopped itself: loss is nan" in stopped["reason"]


def test_where_the_machine_differs_the_replay_says_so_and_does_not_run(lab: Path) -> None:
    run = train(lab)
    with Ledger.open(lab / "ledger") as ledger:
        described = ledger.objects.get_json(run["environment"])
        described["distributions"] = [
            "torch==1.0" if entry.startswith("torch==") else entry for entry in described["distributions"]
        ]
        ledger.change(
            "note", run["id"], lambda doc: {**doc, "environment": ledger.objects.put_json(described)}
        )
    replayed = answer("replay", run["id"], cwd=lab, status=6)
    assert (replayed["verdict"], replayed["run"]) == ("INCOMPARABLE", "")
    assert "torch: recorded 1.0" in replayed["likely_causes"][0]
    assert answer("replay", run["id"], "--force", cwd=lab)["verdict"] == "BITWISE"


def snapshot(lab: Path) -> tuple[str, str, list[str]]:
    """What must not change: the status, the index, and the object store of the person's repository."""
    status = subprocess.run(
        ["git", "--no-optional-locks", "status", "--porcelain"],
        cwd=lab,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    index = hashlib.sha256((lab / ".git" / "index").read_bytes()).hexdigest()
    objects = sorted(str(path.relative_to(lab)) for path in (lab / ".git" / "objects").rglob("*"))
    return status, index, objects
