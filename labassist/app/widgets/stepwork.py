"""The part of a lab's screen beside or below the text: what is to be done, the step's run, and its check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from textual.app import ComposeResult
from textual.containers import Vertical

from labassist.app import coursefacts, words
from labassist.app.messages import RunGrew
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

OUTSIDE, TEXT = 3, 5
"""Rows of the screen that are never this part's: title, notice and keys; where the text stands above it, a rule and
four rows of that too."""

CHART, LEAST_CHART = 6, 4
"""Rows of a curve below the text, its rule included, and the fewest that show one."""


class StepWork(Vertical):
    """Shows a step's question, command, run and check; parts that a step lacks take no room."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._asked: list[Line] = []
        self._step: dict[str, Any] | None = None
        self._pace: list[Line] = []
        self._printed = 0
        """Rows of the part that shows what a run printed."""

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
        self._asked = coursefacts.question(step, marks) + coursefacts.what_to_do(step) if step else []
        if step and step["run"] and self._lab.terms.said:
            self._asked.append([(self._lab.terms.said, "dim")])
        self._step = step
        self.set_class(not self._asked and not run.id, "-empty")
        self.set_class(bool(step and step["check"]), "-checked")
        self.show_run(run)

    def show_run(self, run: StepRun) -> None:
        """Show the run's pace and health, and the machine while it lives."""
        progress, marks = run.progress, self._lab.signs
        known = bool(run.id) and progress.document is not None
        self.set_class(known, "-run")
        curve = progress.drawable("loss")
        self.set_class(known and not curve, "-printed")
        self.set_class(known and run.alive, "-live")
        health: list[Line] = []
        if known:
            title = f"run {words.short(run.id)}"
            if self.chart.border_title != title:
                self.chart.border_title = title
            if not curve:
                self._show_printed(run, title)
            newest = progress.newest()[1 if curve else 0 : 2 if curve else None]
            self._pace = progress.how_far(marks, 10) + newest
            health = folded(progress.how_it_goes(marks)[:1], self._room)[:2]
            self.show_machine(run)
        self._divide(health)

    def grow(self, run: StepRun, message: RunGrew) -> None:
        """Take what has come of a run, into its numbers and into the curve."""
        chart = self.chart
        if message.begins:
            chart.clear()
        run.progress.feed(message)
        if message.log is not None:
            run.printed = message.log
        chart.total = message.document.get("total_steps") or None
        losses = [(row["step"], row["loss"]) for row in message.points if "loss" in row]
        if losses:
            chart.extend(losses)
        if not message.loading:
            self.show_run(run)

    def _divide(self, health: list[Line]) -> None:
        """Give each part its rows. Where they are few the command is cut first, then what passed, then the curve."""
        ask = [row for line in self._asked for row in self._folded(line)]
        check = self._check()
        most = MOST_CHECK_LINES[self._beside]
        room = self.screen.size.height - (OUTSIDE if self._beside else OUTSIDE + TEXT)
        taken = sum(map(self.has_class, ("-run", "-live"))) + (min(len(check), most) + 1 if check else 0)
        body = self._printed if self.has_class("-printed") else LEAST_CHART if self.has_class("-run") else 0
        if len(ask) + len(health) + taken + body > room:
            ask = self._brief()
        if check and len(ask) + len(health) + taken + body > room:
            brief = self._check(brief=self._room)
            saved = min(len(check), most) - min(len(brief), most)
            if len(ask) + len(health) + taken + body - saved <= room:
                check, taken = brief, taken - saved
        if len(ask) + len(health) + taken > room:
            health = []
        left = room - len(ask) - len(health) - taken
        self.set_class(left < body, "-crowded")
        hidden = left < body and not self.has_class("-printed")
        pace = [*self._pace[:2], [("o shows its curve", "dim")], *self._pace[2:]] if hidden else self._pace
        self.query_one("#pace", Lines).show(fitted(pace, self._room))
        if check and left < 0:
            # On very few rows the verdict is more than the question that it answers.
            ask = ask[-max(1, room - len(health) - taken + min(len(check), most) - 2) :]
            left = room - len(ask) - len(health) - taken
        most = max(2, min(len(check), most) + min(left, 0))
        if len(check) > most:
            check = [*check[: most - 1], [("w shows every criterion whole", "dim")]]
        self._fill("#ask", ask)
        self._fill("#health", health)
        self._fill("#check", check)
        chart = None if self._beside else max(LEAST_CHART, min(CHART - bool(check), left))
        height = self.chart.styles.height
        if (height.value if height is not None and chart is not None else height) != chart:
            self.chart.styles.height = chart

    def _check(self, brief: int = 0) -> list[Line]:
        """Return the rows of the check's answer."""
        said = coursefacts.verdict_of(self._step, self._lab.signs, brief) if self._step else []
        return folded(said, self._room, indent=8)

    def _folded(self, line: Line) -> list[Line]:
        """Return a line in rows; an option's further rows stand under its first word."""
        return folded([line], self._room, indent=6 if line[0] == ("  ", "plain") else 2)

    def _brief(self) -> list[Line]:
        """Return what is asked with the command on one row: it is known where it has run, and `y` copies it."""
        rows: list[Line] = []
        for line in self._asked:
            own = self._folded(line)
            if line[0][0] == coursefacts.PROMPT and len(own) > 1:
                own = [[*folded([line], self._room - 2)[0], (" …", "dim")]]
            rows += own
        return rows

    def _show_printed(self, run: StepRun, title: str) -> None:
        """Show the end of what a run printed in the place of the curve that it does not have."""
        said = folded([[(text, "plain")] for text in run.printed], self._room)
        rows = said[-(2 if self.screen.has_class("-short") else MOST_PRINTED[self._beside]) :]
        self._printed = len(rows) + 1
        widget = self.query_one("#printed", Lines)
        whole = "printed" if said else "printed nothing"
        widget.border_title = f"{title}, the end of what it printed" if rows != said else f"{title} {whole}"
        self._fill("#printed", rows)

    def show_machine(self, run: StepRun) -> None:
        """Show the machine in a line, while the run lives."""
        if self._lab.machine is None or not run.alive:
            return
        from labassist.machine.line import machine_line

        line = machine_line(self._lab.machine.sample, self._room, self._lab.plain)
        self.query_one("#machine", Lines).show([(line, "dim")])

    @property
    def _beside(self) -> bool:
        """Whether this part lies beside the text, with all the height that there is."""
        return self.screen.has_class("-wide") and self.screen.has_class("-tall")

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
