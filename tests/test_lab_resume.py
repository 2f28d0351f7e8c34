"""Lab 03 as it is shipped: its files, its exercise, and all of its runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import answer

from labassist.workspace import Workspace

ROOT = Path(__file__).resolve().parent.parent
LAB = ROOT / "labs" / "03-resume"


def test_the_lab_reads_without_a_fault(workspace: Workspace) -> None:
    found = answer("labs", "lint", "--static", LAB.name, cwd=workspace.root)
    assert found["ok"], found["labs"][0]["problems"]


@pytest.mark.slow
def test_the_exercise_loses_all_but_the_weights_as_given_and_nothing_when_solved(tmp_path: Path) -> None:
    folder = shutil.copytree(LAB, tmp_path / LAB.name)
    shutil.copy(LAB / "solutions" / "mine.py", folder / "solved.py")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    states = ("model", "optimizer", "scheduler", "scaler", "data_position")
    for script, kept in (("mine.py", ("model",)), ("solved.py", states)):
        done = subprocess.run(
            [sys.executable, folder / script, "--check"], env=env, capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout) == {state: state in kept for state in states}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_run_of_the_lab_shows_what_it_says(workspace: Workspace) -> None:
    found = answer("labs", "lint", "--run", LAB.name, cwd=workspace.root, deadline=3500)
    assert found["ok"], found["labs"][0]["problems"]
