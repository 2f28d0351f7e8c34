"""The lines of the journal: their shape, their hash chain, and how they are read (docs/formats.md)."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

GENESIS = "0" * 64
"""The hash before the first line."""

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What a run id may look like: it names a folder, and may come from another person's ledger."""

_CHUNK = 1 << 22
_HASH_AND_SPACE = re.compile(rb"[0-9a-f]{64} ")

DocId = Annotated[str, msgspec.Meta(pattern=r"^(0|-?[1-9][0-9]{0,17})\Z")]
"""A document id as TinyDB keeps it: an integer, in decimal digits."""

Documents = dict[str, dict[DocId, dict[str, Any]]]
"""Table name -> document id -> document."""


class Entry(msgspec.Struct, omit_defaults=True):
    """One line of the journal. Its changes apply in the order drop, delete, put."""

    n: int
    """Number of the entry, from 1: also its line number."""
    time: str
    by: str
    """Version of labassist that wrote it."""
    schema: int
    kind: str
    run: str = ""
    put: Documents = {}
    """Documents as they are after the change (post-images)."""
    delete: dict[str, list[DocId]] = {}
    drop: list[str] = []
    origin: str = ""
    """Of an `import`: the object with the lines of the journal that the documents come from."""
    hash: str = ""
    """Hash of this line; on disk it stands before the body, not in it."""
    end: int = 0
    """Offset of the byte after this line; not on disk."""


class Head(msgspec.Struct):
    """Where a journal ends: the content of the file `head`."""

    hash: str
    entries: int
    bytes: int


decode_entry = msgspec.json.Decoder(Entry).decode
decode_head = msgspec.json.Decoder(Head).decode


def chain(previous: str, body: bytes) -> str:
    """Return the hash of a line: SHA-256 of the previous hash as hex ASCII, then the body."""
    return hashlib.sha256(previous.encode("ascii") + body).hexdigest()


def split(line: bytes) -> tuple[str, bytes]:
    """Return the hash and the body of a line. Raises ValueError when it does not start with a hash."""
    if not _HASH_AND_SPACE.match(line):
        raise ValueError("does not start with a hash")
    return line[:64].decode("ascii"), line[65:]


def parse(line: bytes, previous: str, n: int) -> Entry:
    """Return entry number `n`, checked against the hash of the line before it.

    Raises ValueError saying what is wrong with the line.
    """
    stored, body = split(line)
    if chain(previous, body) != stored:
        raise ValueError("does not match its hash")
    try:
        entry = decode_entry(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"is no journal entry ({error})") from error
    if entry.n != n:
        raise ValueError(f"holds entry {entry.n}")
    entry.hash = stored
    return entry


def whole_lines(fd: int, offset: int = 0) -> Iterator[bytes]:
    """Yield the lines of a file from `offset`, newline taken off; a last line without one is left out."""
    rest = b""
    while block := os.pread(fd, _CHUNK, offset):
        offset += len(block)
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        yield from lines


def last_line(fd: int, end: int) -> bytes:
    """Return the line whose newline is the byte before `end`. Raises ValueError when none ends there."""
    size = 1 << 14
    while True:
        start = max(0, end - size)
        block = os.pread(fd, end - start, start)
        if len(block) != end - start or not block.endswith(b"\n"):
            raise ValueError(f"no line ends at byte {end}")
        before = block.rfind(b"\n", 0, -1)
        if before >= 0 or start == 0:
            return block[before + 1 : -1]
        size *= 4
