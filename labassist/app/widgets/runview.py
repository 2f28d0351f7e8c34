"""The first side of a run's screen: its curve, the numbers beside it, the verdict of its replay, the end of its log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import Vertical

from labassist.app import messages
from labassist.app.overlay import Overlay
from labassist.app.points import Points
from labassist.app.progress import LABELS, Progress
from labassist.app.runfacts import note_lines
from labassist.app.widgets.chart import ChartView
from labassist.app.widgets.lines import Lines, fitted, folded, shortened, wrapped
from labassist.app.words import Line
from labassist.ledger.curves import held_out

if TYPE_CHECKING:
    from labassist.app.app import LabApp
    from labassist.app.screens.base import LabScreen

PROGRESS_LINES = 2
"""Most that a replay's progress takes."""


class RunView(Vertical):
    """Draws what `progress` and `overlay` know; the screen feeds those and calls the `show` methods."""

    def __init__(self, progress: Progress, overlay: Overlay, *, id: str) -> None:
        super().__init__(id=id)
        self.progress = progress
        self.overlay = overlay
        self.series = "loss"
        """The series that is drawn."""
        self._printed: tuple[list[Line], int] = ([], 0)

    @property
    def _lab(self) -> LabApp:
        return cast("LabApp", self.app)

    @property
    def _screen(self) -> LabScreen:
        return cast("LabScreen", self.screen)

    def compose(self) -> ComposeResult:
        """Lay out the parts."""
        chart = ChartView(id="chart")
        chart.ascii = self._lab.plain
        yield chart
        with Vertical(id="side"):
            yield Lines(id="values")
            yield Lines(id="progress")
            yield Lines(id="health")
            yield Lines(id="machine")
            yield Lines(id="verdict")
        log = Lines(id="log", classes="line")
        log.border_title = "log"
        yield log

    @property
    def chart(self) -> ChartView:
        """The curve."""
        return self.query_one(ChartView)

    def _lines(self, name: str) -> Lines:
        return self.query_one(name, Lines)

    # --- the curve

    def draw(self) -> None:
        """Draw the chosen series from its first point on, and what lies over it."""
        self._choose()
        self._choose()
        self.chart.clear()
        self._add(self.progress.series.get(self.series, ()), self.series)
        beside = held_out(self.progress.series)
        if self.series == "loss" and beside:
            self._add(self.progress.series[beside], beside)
        self._add(self.overlay.series.get(self.series, ()), "replay")

    def _choose(self) -> bool:
        """A run without a loss begins with the first series that it has; True where that is another one now."""
        if self.series in self.progress.series or not self.progress.series:
            return False
        self.series = next(iter(self.progress.series))
        return True

    def extend(self, message: messages.RunGrew, name: str = "") -> None:
        """Add the new points of a message under this name (default: the run's own)."""
        if self._choose():
            self.draw()
            return
        rows = message.points
        self._add(
            [(row["step"], row[self.series]) for row in rows if self.series in row], name or self.series
        )
        beside = held_out(self.progress.series)
        if self.series == "loss" and beside and not name:
            self._add([(row["step"], row[beside]) for row in rows if beside in row], beside)

    def _add(self, points: Iterable[tuple[float, float]], name: str) -> None:
        new = points if isinstance(points, Points) else list(points)
        if new:
            self.chart.extend(new, LABELS.get(name, name))

    def next_series(self) -> None:
        """Draw another series: those that people look for first, then the others."""
        known = [name for name in LABELS if name in self.progress.series]
        known += [name for name in self.progress.series if name not in LABELS]
        at = known.index(self.series) if self.series in known else -1
        self.series = known[(at + 1) % len(known)]
        self.draw()

    # --- the words

    def show_numbers(self) -> None:
        """Show values, pace and health."""
        progress, marks = self.progress, self._lab.signs
        if progress.document is None:
            return
        self._make_room()
        side = self._lines("#values").size.width
        stacked = self._screen.has_class("-wide")
        values, far = progress.newest(), progress.how_far(marks, 20 if stacked else 12)
        health = progress.how_it_goes(marks) + note_lines(progress.document)[:1]
        if stacked:
            self._lines("#values").show(*values)
            self._lines("#progress").show(*wrapped(far, side))
        else:
            lines = wrapped(values, side) if self.has_class("-curveless") else [fitted(values, side)]
            self._lines("#values").show(*lines)
            self._lines("#progress").show(fitted(far, side))
        widget = self._lines("#health")
        widget.show(*shortened(folded(health, side), widget.size.height, side))

    def _make_room(self) -> None:
        """Give the room of a curve that there is not to the log."""
        without = not self.progress.drawable()
        if without != self.has_class("-curveless"):
            self.set_class(without, "-curveless")
            self.call_after_refresh(lambda: self.show_log(*self._printed))

    def show_machine(self) -> None:
        """Show the machine in a line."""
        if self._lab.machine is None:
            return
        from labassist.machine.line import machine_line

        widget = self._lines("#machine")
        line = machine_line(self._lab.machine.sample, max(10, widget.size.width), self._lab.plain)
        widget.show([(line, "dim")])

    def show_log(self, lines: list[Line], skipped: int) -> None:
        """Show the end of the log; `skipped` bytes of it were passed over."""
        self._printed = lines, skipped
        widget = self._lines("#log")
        room = widget.size.height
        if room <= 0:
            return
        title = f"log (the end of it; {skipped:,} bytes before are in log.txt)" if skipped else "log"
        if widget.border_title != title:
            widget.border_title = title
        widget.show(*folded(lines[-room:], widget.size.width)[-room:])

    def show_verdict(self) -> None:
        """Show how far a replay is, or what it found."""
        widget, lab = self._lines("#verdict"), self._lab
        document = self.progress.document
        lines: list[Line] = []
        if document is not None:
            own = lab.replays.get(self.overlay.run)
            lines = self.overlay.lines(document, own, lab.runs, lab.signs, plain=lab.plain)
        lines = folded(lines, widget.size.width or self.size.width - 2)
        # A verdict in large letters takes the log's place where both have no room.
        self.set_class(len(lines) > PROGRESS_LINES, "-judged")
        widget.set_class(bool(lines), "-shown")
        if not self._screen.has_class("-wide"):
            widget.styles.height = max(1, min(len(lines), 3 if self._screen.has_class("-short") else 9))
        else:
            widget.styles.height = None
        widget.show(*lines)
