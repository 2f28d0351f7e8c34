"""The line that tells of a run while it is followed: where it stands, how fast it goes, how long it takes."""

from __future__ import annotations

import shutil
import time
from typing import Any, TextIO

from labassist.ledger.canonical import decode_number
from labassist.ledger.curves import Tail, held_out
from labassist.ledger.store import Ledger

_PLAIN_EVERY_S = 5.0


class LiveLine:
    """Step, loss, rate, tokens a second and time left, redrawn in place on a terminal."""

    def __init__(self, ledger: Ledger, run_id: str, out: TextIO) -> None:
        self._tail = Tail(ledger.run_folder(run_id) / "metrics-rank0.jsonl")
        self._ledger = ledger
        self._run_id = run_id
        self._out = out
        self._live = out.isatty()
        self._values: dict[str, Any] = {}
        self._first: tuple[int, float] | None = None
        self._newest: tuple[int, float] = (0, 0.0)
        """The newest step and when its first row came: what is measured after it, as an evaluation, is no step's time."""
        self._spoke = 0.0
        self._drawn = ""
        self._warned = set(self._warnings())
        """Whoever starts a run says what is known by then."""

    def draw(self) -> None:
        """Redraw when something changed; off a terminal, a plain line every few seconds."""
        rows = self._tail.poll()
        for row in rows:
            self._values.update(row)
            at = (row["step"], row.get("t", 0.0))
            self._first = self._first or at
            self._newest = at if at[0] > self._newest[0] else self._newest
        if not rows:
            return
        text = self._text()
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._out.write("\r" + text[:width].ljust(min(len(self._drawn), width)))
            self._out.flush()
            self._drawn = text[:width]
        elif time.monotonic() - self._spoke > _PLAIN_EVERY_S:
            self._spoke = time.monotonic()
            print(text, file=self._out, flush=True)

    def warn(self) -> None:
        """Say what the run's trainer warned of since."""
        for warning in self._warnings():
            if warning not in self._warned:
                self._warned.add(warning)
                self.say(f"warning: {warning}")

    def _warnings(self) -> list[str]:
        return list((self._ledger.run(self._run_id) or {}).get("warnings", []))

    def say(self, text: str) -> None:
        """Print a line of its own above the live one."""
        self._out.write(("\r" + " " * len(self._drawn) + "\r" if self._drawn else "") + text + "\n")
        self._out.flush()
        self._drawn = ""

    def close(self) -> None:
        """End the live line, leaving its last state on the screen."""
        if self._values and not self._live:
            print(self._text(), file=self._out, flush=True)
        if self._drawn:
            self._out.write("\n")
            self._out.flush()

    def _text(self) -> str:
        document = self._ledger.run(self._run_id) or {}
        total = document.get("total_steps", 0)
        step = self._values["step"]
        parts = [f"step {step:,}" + (f"/{total:,}" if total >= step else "")]
        for name in ("loss", "lr", held_out(self._values)):
            value = self._values.get(name)
            if isinstance(value, int | float):
                shown = f"{value:.2e}" if name == "lr" else number(float(value))
                parts.append(f"{name.removesuffix('_loss')} {shown}")
        steps_per_s = self._steps_per_s()
        if steps_per_s:
            tokens = document.get("tokens_per_step", 0) * steps_per_s
            parts.append(rate(tokens) if tokens else f"{steps_per_s:.1f} steps/s")
            if total > step:
                parts.append(f"{span((total - step) / steps_per_s)} left")
        return "  ".join(parts)

    def _steps_per_s(self) -> float:
        if self._first is None:
            return 0.0
        step, began = self._first
        elapsed = self._newest[1] - began
        return float((self._newest[0] - step) / elapsed) if elapsed > 0 else 0.0


def number(value: object) -> str:
    """Return a recorded number, or what the ledger writes for one that JSON lacks, as a person reads it."""
    if isinstance(value, str) and value:
        value = decode_number(value)
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if abs(value) >= 1e-3 or not value else f"{value:.3e}"


def rate(tokens: float) -> str:
    """Return a rate in tokens a second."""
    return f"{tokens / 1000:,.1f}k tok/s" if tokens >= 1000 else f"{tokens:.0f} tok/s"


def span(seconds: float) -> str:
    """Return a length of time as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
