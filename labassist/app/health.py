"""How a run is going, in words, from its curve as it grows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from labassist.app.words import Line, Signs, value
from labassist.ledger.curves import HELD_OUT, held_out

ENOUGH = 20
"""Steps before a trend is named."""

START = 3
"""The highest of the first so many losses is where a run began."""

TIMES = 2
"""A run was unstable where the average of its loss rose above so many times that: it knew less than nothing."""

_KEPT = 64

SIGN_KINDS = {"alarm": "warn", "yes": "good", "dot": "dim"}


class Health:
    """Takes rows of a curve in order of their steps; keeps little."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._weight = 0.0
        self._steps = 0
        self._trail: list[float] = []
        self._stride = 1
        self._bad: tuple[int, str] | None = None
        self._start = 0.0
        self.peak: tuple[float, float, int] | None = None
        """Where an unstable run began, its highest average, and the step of that."""
        self.norms = 0
        self.clipped = 0
        self._held_out: dict[str, tuple[tuple[float, int], tuple[float, int]]] = {}
        """Series -> its latest and its lowest value, each with its step."""

    def feed(self, row: Mapping[str, Any], clip: object) -> None:
        """Take one row; `clip` is the run's gradient norm limit, where it is a number."""
        loss, norm = row.get("loss"), row.get("grad_norm")
        if isinstance(loss, float):
            self._loss(row["step"], loss)
        if isinstance(norm, float) and isinstance(clip, int | float):
            self.norms += 1
            self.clipped += norm > clip
        for name in HELD_OUT:
            held = row.get(name)
            if isinstance(held, float) and math.isfinite(held):
                latest = (held, row["step"])
                self._held_out[name] = latest, min(self._held_out.get(name, (latest, latest))[1], latest)

    def words(self, document: Mapping[str, Any], marks: Signs) -> list[Line]:
        """Return one sentence on the loss and one on the rest; empty before there is anything to say."""
        said = document.get("health", "")
        if said:
            first: Line = [(f"{marks.no} ", "bad"), (said, "plain")]
        elif self._bad:
            first = [(f"{marks.no} ", "bad"), (f"loss is {self._bad[1]} at step {self._bad[0]:,}", "plain")]
        elif self._steps < ENOUGH:
            first = [(f"{marks.dot} ", "dim"), ("too early to say how it goes", "dim")] if self._steps else []
        else:
            first = self._trend(marks)
        second: Line = []
        if self.norms:
            second.append((f"clipped {100 * self.clipped / self.norms:.0f}% of steps", "plain"))
        if name := held_out(self._held_out):
            latest, best = self._held_out[name]
            text = f"held-out loss {value(latest[0])} (step {latest[1]:,})"
            text += ", its best" if latest == best else f", best {value(best[0])} at step {best[1]:,}"
            second.append(((", " if second else "") + text, "plain"))
        idle: Line = (
            [(f"{marks.alarm} ", "warn"), (document["idle"][-1], "plain")] if document.get("idle") else []
        )
        return [line for line in (first, idle, second) if line]

    def _loss(self, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            self._bad = self._bad or (step, str(loss))
            return
        self._steps += 1
        # An exponential moving average, corrected for its empty start (as Adam corrects its moments).
        self._mean = 0.95 * self._mean + 0.05 * loss
        self._weight = 0.95 * self._weight + 0.05
        average = self._mean / self._weight
        if self._steps <= START:
            self._start = max(self._start, loss)
        elif average > max(TIMES * self._start, self._start + 1, self.peak[1] if self.peak else 0.0):
            self.peak = self._start, average, step
        if self._steps % self._stride == 0:
            self._trail.append(average)
            if len(self._trail) > _KEPT:
                self._trail = self._trail[1::2]
                self._stride *= 2

    def _trend(self, marks: Signs) -> Line:
        """Compare the average now with that a quarter of the run ago; say first that it had risen on the way."""
        sign, said = self._now()
        if self.peak and not said.startswith("rising"):
            start, high, step = self.peak
            rose = f"unstable: the loss's average rose from {value(start)} to {value(high)} at step {step:,}"
            return [(f"{marks.alarm} ", "warn"), (f"{rose}; now {said}", "plain")]
        return [(f"{getattr(marks, sign)} ", SIGN_KINDS[sign]), (said, "plain")]

    def _now(self) -> tuple[str, str]:
        """Return the sign of the trend and the trend in words."""
        now = self._mean / self._weight
        then = self._trail[len(self._trail) * 3 // 4 - 1] if len(self._trail) >= 4 else self._trail[0]
        change = (now - then) / max(abs(then), 1e-12)
        sign, word = (
            ("alarm", "rising")
            if change > 0.05
            else ("yes", "falling")
            if change < -0.002
            else ("dot", "flat")
        )
        return sign, f"{word}: {change:+.1%} over the last quarter of the steps"
