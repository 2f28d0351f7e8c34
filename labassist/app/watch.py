"""One run as the app watches it: its record, its life, its curve and the end of its log, read as they grow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labassist.app.messages import RunGone, RunGrew
from labassist.app.words import moment
from labassist.runs.logs import inert

if TYPE_CHECKING:
    from labassist.ledger.store import Ledger

LOG_BYTES = 32 * 1024
"""Most that is read of a log at once: a job may print faster than anyone can read."""

LOG_LINES = 200
PORTION = 4000
"""Rows of a curve in one message, so that a long run does not stall the screen."""


class LogEnd:
    """The last lines of a log, inert, at the same price however fast it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = b""
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self.skipped = 0
        """Bytes that were passed over."""

    @property
    def lines(self) -> list[str]:
        """What there is to show, a line that has not ended yet included."""
        return [*self._lines, *([inert(self._rest)] if self._rest else [])]

    def poll(self) -> bool:
        """Read what is new, or only the end of it; True when there is anything new."""
        try:
            size = self._path.stat().st_size
            if size == self._at:
                return False
            start = self._at if self._at <= size <= self._at + LOG_BYTES else max(0, size - LOG_BYTES)
            with self._path.open("rb") as file:
                file.seek(start)
                data = file.read(size - start)
        except FileNotFoundError:
            return False
        if start != self._at:
            # The reading begins inside a line: its first part may be half of an escape sequence.
            self.skipped = start
            self._lines.clear()
            self._rest = b""
            data = data.partition(b"\n")[2] or data
        self._at = size
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-LOG_BYTES:]
        self._lines.extend(inert(line) for line in whole[-LOG_LINES:])
        return True


class RunWatch:
    """Reads one run. `poll` yields what is new since the last poll; nothing where nothing is."""

    def __init__(self, ledger: Ledger, run_id: str, machine_id: str) -> None:
        self._ledger = ledger
        self._run = run_id
        self._machine = machine_id
        self._folder = ledger.run_folder(run_id)
        self._tail: Any = None
        self._log = LogEnd(self._folder / "log.txt")
        self._told: tuple[Any, str] = (None, "")
        self._last_t = 0.0
        self._missing = ""

    def poll(self) -> Iterator[RunGrew | RunGone]:
        """Yield at most a few messages. Raises LedgerError when a file of the run cannot be read."""
        document = self._ledger.run(self._run)
        missing = "its record" if document is None else "" if self._folder.is_dir() else "its folder"
        if missing != self._missing:
            self._missing = missing
            if missing:
                yield RunGone(self._run, missing)
        if document is None:
            return
        life = self._life(document)
        if self._tail is None:
            yield from self._load(document, life)
        points = self._tail.poll()
        news = self._log.poll()
        if points:
            self._last_t = points[-1].get("t", self._last_t)
        if points or news or (document, life) != self._told:
            self._told = (document, life)
            yield self._grew(document, life, points, log=news)

    def _life(self, document: dict[str, Any]) -> str:
        from labassist.runs import life

        if document["state"] != "running":
            return "over"
        return life.life(self._folder, document, self._machine)

    def _load(self, document: dict[str, Any], life: str) -> Iterator[RunGrew]:
        """Yield what the curve held at the first look, earlier segments included, in portions."""
        from labassist.ledger.curves import Tail, joined

        curve = joined(self._ledger, self._run)
        self._tail = Tail(self._folder / "metrics-rank0.jsonl", curve.bytes)
        rows: list[dict[str, Any]] = []
        begins = True
        for step in curve.steps:
            row = {name: values[step] for name, values in curve.series.items() if step in values}
            row["step"] = step
            if step in curve.t:
                row["t"] = self._last_t = float(curve.t[step])
            rows.append(row)
            if len(rows) >= PORTION:
                yield self._grew(document, life, rows, begins=begins, loading=True)
                rows, begins = [], False
        self._log.poll()
        self._told = (document, life)
        yield self._grew(document, life, rows, begins=begins, log=True)

    def _grew(
        self,
        document: dict[str, Any],
        life: str,
        points: list[dict[str, Any]],
        *,
        log: bool = False,
        begins: bool = False,
        loading: bool = False,
    ) -> RunGrew:
        return RunGrew(
            self._run,
            document,
            life,
            points,
            log=self._log.lines if log else None,
            skipped=self._log.skipped,
            begins=begins,
            loading=loading,
            last_sign=moment(document["created"]) + self._last_t,
        )
