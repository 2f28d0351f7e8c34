"""Where a resumed run leaves the unbroken one, and which state that points to.

The signature of a fault (RESUME): a lost data position or random state shows at the first resumed step, lost
moments, a lost schedule or a changed data type only at the second, because the first still runs on the right
weights. So values are compared in the order in which a step makes them: batch, loss, gradient norm; and rates
from the second resumed step on, since the first one's comes out of the optimizer's own state.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from labassist.ledger.curves import Curve, encode, same_value
from labassist.ledger.verdict import ORDER

Facts = dict[str, Any]


@dataclass
class Signature:
    """The first difference, and what it says."""

    first: Facts | None
    """`step`, `series`, `a`, `b`, and `resumed_step`: 1 is the first step after the resume."""
    culprit: str | None
    """One of the six states, None where nothing differs or the interruption is not to blame."""
    words: str


def read(
    unbroken: Curve, resumed: Curve, origin: int, suspects: Collection[str] = (), fp16: bool = False
) -> Signature:
    """Return the signature of a run that was resumed after step `origin`, against the unbroken one.

    `suspects` are the states that a check of the checkpoint found fault with: of several states that fit the
    signature, such a one is named first.
    """
    first = first_difference(unbroken, resumed, origin)
    if first is None:
        return Signature(None, None, "no recorded value differs")
    step = first["resumed_step"]
    if step < 1:
        return Signature(
            first,
            None,
            "the runs differ before the interruption: this job does not repeat itself even unbroken",
        )
    candidates = _candidates(unbroken, resumed, origin, first, fp16)
    culprit = next((state for state in candidates if state in suspects), candidates[0])
    return Signature(first, culprit, _words(first, step, culprit))


def earliest(found: Sequence[Signature]) -> Signature:
    """Return the first of the ranks' signatures in the order of steps, and within one of what a step makes.

    Its `first` then has the `rank` too. What one rank does differently shows in the others' gradients at once.
    """
    if len(found) == 1:
        return found[0]
    for rank, one in enumerate(found):
        if one.first:
            one.first["rank"] = rank
    differing = [one for one in found if one.first]
    return min(differing, key=_place, default=found[0])


def _place(one: Signature) -> tuple[int, int]:
    assert one.first is not None
    name = one.first["series"]
    return one.first["step"], ORDER.index(name) if name in ORDER else len(ORDER)


def first_difference(unbroken: Curve, resumed: Curve, origin: int) -> Facts | None:
    """Return the earliest difference of what training sees; of several at one step the first that it makes."""
    found = differences(unbroken, resumed, origin).values()
    return min(found, key=lambda facts: int(facts["step"]), default=None)


def differences(unbroken: Curve, resumed: Curve, origin: int) -> dict[str, Facts]:
    """Return for each series the first step at which it differs, in the order in which a step makes them.

    `resumed_step` counts from the resume after step `origin`; the rate of the first resumed step is left out.
    """
    found = {}
    for name in [*ORDER, *sorted(unbroken.series.keys() & resumed.series.keys() - set(ORDER))]:
        ours, theirs = unbroken.series.get(name, {}), resumed.series.get(name, {})
        for step, value in ours.items():
            if name == "lr" and step == origin + 1:
                continue
            if step in theirs and not same_value(value, theirs[step]):
                values = {"a": encode(value), "b": encode(theirs[step])}
                found[name] = {"step": step, "resumed_step": step - origin, "series": name, **values}
                break
    return found


def differing_rate(unbroken: Curve, resumed: Curve, origin: int) -> int | None:
    """Return the first step after `origin` whose learning rate differs, the first resumed one included."""
    ours, theirs = unbroken.series.get("lr", {}), resumed.series.get("lr", {})
    steps = (step for step in ours if step > origin and step in theirs)
    return next((step for step in steps if not same_value(ours[step], theirs[step])), None)


def _candidates(unbroken: Curve, resumed: Curve, origin: int, first: Facts, fp16: bool) -> list[str]:
    series, step = first["series"], first["step"] - origin
    if series == "batch":
        return ["data_position", "rng"]
    if step == 1 and series == "loss":
        return ["model", "rng"] if _starts_over(unbroken, first) else ["rng", "model"]
    if step == 1:
        # Equal losses mean equal weights and equal masks: what is left is how the gradient is made.
        return ["scaler", "model"] if fp16 else ["model"]
    rate = differing_rate(unbroken, resumed, origin)
    # A rate that is wrong at once is the one that the optimizer's groups keep; the schedule speaks a step later.
    if series == "lr" or (rate is not None and rate > origin + 1 and rate < first["step"]):
        return ["scheduler", "optimizer"]
    return ["optimizer", "model", "scheduler"]


def _starts_over(unbroken: Curve, first: Facts) -> bool:
    """Say whether the loss is nearer to where training began than to where it was."""
    losses = unbroken.series["loss"]
    beginning, was, now = losses[min(losses)], first["a"], first["b"]
    numbers = [
        value for value in (beginning, was, now) if isinstance(value, int | float) and math.isfinite(value)
    ]
    return len(numbers) == 3 and abs(numbers[2] - numbers[0]) < abs(numbers[2] - numbers[1])


_MEANINGS = {
    "model": "the weights, or their data type, did not come back as they were",
    "optimizer": "the step before used other moments: the optimizer's state did not come back",
    "scheduler": "the learning rate restarted or shifted: the schedule's state did not come back",
    "scaler": "the loss scale did not come back",
    "rng": "the random generators did not come back: dropout or augmentation drew other numbers",
    "data_position": "other samples were drawn: the position in the data did not come back",
}


def _words(first: Facts, step: int, culprit: str) -> str:
    ordinal = {1: "first", 2: "second", 3: "third"}.get(step, f"{step}th")
    return f"{first['series']} differs at the {ordinal} resumed step: {_MEANINGS[culprit]}"
