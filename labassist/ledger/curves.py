"""Loss curves: the append-only `metrics-rank<k>.jsonl` files of docs/formats.md, read whole or as they grow."""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from labassist.errors import LedgerError
from labassist.ledger.canonical import decode_number, encode_number

if TYPE_CHECKING:
    from labassist.ledger.store import Ledger

Value = float | str
"""A number (a nan keeps its bits), or a digest as 16 hex digits."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode

HELD_OUT = ("eval_loss", "val_loss")
"""The loss over text that is not trained on, as trainers call it: the first of them that a run has is drawn beside its
loss. Where there are both, `val_loss` is the one number at the end, over all of that text."""


def held_out(names: Container[str]) -> str:
    """Return the one of these series that is the held-out loss, empty where none is."""
    return next((name for name in HELD_OUT if name in names), "")


class Series(Mapping[int, Value]):
    """One series of a curve: step -> value, ascending, in 16 bytes a number."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._values: array[float] | list[str] = array("d")
        self._late: dict[int, Value] = {}

    def __getitem__(self, step: int) -> Value:
        steps = self._steps
        # Most series have every step from their first on: look there before searching.
        guess = step - steps[0] if steps else -1
        if not (0 <= guess < len(steps) and steps[guess] == step):
            guess = bisect_left(steps, step)
            if guess == len(steps) or steps[guess] != step:
                raise KeyError(step)
        return self._values[guess]

    def __iter__(self) -> Iterator[int]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def values_in_order(self) -> Sequence[Value]:
        """The values alone, by ascending step: an array of doubles, or a list of digests."""
        return self._values

    def add(self, step: int, value: Value) -> bool:
        """Take one value; False when the step has one already. Steps may come late, until `settle`."""
        if self._steps and step <= self._steps[-1]:
            if step in self or step in self._late:
                return False
            self._late[step] = value
            return True
        if isinstance(value, str) and not self._steps:
            self._values = []
        self._steps.append(step)
        self._values.append(value)  # type: ignore[arg-type]
        return True

    def settle(self) -> None:
        """Put the values that came late where they belong."""
        if self._late:
            pairs = sorted([*zip(self._steps, self._values, strict=True), *self._late.items()])
            self._late = {}
            self._steps = array("q", [step for step, _ in pairs])
            values: list[Any] = [value for _, value in pairs]
            self._values = values if isinstance(self._values, list) else array("d", values)


@dataclass
class Curve:
    """The series of a run, by name. `steps` are those of all of them together, ascending."""

    steps: Sequence[int] = field(default_factory=lambda: array("q"))
    series: dict[str, Mapping[int, Value]] = field(default_factory=dict)
    t: Mapping[int, Value] = field(default_factory=Series)
    """Seconds since the trainer's start, at the first record of a step. Never compared."""
    bytes: int = 0
    """Bytes of whole lines that were read: where a `Tail` goes on."""


def compared(curve: Curve, measured: Sequence[str]) -> Curve:
    """Return the curve without the series that a clock made, named as a run's `measured` has them."""
    if not measured:
        return curve
    series = {
        name: values
        for name, values in curve.series.items()
        if not any(fnmatchcase(name, one) for one in measured)
    }
    return Curve(
        sorted({step for values in series.values() for step in values}), series, curve.t, curve.bytes
    )


class Tail:
    """Reads a metrics file as it grows, never a byte twice."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self._offset = offset
        self._line = 0

    def poll(self) -> list[dict[str, Any]]:
        """Return the whole rows written since the last poll, numbers decoded; none while there is no file.

        Raises LedgerError on a line that is no row (its number counts from this reader's start), or when
        the file was cut.
        """
        try:
            size = self.path.stat().st_size
            if size == self._offset:
                return []
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LedgerError(f"cannot be read: {error.strerror}", where=str(self.path)) from error
        if size < self._offset:
            raise LedgerError("was cut while it was being followed", where=str(self.path))
        whole = data.rfind(b"\n") + 1
        lines = data[:whole].split(b"\n")[:-1]
        rows = [_row(line, self.path, self._line + number) for number, line in enumerate(lines, 1)]
        self._offset += whole
        self._line += len(lines)
        return rows


def last_row(path: Path) -> dict[str, Any]:
    """Return the last whole row of a metrics file without reading what stands before; empty without one.

    A damaged row is none: whoever lists runs goes on, and `audit` names it.
    """
    length, start, data = 2048, 1, b""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # A row may be longer than any first guess: one of a thousand series is.
            while start > 0 and data.count(b"\n") < 2:
                length *= 2
                start = max(0, size - length)
                file.seek(start)
                data = file.read(size - start)
        lines = data.split(b"\n")[:-1]
        return _row(lines[-1], path, 0) if lines else {}
    except (OSError, LedgerError):
        return {}


def encode(value: Value) -> Value:
    """Return a curve's value as JSON holds it. A digest is itself."""
    return value if isinstance(value, str) else encode_number(value)


def same_value(a: Value, b: Value) -> bool:
    """Say whether two values are equal bit for bit: 0.0 is not -0.0, a nan equals only its own bits."""
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str) and a == b
    return struct.pack("<d", a) == struct.pack("<d", b)


def read_curve(path: Path) -> Curve:
    """Read a metrics file, merging its lines by step.

    A last line without a newline is left out: its writer died, or is still writing. A missing file is an
    empty curve. Raises LedgerError naming the line that is no row or repeats a series at a step.
    """
    reader = _Reader()
    reader.read(path)
    return reader.curve()


def ranks(*folders: Path) -> list[int]:
    """Return the ranks that have a curve in any of these run folders."""
    names = {path.name for folder in folders for path in folder.glob("metrics-rank*.jsonl")}
    return sorted(int(name.removeprefix("metrics-rank").removesuffix(".jsonl")) for name in names)


def joined(ledger: Ledger, run_id: str, *, rank: int = 0) -> Curve:
    """Return the curve of a run's whole lineage, as if it had never been interrupted.

    Of each run that was resumed from, the steps up to and including the checkpoint; then the next segment.
    The dropped steps stay in the earlier run's own file. A resume that had no step left to make gives what
    the earlier run did not live to measure after its last one. `t` starts again with each segment. Raises
    LedgerError when a run of the lineage is not in the ledger or the lineage is a circle.
    """
    segments: list[tuple[str, int, int | None]] = []
    last: int | None = None
    current = run_id
    while True:
        document = ledger.run(current)
        circle = current in [name for name, _, _ in segments]
        if document is None or circle:
            why = "runs in a circle" if circle else f"names the run {current}, which is not in this ledger"
            raise LedgerError(f"the lineage of {run_id} {why}", where=str(ledger.folder))
        origin = document.get("resumed_from")
        segments.append((current, origin["step"] + 1 if origin else 0, last))
        if not origin:
            break
        last = origin["step"] if last is None else min(last, origin["step"])
        current = origin["run"]
    reader = _Reader()
    for name, first, until in reversed(segments):
        path = ledger.run_folder(name) / f"metrics-rank{rank}.jsonl"
        rows = reader.read(path, first=first, last=until)
        if name == run_id and first and not rows:
            reader.read(path, first=first - 1, last=first - 1, lacking=True)
    return reader.curve()


class _Reader:
    """Builds one curve out of one file, or out of a part of each of several."""

    def __init__(self) -> None:
        self._every = Series()
        self._t = Series()
        self._series: dict[str, Series] = {}
        self._bytes = 0

    def read(self, path: Path, *, first: int = 0, last: int | None = None, lacking: bool = False) -> int:
        """Add the rows of a file whose step is from `first` to `last`, both included; return how many those are.

        With `lacking`, only what has no value at that step yet is taken.
        """
        self._bytes = rows = 0
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n"):
                        break
                    self._bytes += len(line)
                    row = _row(line, path, number)
                    if first <= row["step"] and (last is None or row["step"] <= last):
                        rows += 1
                        self._add(row, path, number, lacking)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise LedgerError(f"cannot be read: {error.strerror}", where=str(path)) from error
        return rows

    def curve(self) -> Curve:
        """Return what was read."""
        for column in (self._every, self._t, *self._series.values()):
            column.settle()
        return Curve(array("q", self._every), dict(self._series), self._t, self._bytes)

    def _add(self, row: dict[str, Any], path: Path, number: int, lacking: bool) -> None:
        step = row.pop("step")
        self._every.add(step, 0.0)
        if "t" in row:
            self._t.add(step, row.pop("t"))
        for name, value in row.items():
            column = self._series.get(name)
            if column is None:
                column = self._series[name] = Series()
            if not column.add(step, value) and not lacking:
                raise LedgerError(f"{name} was recorded twice at step {step}", where=f"{path} line {number}")


def _row(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """Return one line as a row with its numbers decoded. Raises LedgerError naming the line."""
    try:
        row = _decode(line)
        step = row.get("step")
        if type(step) is not int or step < 0:
            raise ValueError("has no step")
        for name, value in row.items():
            if name == "batch" or name.endswith("_digest"):
                if not isinstance(value, str):
                    raise ValueError(f"has a {name} that is no digest")
            elif type(value) is not float and name != "step":
                row[name] = decode_number(value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LedgerError(f"is no row of a curve: {error}", where=f"{path} line {number}") from error
    return row
