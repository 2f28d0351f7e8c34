"""What a served model answered, kept in its run's folder: one JSON object a line, each naming all before it.

`after` is the SHA-256 of all the bytes before a line, so that a line which was edited later is named by its number: it
is no longer what the next one says. The last one is covered by the seal at the run's end.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labassist.errors import LedgerError
from labassist.record.protocol import write_whole

FILE = "answers.jsonl"


def append(folder: Path, answer: dict[str, Any]) -> int:
    """Keep one answer durably and return its number, from 1. Raises LedgerError where it cannot be written."""
    path = folder / FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            before = path.read_bytes()
            # A line that was cut by a death was never acknowledged: it stays, as a line of its own.
            torn = b"\n" if before and not before.endswith(b"\n") else b""
            number = before.count(b"\n") + len(torn) + 1
            after = hashlib.sha256(before + torn).hexdigest() if before else ""
            line = json.dumps({"n": number, "after": after, **answer}, ensure_ascii=False)
            write_whole(descriptor, torn + line.encode("utf-8", "surrogatepass") + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise LedgerError(
            f"the answer cannot be kept: {error.strerror}", where=str(path), mend="free some space"
        ) from error
    return number


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the answers of a run, oldest first; a line that was cut is passed over."""
    for line in _lines(folder / FILE):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def count(folder: Path) -> int:
    """Return how many answers a run has kept."""
    return sum(1 for _ in read(folder))


def altered(path: Path) -> int:
    """Return the number of the first line that is not what the next one says it was; 0 where all are."""
    digest, last = hashlib.sha256(), 0
    for number, line in enumerate(_lines(path), 1):
        try:
            after = json.loads(line).get("after")
        except (ValueError, AttributeError):
            after = None  # cut by a death: the next one vouches for it too
        if after is not None:
            if after != (digest.hexdigest() if number > 1 else ""):
                return max(1, last)
            last = number
        digest.update(line)
    return 0


def blamed(path: Path, sealed: int) -> int:
    """Return the line of a file whose seal over its first `sealed` bytes is broken: where the links hold, the last one."""
    return altered(path) or path.read_bytes()[: sealed - 1].count(b"\n") + 1


def _lines(path: Path) -> list[bytes]:
    try:
        return [line + b"\n" for line in path.read_bytes().split(b"\n") if line]
    except FileNotFoundError:
        return []
