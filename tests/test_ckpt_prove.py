"""`ckpt prove` and `ckpt ablate` on the first lab's job, whole and with a state taken out of its script."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from command import QUICK, answer, labassist

from labassist.workspace import new

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
JOB = ("01-first-loop/train", "--profile", "tiny", *QUICK)
LONGER = ("--set=steps=600", "--set=every.checkpoint=100", "--set=every.eval=300")
"""For kills: from one checkpoint to the next it takes far longer than to see that the one is there."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new(tmp_path_factory.mktemp("prove") / "lab").workspace.root


def without(lab: Path, name: str, line: str, instead: str = "") -> str:
    """Make a copy of the lab whose script lacks a line, as one that keeps a state, and return the copy's job."""
    import shutil

    folder = lab / "labs" / name
    shutil.copytree(lab / "labs" / "01-first-loop", folder)
    script = (folder / "train.py").read_text()
    assert line in script
    script = script.replace(line, instead).replace("labs/01-first-loop/", f"labs/{name}/")
    (folder / "train.py").write_text(script)
    subprocess.run(["git", "add", "."], cwd=lab, check=True)
    subprocess.run(["git", "commit", "-qm", name], cwd=lab, check=True)
    return f"{name}/train"


def test_a_killed_run_is_proved_bit_for_bit(lab: Path) -> None:
    found = answer("ckpt", "prove", *JOB, *LONGER, "--kill", cwd=lab, deadline=600)
    assert found["verdict"] == "BITWISE"
    assert found["culprit"] is None and found["first_difference"] is None
    assert found["compared"]["steps"] == 600 and found["compared"]["tensors"] > 20
    assert found["compared"]["series"] >= 5
    assert found["resumed_from"]["step"] == 300
    assert found["rng"] and all(one["equal"] for one in found["rng"])
    assert found["check"]["verdict"] == "EXACT"
    killed = answer("show", found["runs"]["interrupted"], cwd=lab)
    assert killed["state"] == "failed" and killed["signal"] == 9
    assert answer("show", found["runs"]["resumed"], cwd=lab)["verdict"]["verdict"] == "BITWISE"


@pytest.mark.fault
def test_a_run_whose_machine_goes_away_is_proved_bit_for_bit(lab: Path) -> None:
    found = answer("ckpt", "prove", *JOB, *LONGER, "--vanish", cwd=lab, deadline=600)
    assert found["verdict"] == "BITWISE"
    gone = answer("show", found["runs"]["interrupted"], cwd=lab)
    assert gone["state"] == "lost" and "exit" not in gone and "signal" not in gone


@pytest.mark.parametrize(
    ("how", "at", "steps"),
    [((), (12, 24, 36), 60), (("--kill", *LONGER), (100, 300, 400), 600)],
    ids=["stop", "kill"],
)
def test_several_interruptions_are_proved_as_one(
    lab: Path, how: tuple[str, ...], at: tuple[int, ...], steps: int
) -> None:
    ats = [word for step in at for word in ("--at", str(step))]
    found = answer("ckpt", "prove", *JOB, *ats, *how, cwd=lab, deadline=600)
    assert found["verdict"] == "BITWISE" and found["compared"]["steps"] == steps
    assert [one["resumed_from"] for one in found["interruptions"]] == list(at)
    assert found["resumed_from"]["step"] == at[-1]


@pytest.mark.parametrize(
    ("name", "line", "culprit", "resumed_step", "series"),
    [
        ("02-no-sampler", '        "data_position": windows,\n', "data_position", 1, "batch"),
        ("03-no-optimizer", '        "optimizer": optimizer,\n', "optimizer", 2, "loss"),
        ("04-no-schedule", '        "scheduler": schedule,\n', "scheduler", 2, "lr"),
    ],
)
def test_a_job_that_keeps_less_diverges_and_the_culprit_is_named(
    lab: Path, name: str, line: str, culprit: str, resumed_step: int, series: str
) -> None:
    job = without(lab, name, line)
    found = answer("ckpt", "prove", job, *JOB[1:], "--at", "25", cwd=lab, deadline=600, status=4)
    assert found["verdict"] == "DIVERGED"
    assert found["culprit"] == culprit
    first = found["first_difference"]
    assert (first["step"], first["resumed_step"], first["series"]) == (
        25 + resumed_step,
        resumed_step,
        series,
    )
    code = f"{culprit.replace('_', '-')}-missing"
    assert code in {one["code"] for one in found["check"]["findings"]}


def test_a_job_that_cannot_go_on_is_said_with_where_it_says_why(lab: Path) -> None:
    line = "    step = recorder.restore(states)\n"
    job = without(lab, "05-no-way-on", line, f"{line}    assert step == 0, 'cannot load this'\n")
    found = answer("ckpt", "prove", job, *JOB[1:], "--at", "25", cwd=lab, deadline=600, status=5)
    resumed = found["runs"]["resumed"]
    why, *lacks = found["likely_causes"]
    assert why == f"the resumed run failed: exit status 1 (labassist logs {resumed})"
    assert any("tensors, first" in line for line in lacks) and len(lacks) < 12
    assert "cannot load this" in labassist("logs", resumed, cwd=lab).stdout


def test_an_ablation_shows_what_each_state_is_worth(lab: Path) -> None:
    found = answer("ckpt", "ablate", *JOB, "--at", "30", cwd=lab, deadline=600)
    rows = {row["state"]: row for row in found["states"]}
    assert list(rows) == [None, "model", "optimizer", "scheduler", "scaler", "rng", "data_position"]
    assert rows[None]["verdict"] == "BITWISE"
    assert rows["scaler"]["verdict"] == "not_applicable"
    first = {state: row["first_divergent_step"] for state, row in rows.items()}
    assert first == {
        None: None,
        "model": 31,
        "optimizer": 32,
        "scheduler": 32,
        "scaler": None,
        "rng": 31,
        "data_position": 31,
    }
    assert rows["data_position"]["first_difference"]["series"] == "batch"
    for state in ("model", "optimizer", "scheduler", "rng", "data_position"):
        assert rows[state]["meaning"]
        assert abs(rows[state]["peak"]["difference"]) >= abs(rows[state]["final"]["difference"]) > 0
        assert rows[state]["final"]["step"] == 60
        run = answer("show", rows[state]["run"], cwd=lab)
        order = json.loads((lab / "ledger" / "runs" / run["id"] / "order.json").read_text())
        assert run["dropped"] == order["resume"]["drop"] == [state]
    assert rows["model"]["peak"]["difference"] > 0.1
    assert found["curves"]["steps"] == list(range(31, 61))
    assert len(found["curves"]["loss"]["optimizer"]) == 30
    refused = labassist("replay", rows["rng"]["run"], cwd=lab, status=2).stderr
    assert "left out rng on purpose" in refused
    again = answer("replay", rows["rng"]["run"], "--segment", cwd=lab)
    assert again["verdict"] == "BITWISE"


def test_one_state_can_be_asked_for_and_the_answer_read(lab: Path) -> None:
    done = labassist("ckpt", "ablate", *JOB, "--drop", "rng", cwd=lab, deadline=600)
    assert "rng" in done.stdout and "(nothing)" in done.stdout and "optimizer" not in done.stdout
    assert "BITWISE" in done.stdout and "DIVERGED" in done.stdout


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("prove", *JOB, "--at", "59"), "fewer than 3 steps"),
        (("prove", *JOB, "--at", "0"), "--at 0"),
        (("prove", *JOB, "--at", "40", "--at", "20"), "not after step 40"),
        (("prove", *JOB, "--kill", "--vanish"), "not allowed with"),
        (("prove",), "no JOB"),
        (("ablate", *JOB, "--drop", "weights"), "unknown state"),
        (("prove", "01-first-loop/trian"), "did you mean"),
    ],
)
def test_bad_input_is_one_line_and_starts_nothing(lab: Path, words: tuple[str, ...], what: str) -> None:
    before = len(answer("runs", cwd=lab)["runs"])
    done = labassist("ckpt", *words, cwd=lab, status=2)
    assert what in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""
    assert len(answer("runs", cwd=lab)["runs"]) == before
