"""The first screen: the labs, how far one is, what to do next, and what runs now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from textual import on
from textual.message import Message
from textual.widget import Widget

from labassist.app import actions, coursecache, messages, words
from labassist.app.actions import COURSE
from labassist.app.coursefacts import (
    GREETING,
    course_sources,
    course_title,
    lab_sign,
    lab_time,
    next_step,
)
from labassist.app.screens.base import LabScreen
from labassist.app.where import Source
from labassist.app.widgets.lines import Lines, fitted, folded
from labassist.app.widgets.rows import Column, Rows
from labassist.app.words import Line, Piece
from labassist.errors import counted

COLUMNS = (
    Column("wk", 5),
    Column("lab", 0, most=34),
    Column("what it is about", 0, least=112),
    Column("needs", 19, least=70),
    Column("done", 5, right=True),
    Column("time", 6, right=True),
)


class CourseScreen(LabScreen):
    """Lists labs; opens one; shows what is live."""

    NAME = COURSE

    def __init__(self) -> None:
        super().__init__()
        self._over = -1
        """Runs that had ended when the progress was asked for last."""
        self._again = False
        """Somebody asked for a faulty lab to be read again."""

    @property
    def watching(self) -> list[str]:  # type: ignore[override]
        """The newest live run is shown in one line."""
        live = self._live()
        return [live] if live else []

    def body(self) -> Iterable[Widget]:
        """Return the list of labs, what is said of the highlighted one, and the lines of what lives."""
        yield Rows(
            COLUMNS, self._cells, cursor_sign=self.lab.signs.cursor, empty="reading the labs …", id="labs"
        )
        yield Lines(id="about", classes="line")
        yield Lines(id="live")
        yield Lines(id="machine")

    def on_mount(self) -> None:
        """Show the labs as they were last time: they are wanted in the first frame."""
        super().on_mount()
        if self.lab.course is None:
            self.lab.course = coursecache.read(self.lab.workspace.root)
        self.catch_up()

    def title_line(self) -> list[Line]:
        """Return the workspace and how far one is."""
        parts: list[Line] = [[("labassist", "strong")]]
        if self.lab.course is not None:
            parts += course_title(self.lab.course)
        if self.lab.runs is not None:
            count = len(self.lab.runs.runs)
            parts.append([(counted(count, "runs"), "plain")])
            if self.lab.runs.readonly:
                parts.insert(1, [(f"{self.lab.signs.alarm} read-only: nothing is written", "warn")])
        room = self.size.width - 4 - words.length(fitted(parts, self.size.width))
        parts.append([(_ending(_home(self.lab.workspace.root), room), "dim")])
        return parts

    def can(self, action: str) -> bool:
        """Open only what there is."""
        if action == "open":
            here = self.query_one(Rows).here
            return here is not None and not here["problem"]
        if action == "newest":
            return self._newest() is not None
        return True

    def label(self, action: actions.Action) -> str:
        """Say whether the run that would be opened lives."""
        return "live run" if action.name == "newest" and self._live() else action.label

    def sources(self) -> list[Source]:
        """Return where the progress comes from."""
        return course_sources(self.lab.course) if self.lab.course is not None else []

    def hear(self, message: Message) -> None:
        """Take what the desk says."""
        super().hear(message)
        if isinstance(message, messages.RunsChanged):
            self.lab.follow()
            over = len(message.runs) - len(message.lives)
            if self._over >= 0 and over != self._over:
                self.lab.read_course()  # a run that has ended may be what a step waits for
            self._over = over
            self.catch_up()
            self.refresh_lines()
        elif isinstance(message, messages.Answered) and message.key == "labs":
            if message.problem:
                self.notice([("! ", "bad"), (message.problem, "plain")])
            elif self._again:
                self.notice([("read again", "plain")])
            self._again = False
            self.catch_up()
            self.refresh_lines()
        elif isinstance(message, messages.RunGrew):
            if message.run == self._live() and not message.loading:
                self._show_live(message)
        elif isinstance(message, messages.MachineSampled):
            self._show_machine()

    def catch_up(self) -> None:
        """Show the labs as they are known now."""
        table = self.query_one(Rows)
        if self.lab.course is not None:
            labs = self.lab.course["labs"]
            table.empty = "no labs: this installation has none"
            wanted = self.lab.lab_here or self.lab.course["next"].partition("/")[0]
            table.show(labs, next((at for at, lab in enumerate(labs) if lab["id"] == wanted), 0))
        self._about()
        if self._live() is None:
            self.lines("#live").show([])
        self._show_machine()

    def on_screen_resume(self) -> None:
        """Ask for the labs again; at the start the app does."""
        if self.lab.runs is not None:
            self.lab.read_course()

    def on_resize(self) -> None:
        """Fit the lines below too."""
        super().on_resize()
        self.call_after_refresh(self._about)
        self.call_after_refresh(self._show_machine)

    # --- keys

    @on(Rows.Chosen)
    def _chosen(self) -> None:
        if self.can("open"):
            self.action_open()
        else:
            self._again = True
            self.notice([("reading the labs again …", "plain")])
            self.lab.read_course()

    @on(Rows.Moved)
    def _moved(self) -> None:
        table = self.query_one(Rows)
        following = self.lab.course["next"].partition("/")[0] if self.lab.course else ""
        if table.here is not None:
            # Away from the next lab the highlight is the reader's; back on it, it follows the course again.
            here = table.here["id"]
            self.lab.lab_here = "" if here == following else here
        self._about()
        self.refresh_lines()

    def action_open(self) -> None:
        """Open the highlighted lab."""
        self.lab.open_lab(self.query_one(Rows).here["id"])

    def action_newest(self) -> None:
        """Open the live run, or the newest one."""
        run = self._newest()
        if run is not None:
            self.lab.open_run(run)

    # --- what is shown

    def _live(self) -> str | None:
        lives = self.lab.runs.lives if self.lab.runs else {}
        return max((run for run, life in lives.items() if life == "alive"), default=None)

    def _newest(self) -> str | None:
        if self._live():
            return self._live()
        runs = self.lab.runs.runs if self.lab.runs else ()
        return runs[-1]["id"] if runs else None

    def _cells(self, lab: Mapping[str, Any]) -> list[Piece]:
        sign, kind = lab_sign(lab, self.lab.signs)
        if lab["problem"]:
            return [("", "dim"), (f"{sign} {lab['id']}", kind), (lab["problem"], kind), ("faulty", kind)]
        first, last = lab["weeks"]
        weeks = str(first) if first == last else f"{first}-{last}"
        name = f"{sign} {lab['id'][:2]} {lab['title']}"
        done = f"{lab['done']}/{lab['total']}" if lab["done"] else "-"
        return [
            (weeks, "dim"),
            (name, kind if kind in ("key", "warn") else "plain"),
            (lab["summary"], "dim"),
            (lab["needs"], "plain"),
            (done, "plain"),
            (lab_time(lab), "plain"),
        ]

    def _about(self) -> None:
        """Say what the highlighted lab is, or greet a newcomer."""
        here: Mapping[str, Any] | None = self.query_one(Rows).here
        lines: list[Line] = []
        runs = self.lab.runs
        begun = any(lab["done"] for lab in self.lab.course["labs"]) if self.lab.course else False
        if here is not None and here["problem"]:
            lines = [[(f"{self.lab.signs.alarm} ", "bad"), (here["problem"], "plain")]]
        elif runs is not None and not runs.runs and not runs.readonly and not begun:
            lines = [[(GREETING, "plain")]]
        elif here is not None:
            named: Line = [(f"{here['id'][:2]} {here['title']}  ", "strong"), (here["summary"], "plain")]
            lines = [named, next_step(here)]
        room = max(20, self.size.width - 4)
        self.lines("#about").show(*folded(lines, room, indent=0))

    def _show_live(self, message: messages.RunGrew) -> None:
        document = message.document
        if message.life != "alive":
            self.lines("#live").show([])
            return
        last = message.points[-1] if message.points else None
        parts: list[Line] = [
            [(f"{self.lab.signs.live} Live: ", "good"), (words.short(message.run), "strong")]
        ]
        parts.append([(document["job"] + (", a replay" if document.get("replay_of") else ""), "plain")])
        if last is not None:
            total = document.get("total_steps", 0)
            parts.append([(f"step {last['step']:,}" + (f"/{total:,}" if total else ""), "plain")])
            if "loss" in last:
                parts.append([(f"loss {words.value(last['loss'])}", "plain")])
        self.lines("#live").show(fitted(parts, self.size.width - 2))

    def _show_machine(self) -> None:
        if self.lab.machine is None:
            return
        from labassist.machine.line import machine_line

        line = machine_line(self.lab.machine.sample, max(10, self.size.width - 4), self.lab.plain)
        self.lines("#machine").show([(line, "dim")])


def _home(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)


def _ending(path: str, room: int) -> str:
    """Return a path, or the end of it that fits."""
    return path if len(path) <= room else f"~{path[len(path) - room + 1 :]}"
