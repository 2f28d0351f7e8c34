"""The chart as a Textual widget: paints only the cells that changed, so that it is cheap over SSH."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.reactive import reactive
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from labassist.app.bins import Point
from labassist.app.chart import Chart, number
from labassist.app.points import Points

SHORTEST_WAIT = 0.25
"""Seconds between two repaints, however fast points come in; a slow link has a longer wait."""


class ChartView(Widget, can_focus=True):
    """Shows one `Chart`, with a line of words above it: each series, its newest value, whether it is smoothed.

    Feed it with `append` and `extend` (on the app's thread). It never repaints more than four times a second, and
    never when nothing changed. A cursor reads the exact values of a step.
    """

    KEYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("left right", "Read exact values at a step; past the newest: off."),
        (", .", "The cursor one step back, one step on."),
        ("home end", "The cursor to the first step, to the newest."),
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "read(-1, True)", show=False),
        Binding("right", "read(1, True)", show=False),
        Binding("comma", "read(-1, False)", show=False),
        Binding("full_stop", "read(1, False)", show=False),
        Binding("home", "read_end(False)", show=False),
        Binding("end", "read_end(True)", show=False),
    ]

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "chart--legend",
        "chart--axis",
        "chart--mark",
        "chart--smooth",
        "chart--cursor",
        "chart--series0",
        "chart--series1",
        "chart--series2",
    }

    DEFAULT_CSS = """
    ChartView {
        width: 1fr;
        height: 1fr;
        & > .chart--legend { text-style: bold; }
        & > .chart--axis { color: $text-muted; }
        & > .chart--mark { color: $text-error; text-style: bold reverse; }
        & > .chart--smooth { color: $text-warning; text-style: bold; }
        & > .chart--cursor { color: $foreground; text-style: bold; }
        & > .chart--series0 { color: $text-primary; }
        & > .chart--series1 { color: $text-accent; }
        & > .chart--series2 { color: $text-success; }
    }
    """

    ascii: reactive[bool] = reactive(False, repaint=False)
    """Draw with ASCII characters only."""
    log_y: reactive[bool] = reactive(False, repaint=False)
    """Logarithmic y axis."""
    smoothed: reactive[bool] = reactive(False, repaint=False)
    """Lay a moving average over the first series."""
    total: reactive[float | None] = reactive(None, repaint=False)
    """Where x ends; None: at the last point."""

    def __init__(
        self,
        *,
        total: float | None = None,
        smoothing: float = 0.9,
        x_name: str = "step",
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        """See `Chart` for `total`, `smoothing` and `x_name`, `Widget` for the rest."""
        super().__init__(name=name, id=id, classes=classes)
        self.chart = Chart(1, 1, total=total, smoothing=smoothing, x_name=x_name)
        self.set_reactive(ChartView.total, total)
        self.wait = SHORTEST_WAIT
        self._points: dict[str, Points] = {}
        self._legend = ""
        self._drawn = 0.0
        self._timer: Timer | None = None

    def append(self, x: float, y: float, series: str = "loss") -> None:
        """Add one point; see `Chart.append`."""
        self.extend(((x, y),), series)

    def extend(self, points: Iterable[Point], series: str = "loss") -> None:
        """Add many points at the price of one repaint."""
        kept = self._points.setdefault(series, Points())
        for x, y in points:
            self.chart.append(x, y, series)
            kept.add(float(x), float(y))
        self._draw_soon()

    def clear(self) -> None:
        """Forget all points, as when another run is shown."""
        self.chart.clear()
        self.chart.cursor = None
        self._points.clear()
        self._draw_soon()

    # --- the cursor

    @property
    def cursor(self) -> float | None:
        """The x whose values are read; None: the newest are shown."""
        return self.chart.cursor

    def action_read(self, way: int, by_cell: bool) -> None:
        """Put the cursor on the point a cell, or the one point, further left (-1) or right (1)."""
        points = next((self._points[name] for name in self.chart.names if len(self._points[name])), None)
        if points is None or (self.cursor is None and way > 0):
            return
        by = self.chart.cell if by_cell else 0.0
        if self.cursor is None:
            self._put(points.last)
        elif way < 0:
            self._put(points.before(self.cursor, by) or points.first)
        elif self.cursor == points.last:
            self._put(None)
        else:
            self._put(points.after(self.cursor, by) or points.last)

    def action_read_end(self, last: bool) -> None:
        """Put the cursor on the first or the newest point."""
        ends = [points.last if last else points.first for points in self._points.values() if len(points)]
        self._put(ends[0] if ends else None)

    def _put(self, cursor: float | None) -> None:
        self.chart.cursor = cursor
        self._draw()  # a key is answered at once

    @property
    def legend(self) -> str:
        """The words above the chart: the newest values, or with a cursor the exact ones at its step."""
        if self.cursor is None:
            return self.chart.legend()
        values = {name: points.at(self.cursor) for name, points in self._points.items()}
        said = [f"{name} {'-' if y is None else repr(y)}" for name, y in values.items()]
        return "  ".join([f"{self.chart.x_name} {number(self.cursor)}", *said])

    def render_line(self, y: int) -> Strip:
        """Return one line of the widget."""
        if self._words and y == 0:
            text = self.legend[: self.size.width].ljust(self.size.width)
            return Strip([Segment(text, self.get_component_rich_style("chart--legend"))], self.size.width)
        row = y - self._words
        if row >= self.chart.height or self.chart.width != self.size.width:
            return Strip.blank(self.size.width, self.rich_style)
        segments = [Segment(text, self._style(kind)) for text, kind in self.chart.segments(row)]
        return Strip(segments, self.chart.width)

    def on_resize(self) -> None:
        """Give the chart the new size; a widget without cells keeps its last one."""
        width, height = self.size  # the event's size would include the border
        if width > 0 and height > 0:
            self.chart.resize(width, height - self._words)
            self.refresh()
            self._settle()

    def watch_ascii(self, ascii: bool) -> None:
        """Redraw in the other characters."""
        self.chart.ascii = ascii
        self._draw_soon()

    def watch_log_y(self, log_y: bool) -> None:
        """Redraw on the other scale."""
        self.chart.log = log_y
        self._draw_soon()

    def watch_smoothed(self, smoothed: bool) -> None:
        """Redraw with or without the moving average."""
        self.chart.smoothed = smoothed
        self._draw_soon()

    def watch_total(self, total: float | None) -> None:
        """Redraw over the new range."""
        self.chart.total = total
        self._draw_soon()

    @property
    def _words(self) -> int:
        """Lines above the chart: one, where there is height for it."""
        return 1 if self.size.height >= 4 else 0

    def _style(self, kind: str) -> Style:
        # A fourth series and those after it share the style of the third; their names stand in the legend.
        known = f"chart--{kind}" in self.COMPONENT_CLASSES
        return self.get_component_rich_style(f"chart--{kind}" if known else "chart--series2")

    def _draw_soon(self) -> None:
        if not self.is_mounted or self._timer is not None:
            return  # the first resize paints all; a waiting repaint will take this along
        wait = self._drawn + self.wait - time.monotonic()
        if wait <= 0:
            self._draw()
        else:
            self._timer = self.set_timer(wait, self._draw)

    def _draw(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self._drawn = time.monotonic()
        legend = self.legend
        if self._words and legend != self._legend:
            width = self.size.width
            old, new = self._legend[:width].ljust(width), legend[:width].ljust(width)
            different = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
            if different:
                self.refresh(Region(different[0], 0, different[-1] + 1 - different[0], 1))
        for row, start, end in self.chart.changed_rows():
            self.refresh(Region(start, row + self._words, end - start, 1))
        self._legend = legend

    def _settle(self) -> None:
        """Take what is about to be painted in full as painted."""
        self.chart.changed_rows()
        self._legend = self.legend
