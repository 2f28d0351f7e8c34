"""Every recorded run: find and sort them, open one, replay or audit one, compare two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from textual import on
from textual.message import Message
from textual.widget import Widget

from labassist.app import actions, messages, words
from labassist.app.actions import LEDGER
from labassist.app.runsort import DOWNWARD, SORTS, sorted_by
from labassist.app.screens.base import LabScreen
from labassist.app.verdict import KIND, progress_lines, verdict_lines
from labassist.app.where import Source, of_record
from labassist.app.widgets.lines import Lines, folded, shortened, wrapped
from labassist.app.widgets.prompt import Prompt
from labassist.app.widgets.rows import Column, Rows
from labassist.app.words import Line, Piece
from labassist.errors import counted
from labassist.ledger.curves import Value

COLUMNS = (
    Column("id", 7),
    Column("job", 0, most=34),
    Column("profile", 8, wide=True),
    Column("mode", 5, wide=True),
    Column("state", 11),
    Column("steps", 7, right=True),
    Column("loss", 8, right=True),
    Column("when", 6, right=True),
    Column("replayed", 12),
    Column("note", 0, least=122),
)

FIND = "lr>1e-4 state=failed job~train, or a word"


class LedgerScreen(LabScreen):
    """Lists runs, the newest first."""

    NAME = LEDGER
    CSS_PATH: ClassVar[Any] = "ledger.tcss"

    def __init__(self) -> None:
        super().__init__()
        self._query = ""
        self._found: Sequence[Mapping[str, Any]] | None = None
        self._marked: list[str] = []
        """At most two runs, in the order in which they were marked."""
        self._sort = SORTS[0]
        self._noted = ""
        self._steps: dict[str, int] = {}
        """Replay -> its last step, while it goes on."""

    @property
    def watching(self) -> list[str]:  # type: ignore[override]
        """The replays that go on, for their progress; and what lives, for its step."""
        lives = self.lab.runs.lives if self.lab.runs else {}
        return [run for run, life in lives.items() if life == "alive"]

    def body(self) -> Iterable[Widget]:
        """Return the list, the line for searches and notes, what is said of the highlighted run and of its replay."""
        yield Rows(COLUMNS, self._cells, cursor_sign=self.lab.signs.cursor, empty="no runs yet", id="runs")
        yield Prompt()
        yield Lines(id="detail")
        yield Lines(id="verdict")

    def on_mount(self) -> None:
        """List what is known."""
        super().on_mount()
        self._show_rows()

    def title_line(self) -> list[Line]:
        """Return how many runs there are and what was searched for."""
        runs = self.lab.runs
        if runs is None:
            return [[("Ledger", "strong")], [("reading …", "dim")]]
        table = self.query_one(Rows)
        parts: list[Line] = [[("Ledger", "strong")]]
        total = counted(len(runs.runs), "runs")
        if self._query:
            parts.append([(f"{len(table.rows):,} of {total}", "plain"), (f"  find: {self._query}", "key")])
        else:
            parts.append([(total, "plain")])
        if table.rows:
            parts.append([(f"at {table.at + 1:,}", "dim")])
        if self._marked:
            parts.append([(f"marked {' '.join(map(words.short, self._marked))}", "key")])
        if runs.readonly:
            parts.append([(f"{self.lab.signs.alarm} read-only: nothing is written", "warn")])
        return parts

    def can(self, action: str) -> bool:
        """Open and replay what there is."""
        here = self.query_one(Rows).here
        readonly = bool(self.lab.runs and self.lab.runs.readonly)
        if action in ("open", "mark", "audit", "copy"):
            return here is not None
        if action in ("note", "export"):
            return here is not None and not readonly
        if action == "compare":
            return len(self._pair()) == 2
        if action == "replay":
            over = here is not None and here["state"] != "running"
            return over and not readonly and not self._replaying(here)
        return True

    def label(self, action: actions.Action) -> str:
        """Say by what the list is sorted."""
        return f"sorted by {self._sort}" if action.name == "sort" else action.label

    def sources(self) -> list[Source]:
        """Return where the highlighted row's numbers come from."""
        here = self.query_one(Rows).here
        if here is None:
            return []
        fields = {
            "id": "id",
            "job": "job",
            "state": "state",
            "step": "steps",
            "last.loss": "loss",
            "created": "when",
            "note": "note",
            "code.commit": "commit",
            "code.digest": "code digest",
            "seed": "seed",
        }
        found = of_record(here, fields)
        newest = self.lab.runs.replays.get(here["id"]) if self.lab.runs else None
        if newest and newest.get("verdict"):
            place = f"record of the replay {words.short(newest['id'])}, field verdict"
            found.append(Source("replayed", newest["verdict"]["verdict"], place))
        return found

    def hear(self, message: Message) -> None:
        """Take what the desk says."""
        super().hear(message)
        if isinstance(message, messages.RunsChanged):
            self.lab.follow()
            self.catch_up()
        elif isinstance(message, messages.Found) and message.text == self._query:
            self._found = message.runs
            self.notice([("! ", "bad"), (message.problem, "plain")] if message.problem else [])
            self._show_rows()
        elif isinstance(message, messages.RunGrew):
            if message.points:
                self._steps[message.run] = message.points[-1]["step"]
                self.query_one(Rows).repaint()
                self._show_verdict()
        elif isinstance(message, messages.Answered) and message.key == "note":
            self.answered(message, "noted")
        elif isinstance(message, messages.Answered) and message.key == "export":
            self.exported(message)
        elif isinstance(message, messages.ReplayMoved):
            self._show_verdict()
            self.query_one(Rows).repaint()
            self.refresh_lines()

    def catch_up(self) -> None:
        """List what is known now."""
        if self._query:
            self.lab.desk.find(self._query)
        self._show_rows()

    # --- keys

    @on(Rows.Moved)
    def _moved(self) -> None:
        self._show_detail()
        self._show_verdict()
        self.refresh_lines()

    @on(Rows.Chosen)
    def action_open(self) -> None:
        """Open the highlighted run."""
        here = self.query_one(Rows).here
        if here is not None:
            self.lab.open_run(here["id"])

    def action_mark(self) -> None:
        """Mark the highlighted run or take its mark away; of three the oldest mark goes."""
        table = self.query_one(Rows)
        run = table.here["id"]
        if run in self._marked:
            self._marked.remove(run)
        else:
            self._marked = [*self._marked[-1:], run]
        table.repaint()
        self.refresh_lines()

    def _pair(self) -> list[str]:
        """Return the two runs to compare, the older one first: those marked, or the marked and the highlighted."""
        here = self.query_one(Rows).here
        chosen = list(self._marked)
        if len(chosen) == 1 and here is not None and here["id"] not in chosen:
            chosen.append(here["id"])
        return sorted(chosen)

    def action_compare(self) -> None:
        """Compare two runs."""
        from labassist.app.screens.compare import CompareScreen

        a, b = self._pair()
        self.app.push_screen(CompareScreen(a, b))

    def action_replay(self) -> None:
        """Replay the highlighted run."""
        self.lab.replay(self.query_one(Rows).here["id"])
        self._show_verdict()
        self.refresh_lines()

    def action_audit(self) -> None:
        """Audit the highlighted run."""
        from labassist.app.screens.audit import AuditScreen

        self.app.push_screen(AuditScreen(self.query_one(Rows).here["id"]))

    def action_copy(self) -> None:
        """Copy the highlighted run's id."""
        self.copy(self.query_one(Rows).here["id"])

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self._show_rows()
        self.refresh_lines()

    def action_find(self) -> None:
        """Open the search line."""
        self.query_one(Prompt).ask("find", FIND, self._query)

    def action_note(self) -> None:
        """Ask for a note."""
        self._noted = self.query_one(Rows).here["id"]
        self.query_one(Prompt).ask("note", f"what you saw of run {words.short(self._noted)}")

    def action_export(self) -> None:
        """Write the highlighted run as a page."""
        self.notice([("writing the page …", "plain")])
        self.lab.export(self.query_one(Rows).here["id"])

    def action_back(self) -> None:
        """Forget the search, else go back."""
        if self._query:
            self._search("")
        else:
            super().action_back()

    def on_prompt_given(self, message: Prompt.Given) -> None:
        """Search, or keep the note."""
        if message.purpose == "find":
            self._search(message.text)
        elif message.text:
            self.lab.keep_note(self._noted, message.text)

    def _search(self, text: str) -> None:
        self._query, self._found = text, None
        self.notice([])
        if text:
            self.lab.desk.find(text)
        else:
            self._show_rows()

    # --- what is shown

    def _show_rows(self) -> None:
        table = self.query_one(Rows)
        if self.lab.runs is None:
            table.empty = "reading …"
            return
        found = self.lab.runs.runs if not self._query else self._found
        if found is None:
            return
        table.empty = "nothing found" if self._query else "no runs yet"
        here = table.here["id"] if table.here else None
        rows = sorted_by(found, self._sort)
        table.head(self._sort, down=self._sort in DOWNWARD)
        # Stay on the same run where a newer one came in above it.
        at = next((index for index, row in enumerate(rows) if row["id"] == here), 0)
        table.show(rows, at)

    def _replaying(self, run: Mapping[str, Any]) -> bool:
        ours = self.lab.replays.get(run["id"])
        if ours is not None and ours.answer is None and not ours.problem:
            return True
        newest = self.lab.runs.replays.get(run["id"]) if self.lab.runs else None
        return newest is not None and self._life(newest) == "alive"

    def _life(self, run: Mapping[str, Any]) -> str:
        return self.lab.runs.lives.get(run["id"], "") if self.lab.runs else ""

    def _cells(self, run: Mapping[str, Any]) -> list[Piece]:
        readonly = bool(self.lab.runs and self.lab.runs.readonly)
        shown = words.state(run, self._life(run), readonly, self.lab.signs)
        live = self._life(run) == "alive"
        name = run["job"]
        if run.get("replay_of"):
            name = f"replay of {words.short(run['replay_of'])}"
        elif run.get("resumed_from"):
            name = f"resumed from {words.short(run['resumed_from']['run'])}"
        loss: Value | None = run.get("last", {}).get("loss")
        verdict = self._verdict(run)
        step = self._steps.get(run["id"], run.get("step", 0)) if live else run.get("step", 0)
        mark = "*" if run["id"] in self._marked else ""
        return [
            (f"{words.short(run['id'])}{mark}", "key" if mark else "strong"),
            (name, "plain"),
            (run.get("profile", ""), "plain"),
            (run["mode"], "plain"),
            (f"{shown.sign} {shown.word}", shown.kind),
            (f"{step:,}" if step else "-", "plain"),
            (words.value(loss) if loss is not None else "-", "plain"),
            ("now" if live else words.ago(run["created"]), "plain"),
            (verdict or "-", KIND.get(verdict, "plain")),
            (" ".join(run.get("note", "").split()), "dim"),
        ]

    def _verdict(self, run: Mapping[str, Any]) -> str:
        """Return the newest verdict on a run, or that of a replay itself."""
        if self._replaying(run):
            return "replaying"
        ours = self.lab.replays.get(run["id"])
        newest = self.lab.runs.replays.get(run["id"], {}) if self.lab.runs else {}
        found = (ours.answer if ours else None) or newest.get("verdict") or run.get("verdict") or {}
        return str(found.get("verdict", ""))

    def _show_detail(self) -> None:
        run = self.query_one(Rows).here
        if run is None:
            self.lines("#detail").show([])
            return
        code = run["code"]
        change = " + your change" if code.get("dirty") else ""
        parts: list[Line] = [
            [(run["id"], "strong")],
            [(words.clock(run["created"]), "plain")],
            [
                (
                    f"commit {code.get('commit', '')[:8]}{change}" if code.get("commit") else "no commit",
                    "plain",
                )
            ],
            [(f"seed {run['seed']}", "plain")],
            [(f"profile {run['profile']}", "plain")] if run.get("profile") else [],
        ]
        said = run.get("health") or run.get("reason") or " ".join(run.get("note", "").split())
        width = max(20, self.size.width - 2)
        first, *more = wrapped([part for part in parts if part], width)
        # What has no room beside the others stands before the second line's own words.
        rest = [piece for line in more for piece in [*line, ("  ", "plain")]]
        self.lines("#detail").show(first, *shortened(folded([[*rest, (said, "plain")]], width), 1, width))

    def _show_verdict(self) -> None:
        """Show the replay of the highlighted run, where this app started one or one goes on."""
        run = self.query_one(Rows).here
        widget = self.lines("#verdict")
        lines: list[Line] = []
        if run is not None:
            marks = self.lab.signs
            ours = self.lab.replays.get(run["id"])
            newest = self.lab.runs.replays.get(run["id"], {}) if self.lab.runs else {}
            if self._replaying(run):
                live = bool(newest) and self._life(newest) == "alive"
                step = self._steps.get(newest["id"], 0) if live else 0
                total = newest.get("total_steps") or run.get("step", 0)
                lines = progress_lines(ours.phase if ours else "", step, total, 0, None, marks)
            elif ours is not None and ours.problem:
                lines = [[(f"{marks.no} no verdict: ", "bad"), (ours.problem, "plain")]]
            elif ours is not None and ours.answer is not None:
                lines = verdict_lines(
                    ours.answer, marks, plain=self.lab.plain, room=7 if self.lab.plain else 5
                )
        widget.set_class(bool(lines), "-shown")
        widget.show(*lines)
