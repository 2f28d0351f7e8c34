"""Follow a run from a terminal: one live line, and ctrl-c that asks before it kills."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self, TextIO

from labassist.errors import LedgerError
from labassist.ledger.store import Ledger
from labassist.runs import life
from labassist.runs.live_line import LiveLine
from labassist.runs.recover import recover

_POLL_S = 0.25


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
