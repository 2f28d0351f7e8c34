"""A script that was started by hand: its end is recorded as it was, however it ended."""

from __future__ import annotations

import subprocess
import sys

import pytest
from command import answer, wait_closed

from labassist.workspace import Workspace

SCRIPT = """
import os, signal, sys
from labassist import record
from labassist.record.trainer_alone import enlist

recorder = record.start(total_steps=1, order=enlist("fast", 1, 1))
recorder.record(1, loss=1.0)
recorder.finish(1)
{end}
"""


@pytest.mark.parametrize(
    ("end", "status", "state"),
    [
        ("raise SystemExit(3)", 3, "failed"),
        ("raise SystemExit('in words')", 1, "failed"),
        ("raise SystemExit", 0, "finished"),
        ("sys.exit(258)", 2, "failed"),
        ("try:\n    sys.exit(5)\nexcept SystemExit:\n    pass", 0, "finished"),
        ("[][0]", 1, "failed"),
    ],
)
def test_the_status_of_a_script_run_alone_is_the_recorded_one(
    workspace: Workspace, end: str, status: int, state: str
) -> None:
    root = workspace.root
    (root / "mine.py").write_text(SCRIPT.format(end=end))
    done = subprocess.run([sys.executable, "mine.py"], cwd=root, capture_output=True, check=False)
    assert done.returncode == status, done.stderr
    run = wait_closed(root, answer("show", "@last", cwd=root))
    assert (run["state"], run["exit"], run["step"]) == (state, status, 1)


@pytest.mark.fault
def test_an_end_that_no_handler_sees_is_called_lost(workspace: Workspace) -> None:
    root = workspace.root
    (root / "mine.py").write_text(SCRIPT.replace("recorder.finish(1)", "os._exit(3)"))
    subprocess.run([sys.executable, "mine.py"], cwd=root, capture_output=True, check=False)
    assert wait_closed(root, answer("show", "@last", cwd=root))["state"] == "lost"
