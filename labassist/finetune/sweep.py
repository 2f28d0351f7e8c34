"""What a sweep says: settings compared over seeds and held-out samples, and which differences are none."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

DRAWS = 2000
FEW = 3
"""Fewer seeds than this say little of what another seed would give."""

Losses = Mapping[str, Sequence[Sequence[float]]]
"""Setting -> a row a seed, a loss a held-out sample; seeds and samples are the same for every setting."""


@dataclass(frozen=True)
class Row:
    """One setting: its mean held-out loss, and how it differs from the reference, each with a 95% interval."""

    name: str
    loss: float
    low: float
    high: float
    apart: float
    apart_low: float
    apart_high: float

    @property
    def word(self) -> str:
        """Say whether the difference from the reference is told apart from noise."""
        if self.apart_low > 0:
            return "worse"
        return "better" if self.apart_high < 0 else "noise"


def rows(losses: Losses, reference: str) -> list[Row]:
    """Return a row a setting, by the percentile bootstrap over seeds and over samples, both drawn anew.

    The settings are paired: each draw takes the same seeds and samples of all of them.
    """
    draw = random.Random(0)
    seeds, samples = len(losses[reference]), len(losses[reference][0])
    drawn: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(DRAWS):
        some = draw.choices(range(seeds), k=seeds)
        which = draw.choices(range(samples), k=samples)
        for name, matrix in losses.items():
            drawn[name].append(fmean(matrix[seed][sample] for seed in some for sample in which))
    means = {name: fmean(map(fmean, matrix)) for name, matrix in losses.items()}
    made = []
    for name, values in drawn.items():
        apart = [one - other for one, other in zip(values, drawn[reference], strict=True)]
        difference = means[name] - means[reference]
        made.append(Row(name, means[name], *_middle(values), difference, *_middle(apart)))
    return made


def between_seeds(losses: Losses) -> float:
    """Return the largest difference between two seeds of one setting."""
    spreads = [[fmean(row) for row in matrix] for matrix in losses.values()]
    return max(max(means) - min(means) for means in spreads)


def text(made: Sequence[Row], losses: Losses, reference: str) -> str:
    """Return the table as a person reads it."""
    seeds, samples = len(losses[reference]), len(losses[reference][0])
    lines = [
        f"held-out loss, {seeds} seeds x {samples} samples, 95% intervals; differences from {reference}",
        f"{'setting':<12} {'loss':>7}  {'interval':<17} {'difference':>10}  interval",
    ]
    for one in made:
        own = f"{one.low:.4f} to {one.high:.4f}"
        if one.name == reference:
            lines.append(f"{one.name:<12} {one.loss:7.4f}  {own:<17} {'-':>10}")
            continue
        apart = f"{one.apart_low:+.4f} to {one.apart_high:+.4f}"
        lines.append(f"{one.name:<12} {one.loss:7.4f}  {own:<17} {one.apart:+10.4f}  {apart}  {one.word}")
    lines.append(f"two seeds of one setting differ by up to {between_seeds(losses):.4f}")
    if seeds < FEW:
        lines.append(f"with {seeds} seeds an interval is too narrow: take --set seeds={FEW} or more")
    return "\n".join(lines)


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """Return where the middle 95% of the values lie."""
    ordered = sorted(values)
    return ordered[int(0.025 * len(ordered))], ordered[int(0.975 * len(ordered)) - 1]
