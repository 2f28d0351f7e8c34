"""The vertical scale of a chart: round bounds around the data, so that it changes seldom, and their labels."""

from __future__ import annotations

import math
from typing import NamedTuple

_TINY = 1e-290
"""Spans and logarithms below this would underflow."""

_LONGEST = 8
"""Cells of a label before it is written with an exponent."""


class Scale(NamedTuple):
    """From `low` to `high`, with the labels that may stand between them."""

    low: float
    high: float
    log: bool
    low_label: str
    high_label: str
    between: list[tuple[float, str]]
    """Values inside with their labels, from the middle outwards."""

    def share(self, y: float) -> float:
        """Return how high `y` stands: 0 at the bottom, 1 at the top; what lies outside is moved to the edge."""
        if not self.log:
            return min(1.0, max(0.0, (y - self.low) / (self.high - self.low)))
        if y <= self.low:
            return 0.0
        low, high = math.log10(self.low), math.log10(self.high)
        return min(1.0, (math.log10(y) - low) / (high - low))


def linear(low: float, high: float) -> Scale:
    """Return the scale around finite data from `low` to `high`: at most a quarter of it lies beyond the data."""
    middle = low / 2 + high / 2
    if high - low <= max(abs(middle) * 1e-6, _TINY):
        half = max(abs(middle) * 0.05, _TINY) if middle else 1.0
        low, high = middle - half, middle + half
    step = _nice((high - low) / 8)
    first, last = math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6)
    texts = _texts(list(range(first, last + 1)), step)
    inner = sorted(range(first + 1, last), key=lambda k: (abs(k - (first + last) / 2), k))
    between = [(k * step, texts[k - first]) for k in inner]
    return Scale(first * step, last * step, False, texts[0], texts[-1], between)


def logarithmic(low: float, high: float) -> Scale:
    """Return the logarithmic scale around positive data; bounds are 1, 2 or 5 times a power of ten."""
    low, high = max(low, _TINY), max(high, _TINY)
    bottom, top = _mark_below(low), _mark_above(high)
    if bottom >= top:
        bottom, top = _mark_below(low * 0.99), _mark_above(high * 1.01)
    decades = range(math.floor(math.log10(bottom)) + 1, math.ceil(math.log10(top)))
    middle = (math.log10(bottom) + math.log10(top)) / 2
    between = [(10.0**k, tidy(f"{10.0**k:.3g}")) for k in sorted(decades, key=lambda k: abs(k - middle))]
    return Scale(bottom, top, True, tidy(f"{bottom:.3g}"), tidy(f"{top:.3g}"), between)


def tidy(number: str) -> str:
    """Return a number without the padding of its exponent: `2e-05` becomes `2e-5`."""
    mantissa, e, exponent = number.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


def _nice(step: float) -> float:
    """Return the smallest 1, 2, 2.5 or 5 times a power of ten that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next((m * power for m in (1, 2, 2.5, 5) if m * power >= step * (1 - 1e-9)), 10 * power)


def _texts(multiples: list[int], step: float) -> list[str]:
    """Return the labels of these multiples of `step`, all with the same number of decimals."""
    values = [k * step for k in multiples]
    decimals = next((d for d in range(6) if abs(round(step, d) - step) < step * 1e-6), None)
    if decimals is not None:
        plain = [f"{value:,.{decimals}f}" for value in values]
        if max(map(len, plain)) <= _LONGEST:
            return plain
    texts: list[str] = []
    for places in range(7):
        texts = [tidy(f"{value:.{places}e}") if value else "0" for value in values]
        if all(abs(float(text) - value) <= step * 1e-3 for text, value in zip(texts, values, strict=True)):
            break
    return texts


def _mark_below(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next((m * power for m in (5, 2, 1) if m * power <= value * (1 + 1e-9)), power / 2)


def _mark_above(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next((m * power for m in (1, 2, 5) if m * power >= value * (1 - 1e-9)), 10 * power)
