"""Compare two runs step by step and tensor by tensor, and say what the comparison is worth.

The ladder, best first: BITWISE, WITHIN_NOISE, DIVERGED, INCOMPLETE, INCOMPARABLE (which preflight says,
not this module). A difference that was found outweighs something missing; a bound must have a source.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labassist.errors import InputError, some
from labassist.ledger import room
from labassist.ledger.curves import Curve, encode, same_value
from labassist.ledger.records import Verdict, VerdictWord, to_document
from labassist.ledger.store import Ledger

EXIT = {"BITWISE": 0, "WITHIN_NOISE": 3, "DIVERGED": 4, "INCOMPLETE": 5, "INCOMPARABLE": 6}

ORDER = ("batch", "loss", "grad_norm")
"""Series in the order in which a training step produces them: the first to differ names the cause."""

TOLERANCES = {
    # rtol, atol of torch.testing.assert_close for the data type (PyTorch documentation)
    "fp32": (1.3e-6, 1e-5),
    "bf16": (1.6e-2, 1e-5),
    "fp16": (1e-3, 1e-5),
}
REPEATS = 3
"""Recorded repeats that a noise bound needs at least."""

MOST_SERIES = 6
"""Series that one line names."""

Tensors = Mapping[str, str]


def compare(
    original: Curve,
    replay: Curve,
    tensors: tuple[Tensors, Tensors] | None,
    *,
    repeats: Sequence[Curve] = (),
    tolerance: str = "",
) -> Verdict:
    """Return the verdict on `replay` against `original`.

    `tensors` are the digests by name of the final checkpoint on both sides, None where the original kept
    none. Everything is compared in both directions: what only the replay has is a finding too. With
    `tolerance` (a name of TOLERANCES), or at least three `repeats`, unequal values may be WITHIN_NOISE.
    Raises InputError for an unknown tolerance.
    """
    if tolerance and tolerance not in TOLERANCES:
        raise InputError(
            f"unknown tolerance {tolerance!r}",
            where="--tolerance",
            mend=f"choose from {', '.join(TOLERANCES)}",
        )
    missing: list[str] = []
    first = _first_difference(original, replay, missing)
    compared = _counts(original, replay)
    differing, tensor_missing = _compare_tensors(tensors)
    missing += tensor_missing
    count = len(tensors[0].keys() & tensors[1].keys()) if tensors else 0
    causes: list[str] = []
    word: VerdictWord
    if first is None and not differing:
        empty = not compared[0] and not count
        word = "INCOMPLETE" if missing or empty else "BITWISE"
        causes = missing or (["there is nothing to compare"] if empty else [])
    else:
        word = "DIVERGED"
        bound = _bound(original, replay, repeats, tolerance)
        if bound and not missing:
            word = "WITHIN_NOISE"
            causes = [bound]
        else:
            causes = (
                [likely_cause(first, _unlike(original, replay))]
                if first
                else ["every recorded value is equal: only weights differ"]
            )
            causes += missing
        if first is None:
            first = {"tensor": differing[0], "tensors": len(differing)}
    return Verdict(
        verdict=word,
        steps=compared[0],
        series=compared[1],
        tensors=count,
        first_difference=first,
        likely_causes=causes,
    )


def keep(ledger: Ledger, run_id: str, found: Verdict) -> None:
    """Journal the verdict with the run that was compared. Raises LedgerError."""
    found.likely_causes = room.few(found.likely_causes)
    ledger.change("verdict", run_id, lambda run: {**run, "verdict": to_document(found)})
    ledger.save_view()


def worst(found: Sequence[Verdict]) -> Verdict:
    """Return one verdict for several comparisons of the same two runs: the worst of them, counts together.

    A difference outweighs something missing. `found` may not be empty.
    """
    order = ("DIVERGED", "INCOMPARABLE", "INCOMPLETE", "WITHIN_NOISE", "BITWISE")
    first = min(found, key=lambda one: order.index(one.verdict))
    return Verdict(
        verdict=first.verdict,
        steps=max(one.steps for one in found),
        series=sum(one.series for one in found),
        tensors=sum(one.tensors for one in found),
        first_difference=first.first_difference,
        likely_causes=first.likely_causes,
    )


def _series(curve: Curve) -> list[str]:
    known = [name for name in ORDER if name in curve.series]
    return known + sorted(name for name in curve.series if name not in ORDER)


def _counts(original: Curve, replay: Curve) -> tuple[int, int]:
    steps = set(original.steps) & set(replay.steps)
    return len(steps), len(set(original.series) & set(replay.series))


def _first_difference(original: Curve, replay: Curve, missing: list[str]) -> dict[str, Any] | None:
    """Return the earliest differing value; of several at one step, the first that the step produces."""
    first: dict[str, Any] | None = None
    lacking: dict[tuple[str, int, int], list[str]] = {}
    for rank, name in enumerate(_series(original)):
        ours, theirs = original.series[name], replay.series.get(name)
        if theirs is None:
            continue
        for step, value in sorted(ours.items()):
            if first is not None and step >= first["step"]:
                break
            if step in theirs and not same_value(value, theirs[step]):
                first = {
                    "step": step,
                    "series": name,
                    "a": encode(value),
                    "b": encode(theirs[step]),
                    "first_step": step == min(ours),
                    "rank": rank,
                }
                break
        for side, steps in (("replay", ours.keys() - theirs), ("original", theirs.keys() - ours)):
            if steps:
                lacking.setdefault((side, len(steps), min(steps)), []).append(name)
    missing += _absent_series("replay", _series(original), replay)
    missing += _absent_series("original", _series(replay), original)
    for (side, count, start), names in lacking.items():
        missing.append(f"the {side} lacks {some(names, MOST_SERIES)} at {count} steps, first {start}")
    if first is not None:
        del first["rank"]
    return first


def _absent_series(side: str, names: Sequence[str], there: Curve) -> Iterator[str]:
    """Say in one line which series a side lacks: a script may have a hundred of them."""
    absent = [name for name in names if name not in there.series]
    if absent and not there.steps:
        yield f"the {side} recorded no step"
    elif absent:
        yield f"the {side} has no series {some(absent, MOST_SERIES)}"


def _compare_tensors(tensors: tuple[Tensors, Tensors] | None) -> tuple[list[str], list[str]]:
    if tensors is None:
        return [], []
    a, b = tensors
    differing = sorted(name for name in a.keys() & b.keys() if a[name] != b[name])
    missing = []
    for side, names in (("replay", sorted(a.keys() - b.keys())), ("original", sorted(b.keys() - a.keys()))):
        if names:
            count = f"{len(names)} tensors, first " if len(names) > 1 else "the tensor "
            missing.append(f"the {side}'s checkpoint lacks {count}{names[0]}")
    return differing, missing


_PLACES = ("output_dir", "logging_dir", "run_name", "resume_from_checkpoint")
"""Settings of a trainer that say where it writes or starts, not what it computes."""


MOST_SETTINGS = 4
"""Settings that a person is told of by name."""


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return `name before / now` of each setting that differs, `-` where one is at its default; empty: none."""
    names = sorted(
        name
        for name in before.keys() | now.keys()
        if name not in _PLACES and before.get(name) != now.get(name)
    )
    parts = [f"{name} {before.get(name, '-')} / {now.get(name, '-')}" for name in names[:MOST_SETTINGS]]
    if len(names) > MOST_SETTINGS:
        parts.append(f"and {len(names) - MOST_SETTINGS} more")
    return ", ".join(parts)


def _unlike(original: Curve, replay: Curve) -> list[str]:
    """Return the series that differ at any step, in order."""
    return [
        name
        for name in _series(original)
        if any(
            not same_value(value, replay.series.get(name, {}).get(step, value))
            for step, value in original.series[name].items()
        )
    ]


def likely_cause(first: Mapping[str, Any], unlike: Sequence[str]) -> str:
    """Say what a first difference points to (LEDGER: replay, verdict); `unlike` are all series that differ."""
    series, at_start = first["series"], first["first_step"]
    if series == "batch":
        return "data order: another sampler state, seed or corpus, or something that no run repeats (a clock, a process id)"
    if series == "loss" and at_start:
        return "weights, RNG or kernel: the same batch gave another loss at the first step"
    if series == "loss":
        return (
            "optimizer or learning rate: the step before changed the weights differently; or what no run repeats (a "
            "clock, a process id) is in the loss"
        )
    if series == "grad_norm":
        return "backward kernels: the loss is equal and its gradient is not"
    if series == "lr":
        return "learning rate: another value or schedule"
    # Where training itself is equal to the end, all that differs is of one kind: said at once, not one a replay.
    others = [name for name in unlike if name not in (series, "lr")] if not {*ORDER} & {*unlike} else []
    names = [series, *others]
    told = ", ".join(json.dumps(name) for name in names[:MOST_SERIES]) + (
        ", …" if names[MOST_SERIES:] else ""
    )
    return (
        f"{series} differs while batch, loss and gradient norm are equal up to this step; if a clock made "
        f"{'them' if others else 'it'}, say so: record.start(measured=[{told}])"
    )


def _bound(original: Curve, replay: Curve, repeats: Sequence[Curve], tolerance: str) -> str:
    """Return in words the bound that all differences keep, or nothing."""
    if tolerance:
        rtol, atol = TOLERANCES[tolerance]

        def allowed(_name: str, _step: int, value: float) -> float:
            return atol + rtol * abs(value)

        return (
            f"tolerance {tolerance}: rtol {rtol:g}, atol {atol:g}"
            if _inside(original, replay, allowed)
            else ""
        )
    if len(repeats) < REPEATS:
        return ""
    # Of the repeats among themselves: counted with them, an original that none of them repeats would bound itself.
    spread = {name: _envelope(repeats, name) for name in original.series}

    def measured(name: str, step: int, _value: float) -> float:
        return spread[name].get(step, 0.0)

    worst = max((max(steps.values(), default=0.0) for steps in spread.values()), default=0.0)
    words = f"the spread of {len(repeats)} recorded repeats, at most {worst:g}"
    return words if _inside(original, replay, measured) else ""


def _envelope(curves: Sequence[Curve], name: str) -> dict[int, float]:
    """Return for each step the largest spread among the curves seen up to that step."""
    widest, bound = 0.0, {}
    for step in sorted(set().union(*(curve.series.get(name, {}) for curve in curves))):
        values = [curve.series.get(name, {}).get(step) for curve in curves]
        numbers = [value for value in values if isinstance(value, int | float) and math.isfinite(value)]
        if len(numbers) > 1:
            widest = max(widest, max(numbers) - min(numbers))
        bound[step] = widest
    return bound


def _inside(original: Curve, replay: Curve, allowed: Any) -> bool:
    for name, ours in original.series.items():
        theirs = replay.series.get(name, {})
        for step, value in ours.items():
            other = theirs.get(step)
            if other is None or same_value(value, other):
                continue
            if not isinstance(value, int | float) or not isinstance(other, int | float):
                return False
            if not abs(value - other) <= allowed(name, step, value):
                return False
    return True
