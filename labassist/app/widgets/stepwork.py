"""The part of a lab's screen beside or below the text: what is to be done, the step's run, and its check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from textual.app import ComposeResult
from textual.containers import Vertical

from labassist.app import coursefacts, words
from labassist.app.steprun import StepRun
from labassist.app.widgets.chart import ChartView
from labassist.app.widgets.lines import Lines, fitted, folded
from labassist.app.words import Line

if TYPE_CHECKING:
    from labassist.app.app import LabApp

MOST_CHECK_LINES = {False: 6, True: 14}
"""Rows of a check's answer below the text, and beside it."""

MOST_PRINTED = {False: 5, True: 24}
"""Rows of what a run without a curve printed, below the text, and beside it."""


class StepWork(Vertical):
    """Shows a step's question, command, run and check; parts that a step lacks take no room."""

    @property
    def _lab(self) -> LabApp:
        return cast("LabApp", self.app)

    @property
    def chart(self) -> ChartView:
        """The curve of the step's run."""
        return self.query_one(ChartView)

    def compose(self) -> ComposeResult:
        """Lay out the parts."""
        yield Lines(id="ask")
        chart = ChartView(id="chart", classes="line")
        chart.ascii = self._lab.plain
        yield chart
        yield Lines(id="printed", classes="line")
        yield Lines(id="pace")
        yield Lines(id="machine")
        yield Lines(id="health")
        yield Lines(id="check", classes="line")

    def show(self, step: dict[str, Any] | None, run: StepRun) -> None:
        """Show all of a step; None: it is not read yet."""
        marks = self._lab.signs
        lines = coursefacts.question(step, marks) + coursefacts.what_to_do(step) if step else []
        if step and step["run"] and self._lab.terms.said:
            lines.append([(self._lab.terms.said, "dim")])
        self._fill("#ask", folded(lines, self._room))
        self.set_class(not lines and not run.id, "-empty")
        self.show_run(run)
        verdict = coursefacts.verdict_of(step, marks) if step else []
        rows = folded(verdict, self._room, indent=8)
        most = MOST_CHECK_LINES[self.screen.has_class("-wide")]
        if len(rows) > most:
            rows = [*rows[: most - 1], [("w shows every criterion whole", "dim")]]
        self.set_class(bool(rows), "-checked")
        self._fill("#check", rows)

    def show_run(self, run: StepRun) -> None:
        """Show the run's pace and health, and the machine while it lives."""
        progress, marks = run.progress, self._lab.signs
        known = bool(run.id) and progress.document is not None
        self.set_class(known, "-run")
        if not known:
            return
        curve = progress.drawable("loss")
        self.set_class(not curve, "-printed")
        title = f"run {words.short(run.id)}"
        if self.chart.border_title != title:
            self.chart.border_title = title
        if not curve:
            self._show_printed(run, title)
        far = progress.how_far(marks, 10) + progress.newest()[1 if curve else 0 : 2 if curve else None]
        self.query_one("#pace", Lines).show(fitted(far, self._room))
        self._fill("#health", folded(progress.how_it_goes(marks)[:1], self._room)[:2])
        self.show_machine(run)

    def _show_printed(self, run: StepRun, title: str) -> None:
        """Show the end of what a run printed in the place of the curve that it does not have."""
        said = folded([[(text, "plain")] for text in run.printed], self._room)
        rows = said[-MOST_PRINTED[self.screen.has_class("-wide")] :]
        widget = self.query_one("#printed", Lines)
        widget.border_title = (
            f"{title}, the end of what it printed" if len(rows) < len(said) else f"{title} printed"
        )
        self._fill("#printed", rows)

    def show_machine(self, run: StepRun) -> None:
        """Show the machine in a line, while the run lives."""
        self.set_class(run.alive, "-live")
        if self._lab.machine is None or not run.alive:
            return
        from labassist.machine.line import machine_line

        line = machine_line(self._lab.machine.sample, self._room, self._lab.plain)
        self.query_one("#machine", Lines).show([(line, "dim")])

    @property
    def _room(self) -> int:
        """Cells of a line; the parts themselves have no width while they are hidden."""
        return max(20, self.size.width)

    def _fill(self, name: str, lines: list[Line]) -> None:
        """Show lines in a part that is as high as they are many."""
        widget = self.query_one(name, Lines)
        height = len(lines) + (1 if widget.has_class("line") else 0)
        if widget.styles.height is None or widget.styles.height.value != height:
            widget.styles.height = height
        widget.show(*lines)
