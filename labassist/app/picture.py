"""A curve as a PNG: the chart of the terminal, drawn with Pillow for a page or a message."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labassist.app.chart import number
from labassist.app.scale import Scale, linear, logarithmic
from labassist.errors import InputError, LedgerError

SIZE = (1200, 630)
"""Width and height in pixels."""
_LEFT, _TOP, _RIGHT, _BOTTOM = 110, 60, 40, 60
_INK, _GRID = (40, 40, 40), (225, 225, 225)
_COLOURS = ((31, 90, 180), (200, 80, 20), (30, 130, 70), (130, 60, 150), (150, 110, 0), (0, 130, 140))


def draw(series: Mapping[str, Mapping[int, Any]], title: str, path: Path, *, log: bool = False) -> None:
    """Draw series (step -> value) over their steps. Values that are not finite break the line, with a mark.

    Raises InputError where Pillow is missing or there is nothing to draw, LedgerError where `path` cannot be
    written.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise InputError(
            "a picture needs Pillow, which is not installed",
            where="--png",
            mend="pip install 'labassist[plot]'",
        ) from error
    drawn = {name: _points(points, log) for name, points in series.items()}
    values = [y for points in drawn.values() for _, y in points if y is not None]
    if not values:
        raise InputError("there is no value to draw yet", where="--png")
    scale = (logarithmic if log else linear)(min(values), max(values))
    last = max(x for points in drawn.values() for x, _ in points)
    image = Image.new("RGB", SIZE, "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(18)
    _axes(pen, font, scale, last)
    pen.text((_LEFT, 14), title, fill=_INK, font=font)
    for index, (name, points) in enumerate(drawn.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        _line(pen, font, points, scale, last, colour)
        place = (_LEFT + 230 * index, 36)
        pen.line((place[0], place[1] + 11, place[0] + 28, place[1] + 11), fill=colour, width=3)
        pen.text((place[0] + 36, place[1]), name, fill=_INK, font=font)
    try:
        image.save(path, "PNG")
    except OSError as error:
        raise LedgerError(f"the picture cannot be written: {error.strerror}", where=str(path)) from error


def _points(points: Mapping[int, Any], log: bool) -> list[tuple[int, float | None]]:
    """Return the points by step; None stands for what no place of the scale shows."""
    return [
        (step, y if math.isfinite(y) and not (log and y <= 0) else None)
        for step, y in sorted((step, float(value)) for step, value in points.items())
    ]


def _axes(pen: Any, font: Any, scale: Scale, last: int) -> None:
    bottom, right = SIZE[1] - _BOTTOM, SIZE[0] - _RIGHT
    labels = [(scale.low, scale.low_label), (scale.high, scale.high_label)]
    taken = [_y(scale, y) for y, _ in labels]
    for y, text in scale.between:
        if all(abs(_y(scale, y) - other) > 40 for other in taken):
            labels.append((y, text))
            taken.append(_y(scale, y))
    for y, text in labels:
        row = _y(scale, y)
        pen.line((_LEFT, row, right, row), fill=_GRID)
        pen.text((_LEFT - 12, row), text, fill=_INK, font=font, anchor="rm")
    for part in range(5):
        x = _LEFT + (right - _LEFT) * part / 4
        pen.line((x, bottom, x, bottom + 6), fill=_INK)
        pen.text((x, bottom + 12), number(last * part / 4), fill=_INK, font=font, anchor="ma")
    pen.line((_LEFT, _TOP, _LEFT, bottom, right, bottom), fill=_INK)
    pen.text(((_LEFT + right) / 2, SIZE[1] - 8), "step", fill=_INK, font=font, anchor="mb")


def _line(
    pen: Any, font: Any, points: list[tuple[int, float | None]], scale: Scale, last: int, colour: Any
) -> None:
    before: tuple[float, float] | None = None
    for step, y in points:
        x = _LEFT + (SIZE[0] - _RIGHT - _LEFT) * (step / last if last else 0)
        if y is None:
            pen.text((x, _TOP), "!", fill=(200, 0, 0), font=font, anchor="mb")
            before = None
            continue
        here = (x, _y(scale, y))
        pen.line((*(before or here), *here), fill=colour, width=2)
        before = here


def _y(scale: Scale, y: float) -> float:
    return _TOP + (SIZE[1] - _BOTTOM - _TOP) * (1 - scale.share(y))
