"""The first screen: the labs' jobs, what has been done with them, and what runs now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from textual import on
from textual.message import Message
from textual.widget import Widget

from labassist.app import messages, words
from labassist.app.actions import COURSE
from labassist.app.screens.base import LabScreen
from labassist.app.widgets.lines import Lines, fitted, folded
from labassist.app.widgets.rows import Column, Rows
from labassist.app.words import Line, Piece
from labassist.errors import InputError
from labassist.runs.jobs import Job, list_jobs, load_job

FIRST_START = (
    "Welcome. A run trains a small model and records all that made it what it is.",
    "Enter starts the first one, some seconds on one core. Then replay it by y.",
)

COLUMNS = (
    Column("lab/job", 0),
    Column("what it does", 56, wide=True),
    Column("runs", 6, right=True),
    Column("last loss", 9, right=True),
    Column("replayed", 12),
)


@dataclass
class Row:
    """A job and what the ledger says of it."""

    name: str
    job: Job | None
    problem: str = ""
    runs: list[Mapping[str, Any]] = field(default_factory=list)
    """Finished originals, oldest first."""
    live: list[str] = field(default_factory=list)
    verdict: str = ""


class CourseScreen(LabScreen):
    """Lists jobs; starts one; shows what is live."""

    NAME = COURSE

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[Row] = []
        self._starting = ""

    @property
    def watching(self) -> list[str]:  # type: ignore[override]
        """The newest live run is shown in one line."""
        live = self._live()
        return [live] if live else []

    def body(self) -> Iterable[Widget]:
        """Return the list of jobs, the first start's greeting, and the live run's line."""
        yield Rows(
            COLUMNS,
            self._cells,
            cursor_sign=self.lab.signs.cursor,
            empty="no jobs here: labs/*/jobs.toml has none",
            id="jobs",
        )
        yield Lines(id="about")
        yield Lines(id="live")
        yield Lines(id="machine")

    def on_mount(self) -> None:
        """Read the jobs: small files, wanted in the first frame."""
        super().on_mount()
        self._rows = read_jobs(self.lab.workspace)
        self.catch_up()

    def title_line(self) -> list[Line]:
        """Return the workspace and how much has been recorded."""
        runs = self.lab.runs
        parts: list[Line] = [[("labassist", "strong")]]
        if runs is not None:
            parts.append([(_count(len(runs.runs), "run"), "plain")])
            if runs.readonly:
                parts.append([(f"{self.lab.signs.alarm} read-only: nothing is written", "warn")])
        room = self.size.width - 4 - words.length(fitted(parts, self.size.width))
        parts.append([(_ending(_home(self.lab.workspace.root), room), "dim")])
        return parts

    def can(self, action: str) -> bool:
        """Start only what can be recorded; open only what there is."""
        if action == "start":
            row = self.query_one(Rows).here
            readonly = self.lab.runs is not None and self.lab.runs.readonly
            return row is not None and row.job is not None and not readonly
        if action == "newest":
            return self._newest() is not None
        return True

    def hear(self, message: Message) -> None:
        """Take what the desk says."""
        super().hear(message)
        if isinstance(message, messages.RunsChanged):
            self.lab.follow()
            self.catch_up()
            self.refresh_lines()
        elif isinstance(message, messages.RunGrew):
            if message.run == self._live() and not message.loading:
                self._show_live(message)
        elif isinstance(message, messages.MachineSampled):
            self._show_machine()
        elif isinstance(message, messages.RunStarted):
            self._starting = ""
            self.notice([])
        elif isinstance(message, messages.Notice):
            self._starting = ""

    def catch_up(self) -> None:
        """Count the runs anew."""
        self._fold()
        self.query_one(Rows).show(self._rows)
        self._about()
        if self._live() is None:
            self.lines("#live").show([])
        self._show_machine()

    def on_resize(self) -> None:
        """Fit the machine's line too."""
        super().on_resize()
        self.call_after_refresh(self._show_machine)

    # --- keys

    @on(Rows.Chosen)
    def _chosen(self) -> None:
        if self.can("start"):
            self.action_start()

    @on(Rows.Moved)
    def _moved(self) -> None:
        self._about()
        self.refresh_lines()

    def action_start(self) -> None:
        """Ask for the profile, then start the highlighted job."""
        from labassist.app.screens.choice import ChoiceScreen

        row = self.query_one(Rows).here
        if row is None or row.job is None or self._starting:
            return
        job: Job = row.job

        def chosen(profile: str | None) -> None:
            if profile is not None:
                self._starting = job.name
                self.notice([(f"starting {job.name}, {profile} …", "plain")])
                self.lab.desk.begin(job.name, profile)

        self.app.push_screen(ChoiceScreen(job, first=not row.runs), chosen)

    def action_newest(self) -> None:
        """Open the live run, or the newest one."""
        from labassist.app.screens.run import RunScreen

        run = self._newest()
        if run is not None:
            self.app.push_screen(RunScreen(run))

    # --- what is shown

    def _live(self) -> str | None:
        lives = self.lab.runs.lives if self.lab.runs else {}
        return max((run for run, life in lives.items() if life == "alive"), default=None)

    def _newest(self) -> str | None:
        if self._live():
            return self._live()
        runs = self.lab.runs.runs if self.lab.runs else ()
        return runs[-1]["id"] if runs else None

    def _fold(self) -> None:
        """Count each job's runs."""
        by_name = {row.name: row for row in self._rows}
        for row in self._rows:
            row.runs, row.live, row.verdict = [], [], ""
        verdicts = {
            document["replay_of"]: document["verdict"]["verdict"]
            for document in (self.lab.runs.runs if self.lab.runs else ())
            if document.get("replay_of") and document.get("verdict")
        }
        if self.lab.runs is None:
            return
        for document in self.lab.runs.runs:
            if document["job"] not in by_name:
                continue
            row = by_name[document["job"]]
            if document["state"] == "finished" and not document.get("replay_of"):
                row.runs.append(document)
                row.verdict = verdicts.get(document["id"], "")
            if self.lab.runs.lives.get(document["id"]) == "alive":
                row.live.append(document["id"])

    def _cells(self, row: Row) -> list[Piece]:
        marks = self.lab.signs
        if row.problem:
            return [
                (f"{marks.no} {row.name}", "bad"),
                (row.problem, "bad"),
                *[("-", "dim")] * 3,
            ]
        sign, kind = (marks.yes, "good") if row.runs else (marks.open, "dim")
        if row.live:
            sign, kind = marks.live, "good"
        last = row.runs[-1].get("last", {}).get("loss") if row.runs else None
        return [
            (f"{sign} {row.name}", kind if row.live else "plain"),
            (row.job.summary if row.job else "", "dim"),
            (str(len(row.runs) or "-"), "plain"),
            (words.value(last) if row.runs else "-", "plain"),
            (row.verdict or "-", "good" if row.verdict == "BITWISE" else "plain"),
        ]

    def _about(self) -> None:
        """Say what the highlighted job is, or greet a newcomer."""
        row = self.query_one(Rows).here
        lines: list[Line] = []
        new = self.lab.runs is not None and not self.lab.runs.runs and not self.lab.runs.readonly
        if row is not None and row.problem:
            lines = [[(f"{self.lab.signs.alarm} ", "bad"), (row.problem, "plain")]]
        elif new:
            lines = [[(text, "plain")] for text in FIRST_START]
        elif row is not None:
            lines = [[(row.name, "strong"), (f"  {row.job.summary}" if row.job else "", "plain")]]
            if row.runs:
                newest = row.runs[-1]
                said = f"{words.ago(newest['ended'])} ago, {newest['step']:,} steps"
                said += f" in {words.span(newest.get('seconds', 0))}"
                said += f", profile {newest['profile']}" if newest.get("profile") else ""
                lines.append([("last finished ", "dim"), (said, "plain")])
        self.lines("#about").show(*folded(lines, max(20, self.size.width - 4)))

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


def read_jobs(workspace: Any) -> list[Row]:
    """Return every job of the labs; one whose files have a fault says so in its row."""
    rows = []
    try:
        names = list_jobs(workspace)
    except InputError as error:
        return [Row("labs", None, str(error))]
    for name in names:
        try:
            rows.append(Row(name, load_job(workspace, name)))
        except InputError as error:
            rows.append(Row(name, None, str(error)))
    return rows


def _home(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)


def _ending(path: str, room: int) -> str:
    """Return a path, or the end of it that fits."""
    return path if len(path) <= room else f"~{path[len(path) - room + 1 :]}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
