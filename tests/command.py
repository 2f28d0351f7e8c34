"""Run the command line as a person does: as a process, in a workspace, reading what it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from labassist.runs import life

QUICK = (
    "--set=steps=60",
    "--set=every.checkpoint=10",
    "--set=every.eval=30",
    "--set=model.d_model=16",
    "--set=model.layers=1",
    "--set=sample.length=8",
)
"""On top of `--profile tiny`: still dropout, still several checkpoints, and a second of training."""

DEADLINE_S = 120.0


def labassist(
    *words: str,
    cwd: Path,
    status: int | None = 0,
    env: dict[str, str] | None = None,
    deadline: float = DEADLINE_S,
) -> subprocess.CompletedProcess[str]:
    """Run `labassist …` and check its exit status (None: any)."""
    done = subprocess.run(
        [sys.executable, "-m", "labassist", *words],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=deadline,
    )
    if status is not None:
        assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def answer(*words: str, cwd: Path, **more: Any) -> Any:
    """Return the JSON document that `labassist … --json` prints."""
    return json.loads(labassist("--json", *words, cwd=cwd, **more).stdout)


def train(cwd: Path, *more: str, status: int | None = 0) -> Any:
    """Record one quick run of the first lab's job and return its record."""
    return answer("run", "01-first-loop/train", "--profile", "tiny", *QUICK, *more, cwd=cwd, status=status)


def run_folder(workspace: Path, run: dict[str, Any]) -> Path:
    return workspace / "ledger" / "runs" / str(run["id"])


def wait_for_step(folder: Path, step: int) -> None:
    """Wait until the curve has reached `step`."""
    path = folder / "metrics-rank0.jsonl"
    wait_until(lambda: path.exists() and _last(path) >= step, f"step {step}")


def _last(path: Path) -> int:
    lines = path.read_bytes().split(b"\n")[:-1]
    return int(json.loads(lines[-1])["step"]) if lines else 0


def wait_until(true: Any, what: str, every: float = 0.02) -> None:
    """Poll until `true()`, each `every` seconds; fail with `what` when it takes too long."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(every)


def kill_trainer(folder: Path, number: int = signal.SIGKILL) -> None:
    """Send a signal to the trainer of a living run."""
    wait_until(lambda: (folder / "alive").read_text(), "the shim's pids")
    os.kill(json.loads((folder / "alive").read_text())["trainer"], number)


def wait_closed(workspace: Path, run: dict[str, Any]) -> Any:
    """Wait until nobody runs or watches the run any more, and return its record as the next command has it."""
    folder = run_folder(workspace, run)
    wait_until(
        lambda: not life.held(folder / "alive") and not life.held(folder / "supervised"), "the end of the run"
    )
    return answer("show", run["id"], cwd=workspace)
