"""`ckpt ablate`: what each of the six states is worth, by resuming without it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from labassist.errors import InputError
from labassist.ledger.curves import Curve
from labassist.ledger.store import Ledger
from labassist.resume.experiment import Experiment, Follow, Say, broken_off, interrupt
from labassist.resume.findings import STATES
from labassist.resume.prove import compare
from labassist.runs.launch import Plan
from labassist.workspace import Workspace


@dataclass
class Row:
    """What a resume without one state did. `state` is empty for the control, which drops nothing."""

    state: str
    verdict: str
    run: str = ""
    first_divergent_step: int | None = None
    resumed_step: int | None = None
    """The same, counted from the resume: 1 is the first step after it."""
    first_difference: dict[str, Any] | None = None
    peak: dict[str, Any] | None = None
    """Largest difference of the loss to the unbroken run: `step`, `loss`, `unbroken`, `difference`."""
    final: dict[str, Any] | None = None
    """The same at the last step."""
    meaning: str = ""
    losses: dict[int, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return it as `ckpt ablate --json` prints it."""
        keys = ("verdict", "run", "first_divergent_step", "resumed_step", "first_difference", "peak", "final")
        return {
            "state": self.state or None,
            **{key: getattr(self, key) for key in keys},
            "meaning": self.meaning,
        }


@dataclass
class Ablation:
    """The answer: a row a state, and the curves to lay over each other."""

    experiment: Experiment
    rows: list[Row]
    losses: dict[int, Any]
    """Step -> loss of the unbroken run."""

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `ckpt ablate --json`."""
        made = self.experiment
        steps = sorted(step for step in self.losses if step > made.origin.step)
        overlay = {"uninterrupted": [self.losses[step] for step in steps]}
        overlay |= {
            row.state or "control": [row.losses.get(step) for step in steps]
            for row in self.rows
            if row.losses
        }
        return {
            "job": made.unbroken["job"],
            "uninterrupted": made.unbroken["id"],
            "resumed_from": {"step": made.origin.step, "path": str(made.checkpoint)},
            "states": [row.document() for row in self.rows],
            "curves": {"steps": steps, "loss": overlay},
        }


def ablate(
    workspace: Workspace,
    ledger: Ledger,
    plan: Plan,
    *,
    at: int | None,
    states: list[str],
    follow: Follow,
    say: Say,
) -> Ablation:
    """Resume from step `at` with each of `states` left out in turn (all six by default), and once with none.

    Raises InputError for an unknown state, and when the unbroken run fails or is too short.
    """
    for state in states:
        if state not in STATES:
            raise InputError(
                f"unknown state {state!r}", where="--drop", mend=f"choose from {', '.join(STATES)}"
            )
    made = interrupt(workspace, ledger, plan, [] if at is None else [at], "stop", follow, say)
    kept = made.report.found.states
    unbroken = made.curve(made.unbroken)
    rows = []
    for state in ["", *(states or STATES)]:
        if state and kept[state] not in ("present", "derived"):
            word = kept[state].replace("_", " ")
            rows.append(Row(state, kept[state], meaning=f"{word} in this job's checkpoints: nothing to drop"))
            continue
        say(f"resuming without {state}" if state else "resuming with everything, as a control")
        note = f"ckpt ablate: without {state}" if state else "ckpt ablate: control"
        rows.append(_row(made, unbroken, state, made.resume(note, [state] if state else [])))
    return Ablation(made, rows, dict(unbroken.series.get("loss", {})))


def _row(made: Experiment, unbroken: Curve, state: str, resumed: dict[str, Any]) -> Row:
    found, read = compare(made, resumed)
    row = Row(state, found.verdict, resumed["id"], first_difference=found.first_difference)
    if read.first:
        row.first_divergent_step = read.first["step"]
        row.resumed_step = read.first.get("resumed_step")
    curve = made.curve(resumed)
    row.losses = dict(curve.series.get("loss", {}))
    row.peak, row.final = _effect(dict(unbroken.series.get("loss", {})), row.losses, made.origin.step)
    row.meaning = _meaning(row, resumed)
    return row


def _effect(
    ours: dict[int, Any], theirs: dict[int, Any], origin: int
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the largest and the last difference of two losses after `origin`; a nan counts as infinite."""
    steps = sorted(step for step in ours.keys() & theirs.keys() if step > origin)
    if not steps:
        return None, None

    def at(step: int) -> dict[str, Any]:
        difference = theirs[step] - ours[step]
        return {"step": step, "loss": theirs[step], "unbroken": ours[step], "difference": difference}

    def size(step: int) -> float:
        difference = abs(theirs[step] - ours[step])
        return difference if math.isfinite(difference) else math.inf

    return at(max(steps, key=size)), at(steps[-1])


_MEANINGS = {
    "": "everything restored",
    "model": "fresh weights with old moments: training starts over, and the old momentum pushes it about",
    "optimizer": "the weights are right, so the first step is equal; then Adam, without moments, warms up again",
    "scheduler": "the rate starts again from its warm-up: steps of another size from then on",
    "scaler": "the loss scale starts at its initial value: the first gradients may overflow",
    "rng": "other dropout masks: another run of the same quality, not the same run",
    "data_position": "the data starts over: samples seen before come again, others are never seen",
}


def _meaning(row: Row, resumed: dict[str, Any]) -> str:
    if resumed["state"] != "finished":
        return broken_off(resumed)
    if row.verdict == "BITWISE":
        return (
            "everything restored: bit for bit the unbroken run"
            if not row.state
            else (f"this job draws nothing from {row.state}: bit for bit the unbroken run without it")
        )
    if not row.state:
        return "not equal although nothing was dropped: see labassist ckpt prove"
    return _MEANINGS[row.state]
