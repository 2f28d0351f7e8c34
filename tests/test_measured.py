"""What a clock makes is recorded, and neither a replay nor a comparison of two runs takes it for a difference."""

from __future__ import annotations

import sys

from command import answer, labassist

from labassist.workspace import Workspace

SCRIPT = """
import time
from labassist import record

recorder = record.start(total_steps=4, measured=MEASURED)
for step in range(1, 5):
    recorder.record(step, loss=1 / step, tokens_per_s=1024 / time.perf_counter(), step_ms=time.perf_counter())
recorder.finish(4, "done")
"""


def record(workspace: Workspace, measured: str) -> str:
    (workspace.root / "clock.py").write_text(SCRIPT.replace("MEASURED", measured))
    return str(answer("run", "--", sys.executable, "clock.py", cwd=workspace.root)["id"])


def test_what_a_clock_made_is_kept_and_not_compared(workspace: Workspace) -> None:
    root = workspace.root
    run = record(workspace, "[]")
    replayed = answer("replay", run, cwd=root, status=4)
    assert replayed["first_difference"]["series"] in ("step_ms", "tokens_per_s")
    assert 'record.start(measured=["step_ms", "tokens_per_s"])' in replayed["likely_causes"][0]

    run = record(workspace, '["tokens_per_s", "*_ms"]')
    said = labassist("--json", "replay", run, cwd=root)
    assert "note: not compared, a clock made them: tokens_per_s, *_ms" in said.stderr
    shown = answer("show", "@last", cwd=root)
    assert shown["measured"] == ["tokens_per_s", "*_ms"] and "step_ms" in shown["last"]
    replay = answer("runs", "--where", f"replay_of={run}", cwd=root)["runs"][-1]
    assert (replay["verdict"]["verdict"], replay["verdict"]["series"]) == ("BITWISE", 1)
    differ = answer("diff", run, replay["id"], cwd=root)
    assert differ["same"] and list(differ["curves"]) == ["loss"]


def test_a_run_of_nothing_but_times_is_not_run_again(workspace: Workspace) -> None:
    run = record(workspace, '["*"]')
    replayed = answer("replay", run, cwd=workspace.root, status=6)
    assert replayed["verdict"] == "INCOMPARABLE" and "by a clock" in replayed["likely_causes"][0]
    assert [one["id"] for one in answer("runs", cwd=workspace.root)["runs"]] == [run]
