"""Curves as SVG: a small chart that never hides a spike, and reads in print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[int, float]]

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
SIGN = 7
"""Width that is left for a sign of a label; a digit of the page's 11 px takes 6."""
STYLES = (("#1b4f9c", ""), ("#b3410e", "6 3"), ("#3b7a2a", "2 3"), ("#6a3d9a", "8 3 2 3"))
"""Colour and dashes of each series: they must be told apart on a printer without colour too."""


def chart(series: Mapping[str, Mapping[int, object]], marks: Mapping[int, str] | None = None) -> str:
    """Return an `<svg>` of series that share one axis; `marks` are steps with a word, drawn as upright lines.

    Of the points in one column the lowest and the highest are drawn. A value that is no finite number has no place on
    the axis: it is drawn as a cross at the top.
    """
    points = {name: [(step, float(value)) for step, value in one.items()] for name, one in series.items()}  # type: ignore[arg-type]
    finite = [value for one in points.values() for _, value in one if math.isfinite(value)]
    steps = [step for one in points.values() for step, _ in one]
    if not steps:
        return ""
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if low == high:
        low, high = low - abs(low) * 0.05 - 0.5, high + abs(high) * 0.05 + 0.5
    first, last = min(steps), max(max(steps), min(steps) + 1)

    def x(step: float) -> float:
        return LEFT + (step - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    names = ", ".join(points)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(names)} by step">',
        f"<title>{escape(names)} by step</title>",
    ]
    for value in _ticks(low, high):
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for step in _whole_ticks(first, last):
        parts.append(_label(x(step), HEIGHT - 8, f"{step:,}"))
    for step, word in (marks or {}).items():
        parts.append(f'<path d="M{x(step):.1f} {TOP}V{HEIGHT - BOTTOM}" class="mark"/>')
        over = x(step) + 4 + SIGN * len(word) > WIDTH
        anchor = f'x="{x(step) - 4:.1f}" text-anchor="end"' if over else f'x="{x(step) + 4:.1f}"'
        parts.append(f'<text {anchor} y="{TOP + 10}">{escape(word)}</text>')
    for number, (name, one) in enumerate(points.items()):
        colour, dashes = STYLES[number % len(STYLES)]
        drawn = thinned(one)
        if len(drawn) == 1:  # a line of one point is nothing to see
            parts.append(
                f'<circle cx="{x(drawn[0][0]):.1f}" cy="{y(drawn[0][1]):.1f}" r="4" fill="{colour}"/>'
            )
        else:
            line = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in drawn)
            parts.append(
                f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5" '
                f'stroke-dasharray="{dashes}"/>'
            )
        for step, _ in [point for point in one if not math.isfinite(point[1])][:20]:
            at = x(step)
            parts.append(f'<path d="M{at - 4:.1f} {TOP}l8 8m0 -8l-8 8" stroke="{colour}" class="lost"/>')
        parts.append(
            f'<text x="{WIDTH - RIGHT}" y="{TOP + 12 + 14 * number}" text-anchor="end" fill="{colour}">'
        )
        sign = "•" if len(drawn) == 1 else "- - -" if dashes else "---"
        parts.append(f"{escape(name)} {sign}</text>")
    return "".join([*parts, "</svg>"])


def _label(x: float, y: int, text: str) -> str:
    """Return a step under the axis, in the middle of its place unless that would cut it off at the right."""
    over = x + SIGN * len(text) / 2 > WIDTH
    place = (
        f'x="{WIDTH - 2}" y="{y}" text-anchor="end"' if over else f'x="{x:.1f}" y="{y}" text-anchor="middle"'
    )
    return f"<text {place}>{text}</text>"


def thinned(points: Points, columns: int = WIDTH - LEFT - RIGHT) -> Points:
    """Return the finite points, of many in one column only the first, lowest, highest and last."""
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) <= 2 * columns:
        return finite
    first, span = finite[0][0], max(1, finite[-1][0] - finite[0][0])
    kept: dict[int, list[tuple[int, float]]] = {}
    for point in finite:
        column = (point[0] - first) * (columns - 1) // span
        held = kept.setdefault(column, [point] * 4)
        held[1] = min(held[1], point, key=lambda one: one[1])
        held[2] = max(held[2], point, key=lambda one: one[1])
        held[3] = point
    return sorted({point for held in kept.values() for point in held})


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two values, about five of them."""
    size = 10 ** math.floor(math.log10((high - low) / 5))
    size *= next((factor for factor in (1, 2, 5, 10) if (high - low) / (size * factor) <= 6), 10)
    first = math.ceil(low / size)
    return [number * size for number in range(first, math.floor(high / size) + 1)]


def _whole_ticks(first: int, last: int) -> list[int]:
    return sorted({round(value) for value in _ticks(first, last) if float(value).is_integer()} | {first})
