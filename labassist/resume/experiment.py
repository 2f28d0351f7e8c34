"""The runs that prove and ablate are made of: an unbroken one, an interrupted one, and what goes on from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labassist.errors import InputError
from labassist.ledger import curves
from labassist.ledger.curves import Curve, Tail
from labassist.ledger.records import Origin
from labassist.ledger.store import Ledger
from labassist.resume.check import Report
from labassist.resume.check import check as check_path
from labassist.runs import life
from labassist.runs.launch import Plan, launch
from labassist.runs.resume import last_checkpoint
from labassist.runs.resume import resume as go_on
from labassist.workspace import Workspace

Follow = Callable[[str], dict[str, Any]]
"""Waits for a run to end, showing it or not, and returns its document."""
Say = Callable[[str], None]

STEPS_AFTER = 3
"""Steps that must follow the resume: some faults show only at the second, and in the weights after it."""
_POLL_S = 0.002


@dataclass
class Experiment:
    """Two recorded runs of one plan: one to its end, one that stopped or was killed on the way."""

    workspace: Workspace
    ledger: Ledger
    follow: Follow
    say: Say
    unbroken: dict[str, Any]
    interrupted: dict[str, Any]
    origin: Origin
    checkpoint: Path
    report: Report
    """What a static check says about that checkpoint."""

    def curve(self, run: dict[str, Any]) -> Curve:
        """Return the curve of a run's whole lineage."""
        return curves.joined(self.ledger, run["id"])

    def resume(self, note: str, drop: list[str]) -> dict[str, Any]:
        """Go on from the interruption, without the states in `drop`, to the end."""
        started = go_on(self.workspace, self.ledger, self.interrupted["id"], [], note, drop)
        return self.follow(started.run)

    def tensors(self, run: dict[str, Any], step: int) -> dict[str, str] | None:
        """Return the digests of a run's checkpoint at `step`, None where it kept none."""
        document = self.ledger.checkpoint(run["id"], step)
        if document is None:
            return None
        digests: dict[str, str] = self.ledger.objects.get_json(document["manifest"])["tensors"]
        return digests


def interrupt(
    workspace: Workspace,
    ledger: Ledger,
    plan: Plan,
    at: int | None,
    kill: bool,
    follow: Follow,
    say: Say,
) -> Experiment:
    """Run `plan` to its end, and again up to step `at` (default: half), where it is stopped or killed.

    Raises InputError when a run fails, is too short, or leaves no checkpoint to go on from.
    """
    steps = plan.flat.get("steps")
    if at is not None:
        _fits(at, steps if isinstance(steps, int) else None)
    name = "ckpt"
    say("the uninterrupted run")
    unbroken = _finished(follow(launch(workspace, ledger, replace(plan, note=f"{name}: uninterrupted"))))
    at = at or max(1, unbroken["step"] // 2)
    _fits(at, unbroken["step"])
    say(f"the run that is {'killed' if kill else 'stopped'} at step {at}")
    broken = replace(plan, note=f"{name}: interrupted at step {at}", stop_after=None if kill else at)
    started = launch(workspace, ledger, broken)
    if kill:
        _kill_at(ledger, started, at)
    interrupted = follow(started)
    if interrupted["state"] == "finished":
        raise InputError(
            "it finished before it could be interrupted",
            where=f"run {started}",
            mend="interrupt it earlier (--at), or let it run longer",
        )
    first = min(curves.joined(ledger, started).steps, default=1)
    if first != 1:
        raise InputError(
            f"it went on from step {first - 1} by itself, where a fresh run was asked for",
            where=f"run {started}",
            mend="do not pass resume_from_checkpoint in the script, or clear its output folder",
        )
    notes: list[str] = []
    origin, path = last_checkpoint(ledger, interrupted, notes)
    for note in notes:
        say(f"note: {note}")
    if path is None:
        raise InputError(
            f"it had made no checkpoint by step {interrupted['step']}",
            where=f"run {started}",
            mend="interrupt it later (--at), or make checkpoints more often",
        )
    report = check_path(path, verify=False)
    assert isinstance(report, Report)
    return Experiment(workspace, ledger, follow, say, unbroken, interrupted, origin, path, report)


def _fits(at: int, steps: int | None) -> None:
    if at < 1 or (steps is not None and at > steps - STEPS_AFTER):
        raise InputError(
            f"step {at} leaves fewer than {STEPS_AFTER} steps after the resume"
            if at >= 1
            else "a run has no step before 1",
            where=f"--at {at}",
            mend=f"choose from 1 to {steps - STEPS_AFTER}" if steps else "choose a step inside the run",
        )


def _finished(run: dict[str, Any]) -> dict[str, Any]:
    if run["state"] != "finished":
        raise InputError(
            f"the uninterrupted run {run['state']}: {run.get('reason', '')}".rstrip(": "),
            where=f"run {run['id']}",
            mend=f"see labassist logs {run['id']}",
        )
    if not run.get("step"):
        raise InputError(
            "it recorded no steps, so there is nothing to compare",
            where=f"run {run['id']}",
            mend="record it: labassist.record.attach(trainer)",
        )
    return run


def _kill_at(ledger: Ledger, run_id: str, at: int) -> None:
    """Kill the trainer (SIGKILL) once its curve has reached step `at`."""
    folder = ledger.run_folder(run_id)
    tail = Tail(folder / "metrics-rank0.jsonl")
    while life.held(folder / "alive"):
        if any(row["step"] >= at for row in tail.poll()):
            life.kill(folder)
            return
        time.sleep(_POLL_S)
