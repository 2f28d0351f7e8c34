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
from command import answer, labassist, run_folder

from labassist.workspace import new

SCRIPTS = Path(__file__).parent / "scripts"
ONE = ("--threads", "1", "--", "python", "hf_trainer.py")
pytestmark = [pytest.mark.slow, pytest.mark.fault]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = new(tmp_path_factory.mktemp("newcomer") / "lab").workspace.root
    shutil.copy(SCRIPTS / "hf_trainer.py", root)
    return root


def run(lab: Path, *words: str, status: int = 0, **env: str) -> tuple[Any, str]:
    done = labassist("run", "--json", *ONE, *words, cwd=lab, status=status, env=env)
    return json.loads(done.stdout), done.stderr


def by_hand(lab: Path, *words: str, script: str = "hf_trainer.py", **env: str) -> Any:
    return subprocess.run(
        [sys.executable, script, *words],
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
