"""A line chart in braille dots (or ASCII) that never hides a spike and is drawn row by row.

Plain Python: no terminal, no Textual. Points come in one by one and are kept in bounded memory
(`labassist.app.bins`). Every column of dots is filled from the lowest to the highest of its points and joined to
its neighbours; a value that is not finite breaks the line and puts a `!` in its column.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from labassist.app.bins import Bin, Point, Series
from labassist.app.canvas import Canvas
from labassist.app.scale import Scale, linear, logarithmic

Rows = list[list[tuple[str, str]]]
"""For each row its cells, each a character and a kind: `axis`, `mark`, `smooth`, `cursor`, `series0` …"""


class Span(NamedTuple):
    """Cells `start` up to `end` of a row."""

    row: int
    start: int
    end: int


class Column(NamedTuple):
    """What one column of dots shows of one series: rows of dots from the top, or None without drawable points."""

    at: int
    top: int | None
    bottom: int | None
    first: int | None
    last: int | None
    smooth: float | None
    bad: bool


class Chart:
    """A chart of `width` by `height` cells; its public attributes may be set at any time."""

    def __init__(
        self,
        width: int,
        height: int,
        *,
        ascii: bool = False,
        total: float | None = None,
        log: bool = False,
        smoothed: bool = False,
        smoothing: float = 0.9,
        x_name: str = "step",
    ) -> None:
        """Show x from 0 to `total`, or to the last point where that is unknown or lies beyond.

        `log`: logarithmic y axis; values at or below zero stand at its bottom edge, with a mark. `smoothed`: an
        exponential moving average of the first series (weight `smoothing` on the past, a point at a time) lies
        over it where the line is thick, and is named below; where its name has no room it is left out.
        """
        self.ascii = ascii
        self.total = total
        self.log = log
        self.smoothed = smoothed
        self.cursor: float | None = None
        """The x at which a vertical line stands; None: there is none."""
        self.x_name = x_name
        self._smoothing = smoothing
        self._series: dict[str, Series] = {}
        self._points = 0
        self._shown: Rows | None = None
        self._painted: tuple[object, Rows] | None = None
        self._canvas: Canvas
        self._scale: Scale | None
        self.resize(width, height)

    # --- data

    def append(self, x: float, y: float, series: str = "loss") -> None:
        """Add one point. Raises ValueError when x is not between 0 and 1e15; y may be anything."""
        if series not in self._series:
            self._series[series] = Series(self._smoothing)
        self._series[series].append(float(x), float(y))
        self._points += 1

    def extend(self, points: Iterable[Point], series: str = "loss") -> None:
        """Add many points."""
        for x, y in points:
            self.append(x, y, series)

    def clear(self) -> None:
        """Forget all points and series."""
        self._series.clear()
        self._points = 0
        self._painted = None

    def at(self, x: float, series: str = "loss") -> float | None:
        """Return the exact value at `x`, or None where that point is not kept (or never was)."""
        kept = self._series.get(series)
        return kept.at(x) if kept else None

    @property
    def names(self) -> list[str]:
        """The series, in the order in which they came."""
        return list(self._series)

    @property
    def cell(self) -> float:
        """How much of x a cell is wide, as it was painted last."""
        self._paint()
        return self._limit / max(1, self._canvas.width - 1)

    @property
    def last(self) -> float:
        """The largest x so far; 0 without points."""
        return max((series.newest[0] for series in self._series.values() if series.newest), default=0.0)

    def column(self, x: float, series: str = "loss") -> int | None:
        """Return the column of dots in which the point at `x` is drawn, or None without such a series.

        Points that share a bin share a column, that of the bin's beginning.
        """
        kept = self._series.get(series)
        if kept is None:
            return None
        self._paint()
        return _dot(kept.start(min(int(x / kept.width), len(kept.bins) - 1)), self._limit, self._canvas.dots)

    # --- what it looks like

    def resize(self, width: int, height: int) -> None:
        """Change the size in cells. Raises ValueError below 1 by 1."""
        if width < 1 or height < 1:
            raise ValueError(f"a chart needs at least one cell, got {width} by {height}")
        self.width, self.height = width, height
        self._shown = None

    def rows(self) -> list[str]:
        """Return `height` strings of `width` cells."""
        return ["".join(character for character, _ in row) for row in self._paint()]

    def segments(self, row: int) -> list[tuple[str, str]]:
        """Return one row as runs of `(text, kind)`; kinds as in `Rows`."""
        runs: list[tuple[str, str]] = []
        for character, kind in self._paint()[row]:
            if runs and runs[-1][1] == kind:
                runs[-1] = (runs[-1][0] + character, kind)
            else:
                runs.append((character, kind))
        return runs

    def changed_rows(self) -> list[Span]:
        """Return what differs from the last call, at most one span a row; all of it the first time."""
        new, old = self._paint(), self._shown
        self._shown = new
        spans = []
        for row, cells in enumerate(new):
            if old is None:
                spans.append(Span(row, 0, self.width))
            elif cells != old[row]:
                different = [i for i, (a, b) in enumerate(zip(cells, old[row], strict=True)) if a != b]
                spans.append(Span(row, different[0], different[-1] + 1))
        return spans

    def legend(self) -> str:
        """Return each series with its way of drawing and newest value: `loss ⠒⠒ 1.412 (smoothed 1.45)`."""
        parts = []
        for index, (name, series) in enumerate(self._series.items()):
            dashes = ("--" if self.ascii else "⠒⠒") if index == 0 else ("- -" if self.ascii else "⠒ ⠒")
            line = f"{name} {dashes}" if len(self._series) > 1 else name
            value = f"{series.newest[1]:.4g}" if series.newest else "-"
            smooth = series.smooth if index == 0 and self.smoothed else None
            parts.append(f"{line} {value}" + (f" (smoothed {smooth:.4g})" if smooth is not None else ""))
        return "  ".join(parts)

    # --- painting

    def _paint(self) -> Rows:
        key = (
            self._points,
            self.width,
            self.height,
            self.ascii,
            self.total,
            self.log,
            self.smoothed,
            self.cursor,
            self.x_name,
        )
        if self._painted is None or self._painted[0] != key:
            self._painted = (key, self._draw())
        return self._painted[1]

    def _draw(self) -> Rows:
        scale = self._scale = self._fitting_scale()
        axis = self.height >= 3
        rows = self.height - axis
        labels = _labels(scale, rows) if scale else {}
        canvas = self._canvas = Canvas(self.width, rows, axis, labels, self.ascii)
        drawn = [self._columns(series, canvas, scale) for series in self._series.values()]
        for index, columns in enumerate(drawn):
            canvas.kind = f"series{index}"
            before: Column | None = None
            for column in columns:
                if column.top is not None and column.bottom is not None:
                    canvas.fill(column.at, column.top, column.bottom)
                    canvas.protect(column.at, column.top, column.bottom)
                joined = before is not None and not before.bad and not column.bad
                if joined and before and before.last is not None and column.first is not None:
                    canvas.join(before.at, before.last, column.at, column.first, dashed=index > 0)
                before = column
        # Only now is it known which cells no overlay may hide, and which are free for a mark.
        middle = self._middle(canvas.width) if canvas.axis else ""
        if scale and self._smooth_word in middle:
            for column in drawn[0]:
                if column.smooth is not None:
                    canvas.lay(column.at, canvas.row(scale.share(column.smooth)), self._smooth_word[0])
        for column in (column for columns in drawn for column in columns if column.bad):
            canvas.mark(column.at)
        if self.cursor is not None:
            canvas.cross(_dot(min(self.cursor, self._limit), self._limit, canvas.dots))
        left, right = "0", number(self._limit)
        return canvas.rows(left, middle, right)

    def _fitting_scale(self) -> Scale | None:
        values = [
            point[1]
            for series in self._series.values()
            for bin_ in series.bins
            if bin_ is not None
            for point in (bin_.lowest, bin_.highest)
            if point is not None and not (self.log and point[1] <= 0)
        ]
        if not values:
            return None
        return (logarithmic if self.log else linear)(min(values), max(values))

    def _columns(self, series: Series, canvas: Canvas, scale: Scale | None) -> list[Column]:
        """Return the columns of dots that have anything to show, from left to right."""
        groups: list[tuple[int, list[Bin]]] = []
        limit = self._limit
        for index, bin_ in enumerate(series.bins):
            if bin_ is not None:
                at = _dot(series.start(index), limit, canvas.dots)
                if groups and groups[-1][0] == at:
                    groups[-1][1].append(bin_)
                else:
                    groups.append((at, [bin_]))
        return [self._column(at, bins, canvas, scale) for at, bins in groups]

    def _column(self, at: int, bins: list[Bin], canvas: Canvas, scale: Scale | None) -> Column:
        drawable = [extent for bin_ in bins if (extent := bin_.extent) is not None]
        bad = any(bin_.bad is not None for bin_ in bins)
        if not drawable:
            return Column(at, None, None, None, None, None, bad)
        lowest = min(extent.lowest for extent in drawable)
        if scale is None:  # on a logarithmic axis, and nothing in the chart is above zero
            return Column(at, None, None, None, None, None, True)
        top, bottom, first, last = (
            canvas.row(scale.share(y))
            for y in (
                max(extent.highest for extent in drawable),
                lowest,
                drawable[0].first,
                drawable[-1].last,
            )
        )
        smooth = next((bin_.smooth for bin_ in reversed(bins) if bin_.smooth is not None), None)
        return Column(at, top, bottom, first, last, smooth, bad or (self.log and lowest <= 0))

    @property
    def _limit(self) -> float:
        return max(self.total or 0.0, self.last)

    @property
    def _smooth_word(self) -> str:
        return "o smoothed" if self.ascii else "• smoothed"

    def _middle(self, width: int) -> str:
        """Return the words below the chart, as many as fit beside the ends of the axis."""
        now = f"{number(self.last)}/{number(self.total)}" if self.total else number(self.last)
        words = [f"{self.x_name} {now}"] if self._series else []
        if self.smoothed and self._series:
            words = [f"{words[0]}  {self._smooth_word}", self._smooth_word, *words]
        room = width - len(number(self._limit)) - 4
        return next((text for text in words if len(text) <= room), "")


def number(x: float) -> str:
    """Return an x value for people: `1,240`, `12.5`."""
    return f"{x:,.0f}" if x == int(x) else f"{x:,.4g}"


def _dot(x: float, limit: float, dots: int) -> int:
    """Return the column of dots for `x` when `limit` stands in the last one."""
    return min(dots - 1, int(x / limit * (dots - 1) + 0.5)) if limit > 0 else 0


def _labels(scale: Scale, rows: int) -> dict[int, str]:
    """Return row of cells -> label: the ends of the scale, and between them what leaves two rows free."""
    if rows < 2:
        return {0: scale.high_label} if rows else {}
    labels = {0: scale.high_label, rows - 1: scale.low_label}
    for value, text in scale.between:
        row = min(rows - 1, int((1 - scale.share(value)) * rows))
        if all(abs(row - taken) > 2 for taken in labels):
            labels[row] = text
    return labels
