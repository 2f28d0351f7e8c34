"""What a newcomer does wrong with the one line, and what is said then."""

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

from labassist.workspace import new

SCRIPTS = Path(__file__).parent / "scripts"
ONE = ("--threads", "1", "--", "python", "hf_trainer.py")
pytestmark = [pytest.mark.slow, pytest.mark.fault]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = new(tmp_path_factory.mktemp("newcomer") / "lab").workspace.root
    for name in ("hf_trainer.py", "newcomer.py"):
        shutil.copy(SCRIPTS / name, root)
    return root


def run(lab: Path, *words: str, status: int = 0, **env: str) -> tuple[Any, str]:
    done = labassist("run", "--json", *ONE, *words, cwd=lab, status=status, env=env)
    return json.loads(done.stdout), done.stderr


def by_hand(lab: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "newcomer.py", *words],
        cwd=lab,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def said(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("labassist:")]


def test_checkpoints_of_the_model_only_are_said_at_the_start_and_at_the_resume(lab: Path) -> None:
    killed, stderr = run(lab, "bare", status=128 + signal.SIGKILL, STEPS="16", KILL_AT="14", OUTPUT="bare")
    line = "its checkpoints hold the model only: a resume cannot be exact. Mend: save_only_model=False"
    assert stderr.count(f"warning: {line}") == 1
    assert killed["warnings"] == [line]
    assert (run_folder(lab, killed) / "log.txt").read_text().count(f"labassist: {line}\n") == 1
    done = labassist("resume", "--json", killed["id"], cwd=lab, env={"STEPS": "16", "OUTPUT": "bare"})
    resumed = json.loads(done.stdout)
    step = resumed["resumed_from"]["step"]
    lacking = f"not an exact resume: the checkpoint at step {step} holds no optimizer, scheduler, rng: "
    assert done.stderr.count(lacking) == 1
    assert resumed["warnings"][0].startswith(lacking)
    assert "the learning rate starts anew" in resumed["warnings"][0]


def test_a_whole_checkpoint_is_resumed_without_a_warning(lab: Path) -> None:
    env = {"STEPS": "16", "OUTPUT": "sound"}
    killed, _stderr = run(lab, status=128 + signal.SIGKILL, KILL_AT="14", **env)
    resumed = answer("resume", killed["id"], cwd=lab, env=env)
    assert (resumed["state"], resumed["step"]) == ("finished", 16)
    assert "warnings" not in killed and "warnings" not in resumed


def test_what_is_no_trainer_is_one_line_with_the_mend(lab: Path) -> None:
    done = by_hand(lab, "none")
    assert done.returncode == 1
    assert said(done.stderr) == [
        "labassist: record.attach: a NoneType is no Trainer of transformers or TRL; "
        "give it the trainer that you made, before trainer.train()"
    ]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("what", "line"),
    [
        (
            "late",
            "attached after training: nothing of that was recorded. Mend: attach before trainer.train()",
        ),
        ("never", "nothing was recorded: this trainer did not train after record.attach"),
    ],
)
def test_a_line_that_comes_too_late_is_said_and_kept(lab: Path, what: str, line: str) -> None:
    done = by_hand(lab, what, OUTPUT=f"out-{what}")
    assert done.returncode == 0, done.stderr
    assert said(done.stderr)[1:] == [f"labassist: {line}"]
    closed = wait_closed(lab, answer("show", "@last", cwd=lab))
    assert closed["warnings"] == [line]


def test_a_second_trainer_is_said_by_run_too(lab: Path) -> None:
    words = ("run", "--", "python", "newcomer.py", "second")
    done = labassist(*words, cwd=lab, env={"OUTPUT": "out-second"})
    line = (
        "warning: one trainer a process is recorded, and this is another: start it by a command of its own, "
    )
    line += "or declare what it makes with --out"
    assert done.stderr.splitlines().count(line) == 1
    assert f"  {line}" in done.stdout.splitlines()


def test_an_evaluation_after_the_training_is_recorded_and_a_resume_at_the_last_step_is_whole(
    lab: Path,
) -> None:
    words = ("--", "python", "newcomer.py", "measured")
    whole = answer("run", *words, cwd=lab, env={"OUTPUT": "out-whole", "STEPS": "4"})
    assert (whole["step"], whole["state"]) == (4, "finished") and "eval_loss" in whole["last"]
    assert (
        answer("replay", whole["id"], cwd=lab, env={"OUTPUT": "out-whole", "STEPS": "4"})["verdict"]
        == "BITWISE"
    )
    env = {"OUTPUT": "out-cut", "STEPS": "4"}
    cut = answer("run", *words, cwd=lab, env={**env, "CRASH": "1"}, status=9)
    resumed = answer("resume", cut["id"], cwd=lab, env=env)
    assert resumed["resumed_from"]["step"] == 4 and "warnings" not in resumed
    assert (resumed["step"], resumed["total_steps"], resumed["state"]) == (4, 4, "finished")
    assert resumed["config"] == cut["config"]
    assert answer("replay", resumed["id"], cwd=lab, env=env)["verdict"] == "BITWISE"


def test_a_ledger_that_cannot_be_written_costs_no_training(tmp_path: Path) -> None:
    root = new(tmp_path / "lab").workspace.root
    shutil.copy(SCRIPTS / "newcomer.py", root)
    (root / "ledger" / "runs").write_text("in the way")
    done = by_hand(root, "plain")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "the script goes on"), done.stderr
    [line] = said(done.stderr)
    assert line.startswith("labassist: training unrecorded: the ledger cannot be written: ")
    assert "Traceback" not in done.stderr


def test_two_runs_in_one_folder_are_said_and_ctrl_c_alone_ends_with_130_and_a_checkpoint(lab: Path) -> None:
    env = {"OMP_NUM_THREADS": "1", "OUTPUT": "shared"}
    first = subprocess.Popen(
        [sys.executable, "newcomer.py", "plain"],
        cwd=lab,
        env={**os.environ, **env, "PAUSE": "0.1", "STEPS": "4000"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        while not _live(lab):
            assert first.poll() is None
        run_id = _live(lab)[0]
        wait_for_step(lab / "ledger" / "runs" / run_id, 3)
        second = json.loads(
            labassist("run", "--json", "--", "python", "newcomer.py", "plain", cwd=lab, env=env).stdout
        )
        assert "saves into" in second["warnings"][0] and "shared" in second["warnings"][0]
        first.send_signal(signal.SIGINT)
        out, err = first.communicate(timeout=60)
    finally:
        first.kill()
    assert first.returncode == 130, err
    assert "the script goes on" not in out and "Traceback" not in err
    stopped = wait_closed(lab, {"id": run_id})
    assert (stopped["state"], stopped["exit"], stopped["reason"]) == ("stopped", 130, "stopped by ctrl-c")
    assert said(err)[-1].endswith(f"as ctrl-c asked; go on with: labassist resume {run_id}")
    assert "warnings" not in stopped
    # What it goes on with is said where it differs, and no step is shown as a part of fewer.
    done = labassist(
        "resume", run_id, cwd=lab, env={**env, "STEPS": str(stopped["step"] + 2), "DECAY": "0.1"}
    )
    assert f"warning: it goes on with other settings than run {run_id}: " in done.stderr
    assert (
        "weight_decay - / 0.1" in done.stderr and f"total_steps 4000 / {stopped['step'] + 2}" in done.stderr
    )


def _live(lab: Path) -> list[str]:
    return [run["id"] for run in answer("attach", cwd=lab)["runs"]]
