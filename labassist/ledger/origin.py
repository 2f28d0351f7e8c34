"""The lines of another ledger's journal, kept with the runs that came from there.

A run that is imported brings the journal lines that made its documents, byte for byte. Each is kept with the
hash before it, so that it can be checked alone; where two follow each other in the journal they came from,
they must do so here. Lines of other runs may be missing in between.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from labassist.errors import LedgerError
from labassist.ledger.entries import GENESIS, Entry, decode_entry, parse, split, whole_lines
from labassist.ledger.objects import Objects
from labassist.ledger.view import CHECKPOINTS, COURSE, RUNS

MARKS = ""
"""Under which the lines of the course stand, which belong to no run."""


class Line(msgspec.Struct, frozen=True):
    """One line of a journal."""

    prev: str
    """Hash of the line before it."""
    line: str
    """Hash, space and body, without the newline."""

    @property
    def hash(self) -> str:
        """Its own hash."""
        return self.line[:64]


@dataclass
class Replayed:
    """The documents that a run's lines make."""

    run: dict[str, Any] | None = None
    checkpoints: dict[int, dict[str, Any]] = field(default_factory=dict)
    marks: list[dict[str, Any]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    """Objects with the lines of a ledger still further back."""


def lines_by_run(folder: Path) -> dict[str, list[Line]]:
    """Return the lines of a journal by the run whose documents they change; those of the course under MARKS.

    Raises LedgerError at the first line that breaks the chain.
    """
    found: dict[str, list[Line]] = {}
    path = folder / "journal.jsonl"
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise LedgerError(f"cannot be read: {error.strerror}", where=str(path)) from error
    try:
        previous = GENESIS
        for number, data in enumerate(whole_lines(fd), 1):
            try:
                entry = parse(data, previous, number)
            except ValueError as error:
                raise LedgerError(
                    str(error), where=f"{path} line {number}", mend="see `labassist audit`"
                ) from error
            line = Line(previous, data.decode("utf-8"))
            for run in _runs(entry):
                found.setdefault(run, []).append(line)
            previous = entry.hash
    finally:
        os.close(fd)
    return found


def _runs(entry: Entry) -> set[str]:
    """Return the runs whose documents an entry writes; MARKS too where it adds one to the course."""
    runs = {row["id"] for row in entry.put.get(RUNS, {}).values() if isinstance(row.get("id"), str)}
    runs |= {row["run"] for row in entry.put.get(CHECKPOINTS, {}).values() if isinstance(row.get("run"), str)}
    return runs | ({MARKS} if entry.put.get(COURSE) else set())


def replay(lines: Iterable[Line], run: str) -> Replayed:
    """Return the documents of a run (or of the course) that these lines make, each line checked.

    Raises LedgerError saying which entry of the other journal is not as it was written.
    """
    made = Replayed()
    number, before = 0, ""
    for line in lines:
        try:
            claimed = decode_entry(split(line.line.encode())[1]).n
            entry = parse(line.line.encode(), line.prev, claimed)
        except (ValueError, msgspec.MsgspecError) as error:
            raise LedgerError(
                f"the entry after number {number} of the journal it comes from {error}", where=run
            ) from error
        if entry.n <= number or (entry.n == number + 1 and line.prev != (before or GENESIS)):
            raise LedgerError(
                f"entry {entry.n} does not follow entry {number} of the journal it comes from", where=run
            )
        number, before = entry.n, entry.hash
        if entry.origin:
            made.origins.append(entry.origin)
        if run == MARKS:
            made.marks += entry.put.get(COURSE, {}).values()
            continue
        for row in entry.put.get(RUNS, {}).values():
            if row.get("id") == run:
                made.run = row
        for row in entry.put.get(CHECKPOINTS, {}).values():
            if row.get("run") == run:
                made.checkpoints[int(row["step"])] = row
    return made


def store(lines: Iterable[Line], objects: Objects) -> str:
    """Keep lines as an object and return its name."""
    return objects.put_json(msgspec.to_builtins(list(lines)))


def load(sha: str, objects: Objects) -> list[Line]:
    """Return the lines of an object. Raises LedgerError."""
    return decode(objects.get(sha), sha)


def decode(data: bytes, where: str) -> list[Line]:
    """Return the lines that `store` wrote. Raises LedgerError."""
    try:
        return msgspec.json.decode(data, type=list[Line])
    except msgspec.MsgspecError as error:
        raise LedgerError(f"these are no lines of a journal: {error}", where=where) from error


def has(hash_: str, entries: Iterable[Entry], objects: Objects) -> bool:
    """Say whether a journal that imported runs came from had a line with this hash."""
    for entry in entries:
        with contextlib.suppress(LedgerError):  # the check of imports names it
            if entry.origin and any(line.hash == hash_ for line in load(entry.origin, objects)):
                return True
    return False


def without_place(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint document without what it says of whether its files are there: that differs by ledger."""
    return {name: value for name, value in checkpoint.items() if name not in ("left", "pruned")}


def differences(entry: Entry, objects: Objects) -> Iterator[str]:
    """Yield what of an `import` entry is not as the lines say that it brought with it."""
    waiting, seen = [(entry.origin, entry.run)], set()
    while waiting:
        sha, run = waiting.pop()
        if sha in seen:
            continue
        seen.add(sha)
        try:
            made = replay(load(sha, objects), run)
        except LedgerError as error:
            yield str(error)
            continue
        waiting += [(older, run) for older in made.origins]
        if sha != entry.origin:
            continue
        for row in entry.put.get(RUNS, {}).values():
            if row != made.run:
                yield "the run is not as the journal has it that it comes from"
        for row in entry.put.get(CHECKPOINTS, {}).values():
            theirs = made.checkpoints.get(row.get("step", -1), {})
            if without_place(row) != without_place(theirs):
                yield f"the checkpoint at step {row.get('step')} is not as the journal has it that it comes from"
        for row in entry.put.get(COURSE, {}).values():
            if row not in made.marks:
                yield "a mark of the course is not in the journal it comes from"
