"""What stands beside the journal: the file `head`, and the torn ends that are set aside."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from labassist.ledger import canonical
from labassist.ledger.entries import Head
from labassist.record.durable import replace_file, write_file

HEAD_BYTES = 160


def head_bytes(head: Head) -> bytes:
    """Return the content of `head`, padded to one length that a disk sector holds whole."""
    return canonical.dumps(msgspec.to_builtins(head)).ljust(HEAD_BYTES - 1) + b"\n"


def make_head(folder: Path, head: Head) -> None:
    """Put a `head` where there is none, in one step and durably. Raises OSError."""
    replace_file(folder / "head", head_bytes(head))


def set_torn_aside(folder: Path, journal: int, whole: int) -> Path | None:
    """Move what follows byte `whole` of the journal (a write that was cut short) to `journal.torn-<n>`.

    `journal` is its open file; the caller holds the writers' lock. Returns the new file, None where nothing
    was torn. Raises OSError, and then the journal is as it was.
    """
    torn = os.pread(journal, os.fstat(journal).st_size - whole, whole)
    if not torn:
        return None
    n = 1
    while (path := folder / f"journal.torn-{n}").exists():
        n += 1
    write_file(path, torn)
    os.ftruncate(journal, whole)
    return path
