"""One run: its curve as it grows, how it goes, what it printed, and its replay."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget

from labassist.app import messages, words
from labassist.app.actions import RUN
from labassist.app.health import Health
from labassist.app.screens.base import LabScreen
from labassist.app.verdict import progress_lines, verdict_lines
from labassist.app.widgets.chart import ChartView
from labassist.app.widgets.lines import Lines, fitted, folded, wrapped
from labassist.app.words import Line
from labassist.ledger.curves import same_value

RECENT_S = 20.0
"""The rate and the time left are those of the last so many seconds."""


PROGRESS_LINES = 2
"""Most that a replay's progress takes."""


class RunScreen(LabScreen):
    """Shows one run, live or over."""

    NAME = RUN
    CSS_PATH: ClassVar[Any] = "run.tcss"
    AUTO_FOCUS = ""

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run
        self._document: Mapping[str, Any] | None = None
        self._life = ""
        self._last_sign = 0.0
        self._values: dict[str, Any] = {}
        self._health = Health()
        self._pace: deque[tuple[float, int]] = deque()
        self._losses: dict[int, Any] = {}
        self._log: list[str] = []
        self._skipped = 0
        self._replay = ""
        """Id of the replay whose curve lies over this one."""
        self._replayed = 0
        self._compared = 0
        self._different: int | None = None
        self._asked = False

    @property
    def watching(self) -> list[str]:  # type: ignore[override]
        """This run, and its replay where one lies over it."""
        return [self.run, *([self._replay] if self._replay else [])]

    def body(self) -> Iterable[Widget]:
        """Return the chart, the numbers, the machine, the verdict and the log."""
        chart = ChartView(id="chart")
        chart.ascii = self.lab.plain
        yield chart
        with Vertical(id="side"):
            yield Lines(id="values")
            yield Lines(id="progress")
            yield Lines(id="health")
            yield Lines(id="machine")
            yield Lines(id="verdict")
        yield Lines(id="log")

    def on_mount(self) -> None:
        """Find a replay that goes on already."""
        super().on_mount()
        self.lines("#log").border_title = "log"
        self.lab.follow(afresh=[self.run])
        self._seek_replay()

    def title_line(self) -> list[Line]:
        """Return what this run is and in which state."""
        document = self._document
        if document is None:
            return [[("run ", "plain"), (words.short(self.run), "strong")], [("reading …", "dim")]]
        readonly = bool(self.lab.runs and self.lab.runs.readonly)
        shown = words.state(document, self._life, readonly, self.lab.signs)
        said = f"{shown.sign} {shown.word}"
        if shown.word == "unseen":
            said = f"{shown.sign} unseen since {words.clock_of(self._last_sign)}"
        parts: list[Line] = [
            [("run ", "plain"), (words.short(self.run), "strong")],
            [(said, shown.kind)],
            [(document["job"], "plain")],
            [(document["mode"], "plain")],
        ]
        if document.get("replay_of"):
            parts.append([(f"replay of {words.short(document['replay_of'])}", "plain")])
        if document.get("resumed_from"):
            origin = document["resumed_from"]
            parts.append([(f"resumed from {words.short(origin['run'])}@{origin['step']}", "plain")])
        if readonly:
            parts.append([(f"{self.lab.signs.alarm} read-only", "warn")])
        parts.append([(f"started {words.clock(document['created'])}", "dim")])
        return parts

    def can(self, action: str) -> bool:
        """Stop what lives, replay what is over."""
        document = self._document
        readonly = bool(self.lab.runs and self.lab.runs.readonly)
        if action == "stop":
            return self._life == "alive" and not self._asked
        if action == "replay":
            over = document is not None and document["state"] != "running"
            return over and not readonly and not self._replaying()
        return True

    def hear(self, message: Message) -> None:
        """Take what the desk says."""
        super().hear(message)
        if isinstance(message, messages.RunGrew):
            if message.run == self.run:
                self._grew(message)
            elif message.run == self._replay:
                self._replay_grew(message)
        elif isinstance(message, messages.MachineSampled):
            self._show_machine()
        elif isinstance(message, (messages.RunsChanged, messages.ReplayMoved)):
            self.catch_up()
            self.refresh_lines()

    def catch_up(self) -> None:
        """Look for a replay that goes on, or has ended."""
        self._seek_replay()
        self._show_verdict()

    def on_resize(self) -> None:
        """Fit every line."""
        super().on_resize()
        self.call_after_refresh(self._show_all)

    # --- keys

    def action_stop(self) -> None:
        """Ask for a checkpoint and the end."""
        self._asked = True
        self.lab.desk.end(self.run)
        self.refresh_lines()

    def action_replay(self) -> None:
        """Start a replay."""
        self._drop_replay()
        self.lab.replays[self.run] = messages.ReplayMoved(self.run, "starting")
        self.lab.desk.replay(self.run)
        self._show_verdict()
        self.refresh_lines()

    def action_smooth(self) -> None:
        """Switch the moving average."""
        chart = self.query_one(ChartView)
        chart.smoothed = not chart.smoothed

    def action_log_scale(self) -> None:
        """Switch the scale."""
        chart = self.query_one(ChartView)
        chart.log_y = not chart.log_y

    # --- what the desk says

    def _grew(self, message: messages.RunGrew) -> None:
        document = message.document
        if message.begins:
            self._begin()
        changed = (document, message.life) != (self._document, self._life)
        self._document, self._life, self._last_sign = document, message.life, message.last_sign
        chart = self.query_one(ChartView)
        chart.total = document.get("total_steps") or None
        clip = document.get("config", {}).get("clip")
        losses = []
        for row in message.points:
            step = row["step"]
            self._values.update(row)
            self._health.feed(row, clip)
            if "loss" in row:
                self._losses[step] = row["loss"]
                losses.append((step, row["loss"]))
            if "t" in row:
                self._pace.append((row["t"], step))
        if losses:
            chart.extend(losses)
        while self._pace and self._pace[-1][0] - self._pace[0][0] > RECENT_S:
            self._pace.popleft()
        if message.log is not None:
            self._log, self._skipped = message.log, message.skipped
            self._show_log()
        if not message.loading:
            self._show_numbers()
        if changed:
            self.refresh_lines()
            self._show_verdict()

    def _begin(self) -> None:
        """Forget every point: they come again."""
        self._values, self._losses = {}, {}
        self._health = Health()
        self._pace.clear()
        self._drop_replay()

    def _replay_grew(self, message: messages.RunGrew) -> None:
        points = []
        for row in message.points:
            step = self._replayed = row["step"]
            if "loss" not in row:
                continue
            points.append((step, row["loss"]))
            if step in self._losses:
                self._compared += 1
                if self._different is None and not same_value(row["loss"], self._losses[step]):
                    self._different = step
        if points:
            self.query_one(ChartView).extend(points, "replay")
        self._show_verdict()

    def _seek_replay(self) -> None:
        """Lay the curve of a replay that goes on, or has just ended, over this one."""
        newest = self.lab.runs.replays.get(self.run) if self.lab.runs else None
        if newest is not None and newest["id"] != self._replay and self._goes_on(newest):
            self._drop_replay()
            self._replay = newest["id"]
            self.lab.follow(afresh=[self._replay])

    def _drop_replay(self) -> None:
        chart = self.query_one(ChartView)
        if chart.chart.last:
            chart.clear()
            chart.extend(self._losses.items())
        self._replay, self._replayed, self._compared, self._different = "", 0, 0, None

    def _goes_on(self, replay: Mapping[str, Any]) -> bool:
        lives = self.lab.runs.lives if self.lab.runs else {}
        return lives.get(replay["id"]) == "alive"

    def _replaying(self) -> bool:
        """Say whether a replay of this run goes on, started here or elsewhere."""
        ours = self.lab.replays.get(self.run)
        if ours is not None:
            return ours.answer is None and not ours.problem
        newest = self.lab.runs.replays.get(self.run) if self.lab.runs else None
        return newest is not None and (self._goes_on(newest) or self._undecided(newest))

    def _undecided(self, replay: Mapping[str, Any]) -> bool:
        """Say whether a replay has ended a moment ago and its verdict is being made."""
        return (
            replay["id"] == self._replay
            and not replay.get("verdict")
            and words.age(replay.get("ended", "")) < 60
        )

    # --- what is shown

    def _show_all(self) -> None:
        self._show_numbers()
        self._show_machine()
        self._show_log()
        self._show_verdict()

    def _show_numbers(self) -> None:
        document = self._document
        if document is None:
            return
        side = self.lines("#values").size.width
        stacked = self.has_class("-wide")
        values: list[Line] = [
            [(f"{label} ", "dim"), (words.value(self._values[name]), "strong")]
            for name, label in (
                ("loss", "loss"),
                ("grad_norm", "grad norm"),
                ("lr", "lr"),
                ("val_loss", "held-out loss"),
            )
            if name in self._values
        ]
        step, total = self._values.get("step", 0), document.get("total_steps", 0)
        progress: list[Line] = []
        if total:
            cells = 20 if stacked else 12
            progress.append([(words.bar(step / total, cells, self.lab.signs), "key")])
        progress.append([(f"step {step:,}" + (f"/{total:,}" if total else ""), "strong")])
        progress += [[(text, "plain")] for text in self._pace_words(document, step, total)]
        health = self._outcome(document) + self._health.words(document, self.lab.signs)
        if stacked:
            self.lines("#values").show(*values)
            self.lines("#progress").show(*wrapped(progress, side))
            self.lines("#health").show(*folded(health, side))
        else:
            self.lines("#values").show(fitted(values, side))
            self.lines("#progress").show(fitted(progress, side))
            self.lines("#health").show(*folded(health, side))

    def _pace_words(self, document: Mapping[str, Any], step: int, total: int) -> list[str]:
        """Return the rate, the time left or taken."""
        live = self._life == "alive"
        per_s = 0.0
        if live and len(self._pace) > 1:
            (t0, s0), (t1, s1) = self._pace[0], self._pace[-1]
            per_s = (s1 - s0) / (t1 - t0) if t1 > t0 else 0.0
        tokens = document.get("tokens_per_step", 0) * per_s if live else document.get("tokens_per_s", 0.0)
        said = []
        if tokens:
            said.append(words.rate(tokens))
        elif per_s:
            said.append(f"{per_s:.1f} steps/s")
        if live and per_s and total > step:
            said.append(f"{words.span((total - step) / per_s)} left")
        seconds = document.get("seconds") or self._values.get("t", 0.0)
        if seconds:
            said.append(f"{words.span(seconds)} {'so far' if live else 'in all'}")
        return said

    def _outcome(self, document: Mapping[str, Any]) -> list[Line]:
        """Return why a run is over, where that is not plain success."""
        word, reason = document["state"], document.get("reason", "")
        if word == "failed":
            return [[(f"{self.lab.signs.no} failed: ", "bad"), (reason or "no reason recorded", "plain")]]
        if word in ("stopped", "lost"):
            hint = f"; go on with: labassist resume {words.short(self.run)}"
            return [[(f"{word}: {reason}{hint}", "plain")]]
        return []

    def _show_machine(self) -> None:
        if self.lab.machine is None:
            return
        from labassist.machine.line import machine_line

        widget = self.lines("#machine")
        line = machine_line(self.lab.machine.sample, max(10, widget.size.width), self.lab.plain)
        widget.show([(line, "dim")])

    def _show_log(self) -> None:
        widget = self.lines("#log")
        room = widget.size.height
        if room <= 0:
            return
        shown = self._log[-room:]
        skipped = f" (the end of it; {self._skipped:,} bytes before are in log.txt)" if self._skipped else ""
        title = f"log{skipped}"
        if widget.border_title != title:
            widget.border_title = title
        widget.show(*[[(words.plain(text) if self.lab.plain else text, "plain")] for text in shown])

    def _show_verdict(self) -> None:
        widget = self.lines("#verdict")
        lines = folded(self._verdict_lines(), widget.size.width or self.size.width - 2)
        # A verdict in large letters takes the log's place where both have no room.
        self.set_class(len(lines) > PROGRESS_LINES, "-judged")
        widget.set_class(bool(lines), "-shown")
        if not self.has_class("-wide"):
            widget.styles.height = max(1, min(len(lines), 3 if self.has_class("-short") else 9))
        else:
            widget.styles.height = None
        widget.show(*lines)

    def _verdict_lines(self) -> list[Line]:
        document = self._document
        if document is None:
            return []
        marks, room = self.lab.signs, 7 if self.lab.plain else 5
        own = self.lab.replays.get(self.run)
        newest = self.lab.runs.replays.get(self.run) if self.lab.runs else None
        if self._replaying():
            phase = own.phase if own and not self._replayed else ""
            if newest is not None and newest["id"] == self._replay and newest["state"] != "running":
                phase = "comparing"
            total = (newest or {}).get("total_steps") or document.get("step", 0)
            return progress_lines(phase, self._replayed, total, self._compared, self._different, marks)
        if own is not None and own.problem:
            return [[(f"{marks.no} no verdict: ", "bad"), (own.problem, "plain")]]
        found = (own.answer if own else None) or (newest or {}).get("verdict") or document.get("verdict")
        return verdict_lines(found, marks, plain=self.lab.plain, room=room) if found else []
