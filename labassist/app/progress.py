"""One run's numbers as they grow: the newest values, the pace, the health, and every point of every series."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from labassist.app import words
from labassist.app.health import START, TIMES, Health
from labassist.app.messages import RunGrew
from labassist.app.points import Points
from labassist.app.where import Source
from labassist.app.words import Line, Signs
from labassist.runs.live_line import rate, span

RECENT_S = 20.0
"""The rate and the time left are those of the last so many seconds."""

LABELS = {
    "loss": "loss",
    "grad_norm": "grad norm",
    "lr": "lr",
    "eval_loss": "eval loss",
    "val_loss": "val loss",
}
"""Series whose newest value is shown, in order, and what they are called."""


class Progress:
    """Takes the messages of one run in order."""

    def __init__(self) -> None:
        self.document: Mapping[str, Any] | None = None
        self.life = ""
        self.last_sign = 0.0
        self.values: dict[str, Any] = {}
        """The newest value of each series, and `step` and `t`."""
        self.series: dict[str, Points] = {}
        self.health = Health()
        self._pace: deque[tuple[float, int]] = deque()
        self._steps: dict[str, int] = {}

    @property
    def alive(self) -> bool:
        """Whether its trainer lives, here."""
        return self.life == "alive"

    @property
    def step(self) -> int:
        """The newest step."""
        return int(self.values.get("step", 0))

    def feed(self, message: RunGrew) -> None:
        """Take what is new of the run."""
        if message.begins:
            self.values, self.series, self.health, self._steps = {}, {}, Health(), {}
            self._pace.clear()
        self.document, self.life, self.last_sign = message.document, message.life, message.last_sign
        clip = message.document.get("config", {}).get("clip")
        for row in message.points:
            step = row["step"]
            self.values.update(row)
            self.health.feed(row, clip)
            for name, number in row.items():
                if isinstance(number, float) and name != "t":
                    self.series.setdefault(name, Points()).add(step, number)
                    self._steps[name] = step
            if "t" in row:
                self._pace.append((row["t"], step))
        while self._pace and self._pace[-1][0] - self._pace[0][0] > RECENT_S:
            self._pace.popleft()

    def drawable(self, *names: str) -> bool:
        """Say whether one of these series (none named: any) is a curve, or may become one while the run lives."""
        found = [points for name, points in self.series.items() if not names or name in names]
        if self.alive:
            return bool(found) or not self.series
        return any(len(points) > 1 for points in found)

    # --- in words

    def newest(self) -> list[Line]:
        """Return the newest value of each series that people look for; of all where it has none of these."""
        known = {name: label for name, label in LABELS.items() if name in self.values}
        return [
            [(f"{label} ", "dim"), (words.value(self.values[name]), "strong")]
            for name, label in (known or {name: name for name in self._steps}).items()
        ]

    def how_far(self, marks: Signs, cells: int) -> list[Line]:
        """Return a bar of `cells` cells, the step, the rate and the time left or taken."""
        document = self.document or {}
        total = document.get("total_steps", 0)
        parts: list[Line] = []
        if total and cells:
            parts.append([(words.bar(self.step / total, cells, marks), "key")])
        parts.append([(f"step {self.step:,}" + (f"/{total:,}" if total else ""), "strong")])
        per_s = self._per_s()
        tokens = (
            document.get("tokens_per_step", 0) * per_s if self.alive else document.get("tokens_per_s", 0.0)
        )
        said = []
        if tokens:
            said.append(rate(tokens))
        elif per_s:
            said.append(f"{per_s:.1f} steps/s")
        if per_s and total > self.step:
            said.append(f"{span((total - self.step) / per_s)} left")
        seconds = document.get("seconds") or self.values.get("t", 0.0)
        if seconds:
            said.append(f"{span(seconds)} {'so far' if self.alive else 'in all'}")
        return parts + [[(text, "plain")] for text in said]

    def outcome(self, marks: Signs) -> list[Line]:
        """Return why the run is over, where that is not plain success."""
        document = self.document or {}
        word, reason = document.get("state", ""), document.get("reason", "")
        if word == "failed":
            return [[(f"{marks.no} failed: ", "bad"), (reason or "no reason recorded", "plain")]]
        if word in ("stopped", "lost"):
            hint = f"; go on with: labassist resume {words.short(document['id'])}"
            return [[(f"{word}: {reason}{hint}", "plain")]]
        return []

    def how_it_goes(self, marks: Signs) -> list[Line]:
        """Return the outcome and the health, each in a line of words."""
        if self.document is None:
            return []
        if self.alive and not self.values and self.document["kind"] == "job":
            return [[(f"{marks.dot} ", "dim"), ("no step yet: it is getting ready", "plain")]]
        return self.outcome(marks) + self.health.words(self.document, marks)

    def sources(self) -> list[Source]:
        """Return where each of these numbers comes from."""
        if self.document is None:
            return []
        run = self.document["id"]
        curve = f"ledger/runs/{run}/metrics-rank0.jsonl"
        found = [
            Source(
                LABELS.get(name, name),
                repr(self.values[name]),
                f"{curve}, the line of step {step:,} (rank 0)",
            )
            for name, step in self._steps.items()
        ]
        found.append(Source("step", f"{self.step:,}", f"{curve}, its last line"))
        if self.document.get("total_steps"):
            total = f"{self.document['total_steps']:,}"
            found.append(Source("steps in all", total, f"ledger/runs/{run}/events-rank0.jsonl, hello"))
        if self._per_s():
            pace = f"{self._per_s():.2f} steps/s"
            found.append(
                Source("pace, time left", pace, f"steps of the last {RECENT_S:g} s by `t` in {curve}")
            )
        if self.health.norms:
            said = f"{self.health.clipped:,} of {self.health.norms:,}"
            found.append(Source("clipped", said, f"grad_norm above config clip, counted over {curve}"))
        if "loss" in self._steps:
            found.append(
                Source(
                    "falling, flat, rising",
                    "a trend",
                    "mean of the loss (0.95 on the past) now against a quarter of the run ago; "
                    "falling below -0.2%, rising above +5%",
                )
            )
        if self.health.peak:
            rule = f"highest mean of the loss (0.95 on the past), where above {TIMES} times the first {START} losses"
            found.append(Source("unstable", repr(self.health.peak[1]), f"{rule}; {curve}"))
        return found

    def _per_s(self) -> float:
        """Return the steps a second of the last `RECENT_S` seconds; 0 for a run that is over."""
        if not self.alive or len(self._pace) < 2:
            return 0.0
        (t0, s0), (t1, s1) = self._pace[0], self._pace[-1]
        return (s1 - s0) / (t1 - t0) if t1 > t0 else 0.0
