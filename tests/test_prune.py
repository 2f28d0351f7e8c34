"""prune keeps what its policy says, and a dropped checkpoint leaves its hashes behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import little
import pytest
from command import answer, labassist, wait_closed, wait_for_step

from labassist.errors import LedgerError
from labassist.ledger import audit as auditing
from labassist.ledger.problems import Problem
from labassist.ledger.store import Ledger
from labassist.ledger.verify import verify
from labassist.runs import prune as pruning
from labassist.runs.prune import Policy, prune

pytestmark = pytest.mark.ci


@pytest.fixture
def lab(little_lab: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(little_lab, tmp_path / "lab", symlinks=True))


def ids(lab: Path) -> list[str]:
    return [run["id"] for run in answer("runs", cwd=lab)["runs"]]


def test_a_dry_run_says_what_goes_and_drops_nothing(lab: Path) -> None:
    whole, first, second = ids(lab)
    before = {run: little.steps_of(lab, run) for run in ids(lab)}
    found = answer("prune", "--keep-last", "1", "--dry-run", cwd=lab)
    assert found["dry_run"] is True
    assert [one["step"] for one in found["dropped"] if one["run"] == whole] == [5, 10, 15, 20, 25, 30, 35]
    assert {"run": second, "step": 60, "why": "one of the last 1 of its lineage"} in found["kept"]
    assert {run: little.steps_of(lab, run) for run in ids(lab)} == before
    assert first in {one["run"] for one in found["dropped"]}


def test_the_last_of_a_lineage_stay_across_its_segments(lab: Path) -> None:
    whole, first, second = ids(lab)
    answer("prune", "--keep-last", "4", cwd=lab)
    assert little.steps_of(lab, whole) == [25, 30, 35, 40]
    assert little.steps_of(lab, second) == [40, 50, 60]
    assert little.steps_of(lab, first) == [30]
    found = answer("audit", cwd=lab)
    assert found["ok"] is True
    assert found["checked"]["pruned checkpoints"] == 4 + 2
    assert answer("fsck", cwd=lab)["findings"] == []


def test_multiples_the_best_and_those_named_stay(lab: Path) -> None:
    whole, first, _second = ids(lab)
    words = ("--keep-last", "1", "--keep-every", "20", "--keep", f"{whole}:15", "--keep-best")
    found = answer("prune", whole, *words, cwd=lab)
    reasons = {one["step"]: one["why"] for one in found["kept"]}
    assert reasons[15] == "named" and reasons[20] == "a multiple of 20"
    assert "lowest val_loss of its lineage" in reasons.values() or 40 in reasons
    assert set(little.steps_of(lab, whole)) == set(reasons)
    assert 10 in little.steps_of(lab, first)  # another lineage was not asked for


def test_a_best_that_cannot_be_told_loses_no_checkpoint(lab: Path) -> None:
    before = {run: little.steps_of(lab, run) for run in ids(lab)}
    done = labassist("prune", "--keep-last", "1", "--keep-best", "val_los", cwd=lab, status=2)
    assert "no run has a series 'val_los', did you mean val_loss?" in done.stderr
    assert {run: little.steps_of(lab, run) for run in ids(lab)} == before
    nans = little.record(lab, 20, 5, "5", "10", "15", "20")["id"]
    found = answer("prune", nans, "--keep-last", "1", "--keep-best", "loss", cwd=lab)
    assert found["dropped"] == [] and little.steps_of(lab, nans) == [5, 10, 15, 20]
    assert found["kept"][0]["why"] == "its lineage has no loss at a checkpoint"


@pytest.mark.fault
def test_an_audit_that_a_prune_comes_into_finds_nothing_missing(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def after_a_prune(folder: Path) -> list[Problem]:
        """`verify`, which an audit calls when it has read the journal and no checkpoint yet."""
        with Ledger.open(folder) as ledger:
            assert prune(ledger, Policy(last=1)).dropped
        return verify(folder)

    whole = ids(lab)[0]
    monkeypatch.setattr(auditing, "verify", after_a_prune)
    assert auditing.audit(lab / "ledger", lab).problems == []
    monkeypatch.undo()
    shutil.rmtree(lab / "ledger" / "runs" / whole / "checkpoints" / "step-00000040")
    assert [problem.code for problem in auditing.audit(lab / "ledger", lab).problems] == [
        "checkpoint-missing"
    ]


@pytest.mark.slow
def test_a_tombstone_keeps_every_hash_and_stands_in_the_chain(lab: Path) -> None:
    whole = ids(lab)[0]
    with Ledger.open(lab / "ledger") as ledger:
        before = ledger.checkpoint(whole, 5) or {}
    answer("prune", "--keep-last", "1", cwd=lab)
    with Ledger.open(lab / "ledger") as ledger:
        after = ledger.checkpoint(whole, 5) or {}
        assert after == {**before, "pruned": True}
        manifest = ledger.objects.get_json(after["manifest"])
    assert set(manifest["files"]) == {"model.safetensors", "state.json"} and manifest["tensors"]["model/x"]
    entry = next(line for line in little.lines(lab) if line["kind"] == "prune" and line["run"] == whole)
    assert len(entry["put"]["checkpoints"]) == 7


@pytest.mark.slow
def test_resume_and_replay_say_what_is_gone(lab: Path) -> None:
    _whole, first, second = ids(lab)
    answer("prune", "--keep-last", "1", cwd=lab)
    assert little.steps_of(lab, first) == []
    done = labassist("resume", first, cwd=lab, status=2)
    assert "it was pruned" in done.stderr and "no complete checkpoint" in done.stderr
    done = labassist("replay", second, "--segment", cwd=lab, status=2)
    assert "it was pruned; its hashes are kept" in done.stderr
    replayed = answer("replay", second, cwd=lab)
    assert replayed["verdict"] == "BITWISE"
    assert replayed["compared"]["tensors"] == 1


@pytest.mark.slow
@pytest.mark.fault
def test_a_prune_that_died_after_its_tombstones_is_finished_by_the_next(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ids(lab)[0]

    def dies(folder: Path) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, Ledger.open(lab / "ledger") as ledger:
        patch.setattr(pruning, "_remove", dies)
        with pytest.raises(KeyboardInterrupt):
            prune(ledger, Policy(last=1))
    assert "pruned-present" in labassist("audit", cwd=lab, status=1).stdout
    assert {one["code"] for one in answer("fsck", cwd=lab)["findings"]} >= {"pruned-present"}
    found = answer("prune", "--keep-last", "1", cwd=lab)
    assert found["dropped"] == [] and len(found["finished"]) > 7
    assert little.steps_of(lab, whole) == [40]
    assert answer("audit", cwd=lab)["ok"] is True


@pytest.mark.fault
def test_a_folder_that_cannot_be_removed_is_said_and_never_looks_whole(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ids(lab)[0]

    def refuse(folder: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(pruning.shutil, "rmtree", refuse)
    with (
        Ledger.open(lab / "ledger") as ledger,
        pytest.raises(LedgerError, match="run `labassist prune` again"),
    ):
        prune(ledger, Policy(last=1))
    assert 5 not in little.steps_of(lab, whole)


@pytest.mark.slow
def test_a_lineage_that_runs_is_left_alone(lab: Path) -> None:
    run = little.start(lab, every=5, pause=0.002)
    folder = lab / "ledger" / "runs" / run["id"]
    wait_for_step(folder, 30)
    found = answer("prune", "--keep-last", "1", cwd=lab)
    assert {one["why"] for one in found["kept"] if one["run"] == run["id"]} == {"its lineage still runs"}
    labassist("stop", run["id"], cwd=lab)
    wait_closed(lab, run)


def test_bad_policies_are_refused(lab: Path) -> None:
    whole = ids(lab)[0]
    assert "always kept" in labassist("prune", "--keep-last", "0", cwd=lab, status=2).stderr
    done = labassist("prune", "--keep", f"{whole}:7", cwd=lab, status=2)
    assert "no checkpoint at step 7" in done.stderr and "there are 5, 10" in done.stderr
