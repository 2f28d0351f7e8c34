"""Every job of the labs: any can be started without being a step of the course."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from textual import on
from textual.message import Message
from textual.widget import Widget

from labassist.app import messages, words
from labassist.app.actions import JOBS
from labassist.app.screens.base import LabScreen
from labassist.app.where import JOURNAL, Source, of_record
from labassist.app.widgets.lines import Lines, folded
from labassist.app.widgets.rows import Column, Rows
from labassist.app.words import Line, Piece
from labassist.errors import InputError, counted
from labassist.runs.jobs import Job, list_jobs, load_job
from labassist.runs.live_line import span

COLUMNS = (
    Column("lab/job", 0, most=34),
    Column("what it does", 0, least=100),
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


class JobsScreen(LabScreen):
    """Lists jobs and starts one."""

    NAME = JOBS

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[Row] = []
        self._starting = ""

    def body(self) -> Iterable[Widget]:
        """Return the list of jobs, and what is said of the highlighted one."""
        yield Rows(
            COLUMNS,
            self._cells,
            cursor_sign=self.lab.signs.cursor,
            empty="no jobs here: labs/*/jobs.toml has none",
            id="list",
        )
        yield Lines(id="whole")

    def on_mount(self) -> None:
        """Read the jobs: small files."""
        super().on_mount()
        self._rows = read_jobs(self.lab.workspace)
        self.catch_up()

    def title_line(self) -> list[Line]:
        """Return what this is."""
        parts: list[Line] = [[("Jobs", "strong")], [("a run of any of them is recorded", "dim")]]
        if self._readonly:
            parts.append([(f"{self.lab.signs.alarm} read-only: nothing is written", "warn")])
        return parts

    @property
    def _readonly(self) -> bool:
        return self.lab.runs is not None and self.lab.runs.readonly

    def can(self, action: str) -> bool:
        """Start only what can be recorded."""
        if action == "start":
            row = self.query_one(Rows).here
            return row is not None and row.job is not None and not self._readonly
        return True

    def places(self) -> list[tuple[str, str, Callable[[], object]]]:
        """Return every job that can be started."""
        return [
            (f"job: {row.name}", row.job.summary, partial(self._start, at))
            for at, row in enumerate(self._rows)
            if row.job is not None and not self._readonly
        ]

    def _start(self, at: int) -> None:
        self.query_one(Rows).show(self._rows, at)
        self.action_start()

    def sources(self) -> list[Source]:
        """Return where the counts of the highlighted job come from."""
        row: Row | None = self.query_one(Rows).here
        if row is None or not row.runs:
            return []
        place = f"{JOURNAL}: finished runs of {row.name}, replays left out"
        return [
            Source("runs", f"{len(row.runs):,}", place),
            *of_record(row.runs[-1], {"last.loss": "last loss", "ended": "last finished"}),
        ]

    def hear(self, message: Message) -> None:
        """Take what the desk says."""
        super().hear(message)
        if isinstance(message, messages.RunsChanged):
            self.catch_up()
            self.refresh_lines()
        elif isinstance(message, messages.Notice):
            self._starting = ""

    def started(self, run: str) -> bool:
        """Open the run that was asked for here."""
        if not self._starting:
            return False
        self._starting = ""
        self.notice([])
        self.lab.open_run(run)
        return True

    def catch_up(self) -> None:
        """Count the runs anew."""
        self._fold()
        self.query_one(Rows).show(self._rows)
        self._about()

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
                self.lab.desk.begin("run", job.name, "--profile", profile, *self.lab.terms.options)

        self.app.push_screen(ChoiceScreen(job, first=not row.runs), chosen)

    # --- what is shown

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
        sign, kind = marks.yes if row.runs else marks.open, "plain"
        if row.live:
            sign, kind = marks.live, "good"
        if row.problem:
            sign, kind = marks.no, "bad"
        last = row.runs[-1].get("last", {}).get("loss") if row.runs else None
        return [
            (f"{sign} {row.name}", kind),
            (row.job.summary, "dim") if row.job else (row.problem, "bad"),
            (str(len(row.runs) or "-"), "plain"),
            (words.value(last) if row.runs else "-", "plain"),
            (row.verdict or "-", "good" if row.verdict == "BITWISE" else "plain"),
        ]

    def _about(self) -> None:
        """Say what the highlighted job is, and what came of its last run."""
        row = self.query_one(Rows).here
        lines: list[Line] = []
        if row is not None and row.problem:
            lines = [[(f"{self.lab.signs.alarm} ", "bad"), (row.problem, "plain")]]
        elif row is not None:
            lines = [[(row.name, "strong"), (f"  {row.job.summary}" if row.job else "", "plain")]]
            if row.runs:
                newest = row.runs[-1]
                said = f"{words.ago(newest['ended'])} ago, {counted(newest['step'], 'steps')}"
                said += f" in {span(newest.get('seconds', 0))}"
                said += f", profile {newest['profile']}" if newest.get("profile") else ""
                lines.append([("last finished ", "dim"), (said, "plain")])
        self.lines("#whole").show(*folded(lines, max(20, self.size.width - 4)))


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
