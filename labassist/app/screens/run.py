"""One run: its curves as they grow, how it goes, its log, configuration, code, lineage and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from textual.message import Message
from textual.widget import Widget

from labassist.app import messages, words
from labassist.app.actions import RUN, TABS
from labassist.app.overlay import Overlay
from labassist.app.points import Points
from labassist.app.progress import Progress
from labassist.app.runfacts import code_page, config_page, lineage_page, note_lines, size
from labassist.app.screens.base import LabScreen
from labassist.app.where import Source, of_record
from labassist.app.widgets.lines import Lines, fitted
from labassist.app.widgets.pager import Pager
from labassist.app.widgets.prompt import Prompt
from labassist.app.widgets.rows import Column, Rows
from labassist.app.widgets.runview import RunView
from labassist.app.words import Line, Piece

CHECKPOINTS = (
    Column("step", 8, right=True),
    Column("size", 9, right=True),
    Column("tensors", 7, right=True),
    Column("when", 16),
    Column("where it lies", 0),
)


class RunScreen(LabScreen):
    """Shows one run, live or over."""

    NAME = RUN
    CSS_PATH: ClassVar[Any] = "run.tcss"

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run
        self.tab = 1
        self._progress = Progress()
        self._overlay = Overlay(run)
        self._detail: messages.RunDetail | None = None
        self._series = "loss"
        self._log: list[str] = []
        self._skipped = 0
        self._asked = False
        self._gone = ""

    @property
    def watching(self) -> list[str]:  # type: ignore[override]
        """This run, and its replay where one lies over it."""
        return [self.run, *([self._overlay.replay] if self._overlay.replay else [])]

    def body(self) -> Iterable[Widget]:
        """Return the tabs, and what they show: the chart with its numbers, a text, or the checkpoints."""
        yield Lines(id="tabs")
        yield RunView(self._progress, self._overlay, id="view")
        yield Pager(plain=self.lab.plain, follow=True, id="whole-log", classes="page")
        yield Pager(plain=self.lab.plain, id="page", classes="page")
        yield Rows(
            CHECKPOINTS,
            self._checkpoint,
            cursor_sign=self.lab.signs.cursor,
            empty="no checkpoint yet",
            id="checkpoints",
        )
        yield Prompt()

    def on_mount(self) -> None:
        """Find a replay that goes on already."""
        super().on_mount()
        self.lab.follow(afresh=[self.run])
        self._seek_replay()
        self.action_tab(1)

    def focus_main(self) -> None:
        """Give the keys to what the tab shows."""
        parts = {1: "#chart", 2: "#whole-log", 6: "#checkpoints"}
        self.set_focus(self.query_one(parts.get(self.tab, "#page"), Widget))

    def title_line(self) -> list[Line]:
        """Return what this run is and in which state."""
        document, marks = self._progress.document, self.lab.signs
        named: Line = [("run ", "plain"), (words.short(self.run), "strong")]
        if self._gone:
            return [named, [(f"{marks.alarm} {self._gone} is gone", "bad")]]
        if document is None:
            return [named, [("reading …", "dim")]]
        shown = words.state(document, self._progress.life, self._readonly, marks)
        said = f"{shown.sign} {shown.word}"
        if shown.word == "unseen":
            said = f"{shown.sign} unseen since {words.clock_of(self._progress.last_sign)}"
        parts: list[Line] = [
            named,
            [(said, shown.kind)],
            [(document["job"], "plain")],
            [(document["mode"], "plain")],
        ]
        if document.get("replay_of"):
            parts.append([(f"replay of {words.short(document['replay_of'])}", "plain")])
        if document.get("resumed_from"):
            origin = document["resumed_from"]
            parts.append([(f"resumed from {words.short(origin['run'])}@{origin['step']}", "plain")])
        if self._readonly:
            parts.append([(f"{marks.alarm} read-only", "warn")])
        parts.append([(f"started {words.clock(document['created'])}", "dim")])
        return parts

    @property
    def _view(self) -> RunView:
        return self.query_one(RunView)

    @property
    def _readonly(self) -> bool:
        return bool(self.lab.runs and self.lab.runs.readonly)

    def can(self, action: str) -> bool:
        """Stop what lives, replay what is over, and nothing of what is gone."""
        document = self._progress.document
        known = document is not None and self._gone != "its record"
        if action == "stop":
            return self._progress.alive and not self._asked
        if action == "replay":
            over = known and document is not None and document["state"] != "running"
            return over and not self._readonly and not self._replaying()
        if action == "audit":
            return known
        if action in ("note", "export"):
            return known and not self._readonly
        if action in ("smooth", "log_scale"):
            return self.tab == 1 and self._progress.drawable()
        if action == "series":
            return self.tab == 1 and self._progress.drawable() and len(self._progress.series) > 1
        return True

    def sources(self) -> list[Source]:
        """Return where the curve's values and the record's fields come from."""
        document = self._progress.document
        if document is None:
            return []
        found = self._progress.sources()
        if self._view.chart.smoothed:
            found.append(
                Source("smoothed", "the line of dots", "mean of the curve with weight 0.9 on the past")
            )
        fields = {"state": "state", "seconds": "seconds", "tokens_per_s": "tok/s", "reason": "reason"}
        found += of_record(document, fields)
        newest = self._overlay.newest(self.lab.runs)
        if newest and newest.get("verdict"):
            place = f"record of the replay {words.short(newest['id'])}, field verdict"
            found.append(Source("verdict", newest["verdict"]["verdict"], place))
        return found

    # --- what the desk says

    def hear(self, message: Message) -> None:
        """Take what the desk says."""
        super().hear(message)
        if isinstance(message, messages.RunGrew):
            if message.run == self.run:
                self._grew(message)
            elif message.run == self._overlay.replay:
                self._overlay.feed(message, self._progress.series.get("loss") or Points())
                self._view.extend(message, "replay")
                self._view.show_verdict()
        elif isinstance(message, messages.RunGone) and message.run == self.run:
            self._gone = message.what
            self.notice(
                [("! ", "bad"), (f"{message.what} was taken away; what was read stays here", "plain")]
            )
            self.refresh_lines()
        elif isinstance(message, messages.RunDetail) and message.run == self.run:
            self._detail = message
            self._show_page()
        elif isinstance(message, messages.Answered) and message.key == "note":
            self.answered(message, "noted; the lineage shows it")
        elif isinstance(message, messages.Answered) and message.key == "export":
            self.exported(message)
        elif isinstance(message, messages.MachineSampled):
            self._view.show_machine()
        elif isinstance(message, (messages.RunsChanged, messages.ReplayMoved)):
            self._ask_detail()
            self.catch_up()
            self.refresh_lines()

    def catch_up(self) -> None:
        """Look for a replay that goes on, or has ended."""
        self._seek_replay()
        self._view.show_verdict()

    def on_resize(self) -> None:
        """Fit every line."""
        super().on_resize()
        self.call_after_refresh(self._show_all)

    def _grew(self, message: messages.RunGrew) -> None:
        if message.begins:
            self._overlay.drop()
        changed = (message.document, message.life) != (self._progress.document, self._progress.life)
        self._progress.feed(message)
        self._view.chart.total = message.document.get("total_steps") or None
        if message.begins:
            self._view.draw()
        else:
            self._view.extend(message)
        if message.log is not None:
            self._log, self._skipped = message.log, message.skipped
            self._show_log()
        if not message.loading:
            self._view.show_numbers()
        if changed:
            self.refresh_lines()
            self._view.show_verdict()
            self._show_page()

    def _ask_detail(self) -> None:
        """Read what only some tabs show."""
        if self.tab > 3:
            self.lab.desk.detail(self.run)

    def _seek_replay(self) -> None:
        """Lay the curve of a replay that goes on over this one."""
        replay = self._overlay.to_follow(self.lab.runs)
        if replay:
            self._overlay.follow(replay)
            self._view.draw()
            self.lab.follow(afresh=[replay])

    def _replaying(self) -> bool:
        return self._overlay.goes_on(self.lab.replays.get(self.run), self.lab.runs)

    # --- keys

    def action_tab(self, tab: int) -> None:
        """Show one of the run's sides."""
        self.tab = tab
        for at, name in ((1, "#view"), (2, "#whole-log"), (6, "#checkpoints")):
            self.query_one(name).display = tab == at
        page = self.query_one("#page", Pager)
        page.display = tab in (3, 4, 5)
        page.top()
        self._ask_detail()
        self._show_page()
        self.focus_main()
        self.refresh_lines()
        self._show_tabs()

    def action_stop(self) -> None:
        """Ask for a checkpoint and the end."""
        self._asked = True
        self.lab.desk.end(self.run)
        self.refresh_lines()

    def action_replay(self) -> None:
        """Start a replay."""
        self._overlay.drop()
        self._view.draw()
        self.lab.replay(self.run)
        self._view.show_verdict()
        self.refresh_lines()

    def action_audit(self) -> None:
        """Audit this run."""
        from labassist.app.screens.audit import AuditScreen

        self.app.push_screen(AuditScreen(self.run))

    def action_note(self) -> None:
        """Ask for a note."""
        self.query_one(Prompt).ask("note", "what you saw; it is kept with the run")

    def on_prompt_given(self, message: Prompt.Given) -> None:
        """Keep the note."""
        if message.text:
            self.lab.keep_note(self.run, message.text)

    def action_export(self) -> None:
        """Write the run as a page."""
        self.notice([("writing the page …", "plain")])
        self.lab.export(self.run)

    def action_series(self) -> None:
        """Draw the next series."""
        self._view.next_series()

    def action_smooth(self) -> None:
        """Switch the moving average."""
        chart = self._view.chart
        chart.smoothed = not chart.smoothed

    def action_log_scale(self) -> None:
        """Switch the scale."""
        chart = self._view.chart
        chart.log_y = not chart.log_y

    def action_copy(self) -> None:
        """Copy the id."""
        self.copy(self.run)

    # --- what is shown

    def _show_all(self) -> None:
        self._show_tabs()
        self._view.show_numbers()
        self._view.show_machine()
        self._show_log()
        self._view.show_verdict()

    def _show_tabs(self) -> None:
        parts: list[Line] = [
            [(f"[{at} {name}]", "strong")] if at == self.tab else [(f" {at}", "key"), (f" {name} ", "plain")]
            for at, name in enumerate(TABS, 1)
        ]
        self.lines("#tabs").show(fitted(parts, max(0, self.size.width - 2), ""))

    def _show_log(self) -> None:
        skipped = f" (the end of it; {self._skipped:,} bytes before are in log.txt)" if self._skipped else ""
        lines: list[Line] = [[(text, "plain")] for text in self._log]
        before: list[Line] = [[(f"log{skipped}", "dim")]] if skipped else []
        self.query_one("#whole-log", Pager).show([*before, *lines])
        self._view.show_log(lines, self._skipped)

    def _show_page(self) -> None:
        document = self._progress.document
        if document is None:
            return
        page = self.query_one("#page", Pager)
        if self.tab == 3:
            page.show(config_page(document)[1:])
        elif self.tab == 4:
            page.show(code_page(document, self._detail)[1:])
        elif self.tab == 5:
            page.show(note_lines(document) + lineage_page(self.run, self._detail, self.lab.signs))
        elif self.tab == 6 and self._detail is not None:
            self.query_one(Rows).show(self._detail.checkpoints)

    def _checkpoint(self, kept: Mapping[str, Any]) -> list[Piece]:
        place = "pruned, its hashes are kept" if kept.get("pruned") else str(kept["path"])
        gone = not kept["there"] and not kept.get("pruned")
        return [
            (f"{kept['step']:,}", "strong"),
            (size(kept["bytes"]), "plain"),
            (f"{kept['tensors']:,}", "plain"),
            (words.clock(kept.get("time", "")), "dim"),
            (f"{self.lab.signs.no} gone: {place}" if gone else place, "bad" if gone else "plain"),
        ]
