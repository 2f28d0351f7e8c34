"""Follow a run from a terminal: one live line, and ctrl-c that asks before it kills."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self, TextIO

from labassist.errors import LedgerError
from labassist.ledger.curves import Tail
from labassist.ledger.store import Ledger
from labassist.runs import life
from labassist.runs.recover import recover

_POLL_S = 0.25
_PLAIN_EVERY_S = 5.0


class Interrupted(Exception):
    """The person pressed ctrl-c and the run has ended since."""


class Interrupts:
    """Ctrl-c while a run is started and followed.

    Until `defer` it interrupts as anywhere else. From then on it is only counted, so that it cannot fall
    between the start of a run and the wait for its end: the first asks for a checkpoint, the second kills.
    """

    def __init__(self) -> None:
        self.count = 0
        self._deferred = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(self, *_error: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def defer(self) -> None:
        """Only count from now on."""
        self._deferred = True

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if not self._deferred:
            signal.default_int_handler(number, frame)


def follow(
    ledger: Ledger, run_id: str, interrupts: Interrupts | None = None, out: TextIO = sys.stderr
) -> dict[str, Any]:
    """Show the run until its record is closed, and return its document.

    The first ctrl-c asks the trainer for a checkpoint and its end, the second kills it; then Interrupted
    is raised once the record is closed. `interrupts` are those of whoever started the run just now. Only
    files are read: losing the follower loses nothing.
    """
    if interrupts is None:
        with Interrupts() as own:
            own.defer()
            return follow(ledger, run_id, own, out)
    line = LiveLine(ledger, run_id, out)
    folder = ledger.run_folder(run_id)
    served = 0

    def each() -> None:
        nonlocal served
        if interrupts.count and not served:
            served = 1
            line.say("stopping: asked for a checkpoint (ctrl-c again kills the run)")
            life.ask_to_stop(folder)
        if interrupts.count > 1:
            if served == 1:
                served = 2
                line.say("killing the run")
            life.kill(folder)
        line.warn()
        line.draw()

    document = until_closed(ledger, run_id, each)
    line.close()
    if interrupts.count:
        raise Interrupted(document["id"])
    return document


def until_closed(ledger: Ledger, run_id: str, each: Callable[[], None]) -> dict[str, Any]:
    """Wait until a run's record is closed, calling `each` meanwhile, and return its document. Raises LedgerError."""
    folder = ledger.run_folder(run_id)
    while True:
        each()
        document = ledger.run(run_id)
        if document is None:
            raise LedgerError("the run's record is gone", where=f"run {run_id}")
        if document["state"] != "running":
            each()
            return document
        if not life.held(folder / "supervised") and not life.held(folder / "alive"):
            recover(ledger)  # nobody is left to close it: any labassist process may
            continue
        time.sleep(_POLL_S)


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
        for name, label, form in (("loss", "loss", ".4f"), ("lr", "lr", ".2e"), ("val_loss", "val", ".4f")):
            value = self._values.get(name)
            if isinstance(value, int | float):
                parts.append(f"{label} {value:{form}}")
        steps_per_s = self._steps_per_s()
        if steps_per_s:
            tokens = document.get("tokens_per_step", 0) * steps_per_s
            parts.append(_rate(tokens) if tokens else f"{steps_per_s:.1f} steps/s")
            if total > step:
                parts.append(f"{_span((total - step) / steps_per_s)} left")
        return "  ".join(parts)

    def _steps_per_s(self) -> float:
        if self._first is None:
            return 0.0
        step, began = self._first
        elapsed = self._newest[1] - began
        return float((self._newest[0] - step) / elapsed) if elapsed > 0 else 0.0


def _rate(tokens: float) -> str:
    return f"{tokens / 1000:.1f}k tok/s" if tokens >= 1000 else f"{tokens:.0f} tok/s"


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
