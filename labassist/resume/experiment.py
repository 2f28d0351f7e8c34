"""The runs that prove and ablate are made of: an unbroken one, an interrupted one, and what goes on from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from labassist.errors import InputError
from labassist.ledger import curves
from labassist.ledger.curves import Curve, Tail
from labassist.ledger.records import Origin
from labassist.ledger.store import Ledger
from labassist.record.inspect import committed
from labassist.resume.check import Report
from labassist.resume.check import check as check_path
from labassist.runs import life
from labassist.runs.launch import Plan, launch
from labassist.runs.logs import last_line
from labassist.runs.resume import last_checkpoint
from labassist.runs.resume import resume as go_on
from labassist.workspace import Workspace

Follow = Callable[[str], dict[str, Any]]
"""Waits for a run to end, showing it or not, and returns its document."""
Say = Callable[[str], None]
How = Literal["stop", "kill", "vanish"]
"""How a run is interrupted: asked for a checkpoint, the trainer killed, or all that runs and watches it."""
_VERBS = {"stop": "stopped", "kill": "killed", "vanish": "gone with its machine"}

STEPS_AFTER = 3
"""Steps that must follow the resume: some faults show only at the second, and in the weights after it."""
_POLL_S = 0.002
_SAVE_S = 120.0
"""How long a save that has begun is waited for before a kill."""


@dataclass
class Experiment:
    """Two recorded runs of one plan: one to its end, one that was interrupted on the way, once or more often."""

    workspace: Workspace
    ledger: Ledger
    follow: Follow
    say: Say
    unbroken: dict[str, Any]
    interrupted: dict[str, Any]
    """The segment that was interrupted last: the resumed run goes on from it."""
    origins: list[tuple[Origin, Path]]
    """The checkpoint that each interruption left, in order."""
    report: Report
    """What a static check says about the last checkpoint."""

    @property
    def origin(self) -> Origin:
        """Where the resumed run goes on."""
        return self.origins[-1][0]

    @property
    def checkpoint(self) -> Path:
        """The folder of the checkpoint there."""
        return self.origins[-1][1]

    def curve(self, run: dict[str, Any], rank: int = 0) -> Curve:
        """Return what is compared of a rank's curve, over a run's whole lineage."""
        whole = curves.joined(self.ledger, run["id"], rank=rank)
        return curves.compared(whole, self.unbroken.get("measured", []))

    @property
    def ranks(self) -> list[int]:
        """The ranks of the unbroken run; each has a curve of its own."""
        return curves.ranks(self.ledger.run_folder(self.unbroken["id"]))

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
    at: Sequence[int],
    how: How,
    follow: Follow,
    say: Say,
) -> Experiment:
    """Run `plan` to its end, and again up to a step of `at` (default: half), where it is interrupted.

    After each but the last interruption it goes on to the next. Raises InputError when a run fails, is too
    short, or leaves no checkpoint to go on from.
    """
    plan = replace(plan, experiment=True)
    steps = plan.flat.get("steps")
    _fit(at, steps if isinstance(steps, int) else None)
    name = "ckpt"
    say("the uninterrupted run")
    first_run = launch(workspace, ledger, replace(plan, note=f"{name}: uninterrupted"))
    unbroken = _finished(ledger, follow(first_run))
    at = at or [max(1, unbroken["step"] // 2)]
    _fit(at, unbroken["step"])
    verb = _VERBS[how]
    say(f"the run that is {verb} at step {at[0]}")
    note, stop_after = f"{name}: interrupted at step {at[0]}", at[0] if how == "stop" else None
    started = launch(workspace, ledger, replace(plan, note=note, stop_after=stop_after))
    kept = list(committed(ledger.run_folder(unbroken["id"])))
    interrupted = _interrupted(ledger, started, at[0], _due(kept, 0, at[0]), how, follow)
    first = min(curves.joined(ledger, started).steps, default=1)
    if first != 1:
        raise InputError(
            f"it went on from step {first - 1} by itself, where a fresh run was asked for",
            where=f"run {started}",
            mend="do not pass resume_from_checkpoint in the script, or clear its output folder",
        )
    origins = [_origin(ledger, interrupted, say)]
    for step in at[1:]:
        say(f"the run that goes on from step {origins[-1][0].step} and is {verb} at step {step}")
        note, stop_after = f"{name}: interrupted at step {step}", step if how == "stop" else None
        started = go_on(workspace, ledger, started, [], note, stop_after=stop_after).run
        due = _due(kept, origins[-1][0].step, step)
        interrupted = _interrupted(ledger, started, step, due, how, follow)
        origins.append(_origin(ledger, interrupted, say))
    report = check_path(origins[-1][1], verify=False)
    assert isinstance(report, Report)
    return Experiment(workspace, ledger, follow, say, unbroken, interrupted, origins, report)


def broken_off(resumed: dict[str, Any]) -> str:
    """Say how a resumed run ended that did not finish, and where its own words are."""
    why = f"the resumed run {resumed['state']}: {resumed.get('reason', '')}".rstrip(": ")
    return f"{why} (labassist logs {resumed['id']})"


def _due(kept: list[int], since: int, at: int) -> int:
    """Return the last step up to `at` of which the unbroken run has a checkpoint; 0 for none after `since`."""
    return max((step for step in kept if since < step <= at), default=0)


def _interrupted(ledger: Ledger, run_id: str, at: int, due: int, how: How, follow: Follow) -> dict[str, Any]:
    """Follow a run that stops at step `at`, or end it there; return its document."""
    if how != "stop":
        _end_at(ledger.run_folder(run_id), at, due, life.kill if how == "kill" else life.vanish)
    interrupted = follow(run_id)
    if interrupted["state"] == "finished":
        raise InputError(
            "it finished before it could be interrupted",
            where=f"run {run_id}",
            mend="interrupt it earlier (--at), or let it run longer",
        )
    return interrupted


def _origin(ledger: Ledger, interrupted: dict[str, Any], say: Say) -> tuple[Origin, Path]:
    notes: list[str] = []
    origin, path = last_checkpoint(ledger, interrupted, notes)
    for note in notes:
        say(f"note: {note}")
    if path is None:
        raise InputError(
            f"it had made no checkpoint by step {interrupted['step']}",
            where=f"run {interrupted['id']}",
            mend="interrupt it later (--at), or make checkpoints more often",
        )
    return origin, path


def _fit(at: Sequence[int], steps: int | None) -> None:
    for step, before in zip(at, [0, *at], strict=False):
        if step <= before:
            what = f"it is not after step {before}" if before else "a run has no step before 1"
            raise InputError(what, where=f"--at {step}", mend="give steps of the run, in rising order")
    if steps is not None and at and at[-1] > steps - STEPS_AFTER:
        if steps <= STEPS_AFTER:
            raise InputError(
                f"{steps} steps are too few: one or more before the interruption and {STEPS_AFTER} after the resume "
                f"make {STEPS_AFTER + 1}",
                where=f"--at {at[-1]}",
                mend=f"train {at[-1] + STEPS_AFTER} steps or more",
            )
        raise InputError(
            f"step {at[-1]} leaves fewer than {STEPS_AFTER} steps after the resume",
            where=f"--at {at[-1]}",
            mend=f"choose from 1 to {steps - STEPS_AFTER}",
        )


def _finished(ledger: Ledger, run: dict[str, Any]) -> dict[str, Any]:
    if run["state"] != "finished":
        why = _refusal(ledger.run_folder(run["id"]) / "log.txt") or run.get("reason", "")
        raise InputError(
            f"the uninterrupted run {run['state']}: {why}".rstrip(": "),
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


def _refusal(log: Path) -> str:
    """Return the line of ours with which a trainer ended; empty where it ended otherwise."""
    last = last_line(log)
    return last.removeprefix("labassist: ") if last.startswith("labassist: ") else ""


def _end_at(folder: Path, at: int, due: int, end: Callable[[Path], None]) -> None:
    """End the run (SIGKILL) once its curve has reached step `at` and its checkpoint of step `due` is whole.

    A save that began before `at` is written and hashed while training goes on, so with quick steps it may
    end after it; it is waited for, but not for ever.
    """
    tail = Tail(folder / "metrics-rank0.jsonl")
    reached, patience = False, _SAVE_S
    while life.held(folder / "alive"):
        reached = reached or any(row["step"] >= at for row in tail.poll())
        if reached and (max(committed(folder), default=0) >= due or patience <= 0):
            end(folder)
            return
        time.sleep(_POLL_S)
        patience -= _POLL_S if reached else 0
