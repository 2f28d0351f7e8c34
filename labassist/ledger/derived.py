"""What follows from the journal and lies beside it, held against it: the snapshot, `head`, positions of runs.

All of it is read before the journal is: what another process appends meanwhile then puts only the journal
ahead. A position that was written later still is past the end of what was read; `verify`, which has its own
order of reading, names one that the journal does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from labassist.ledger import view
from labassist.ledger.entries import Documents, Entry, Head, decode_head
from labassist.ledger.problems import Problem
from labassist.ledger.view import Tables


@dataclass(frozen=True)
class Derived:
    """The two files of a ledger folder that follow from its journal, as they were at one moment."""

    present: bool
    """Whether there was a snapshot, whatever it holds."""
    snapshot: tuple[Documents, Head] | None
    head: Head | None

    @classmethod
    def read(cls, folder: Path) -> Derived:
        """Read them; a `head` that cannot be read is named by `verify`."""
        present = (folder / "view.json").exists()
        snapshot = view.load(folder / "view.json")
        try:
            head: Head | None = decode_head((folder / "head").read_bytes())
        except (OSError, msgspec.MsgspecError):
            head = None
        return cls(present, snapshot, head)

    def problems(self, entries: Sequence[Entry], tables: Tables) -> list[Problem]:
        """Compare the snapshot, byte for byte, and `head` with a journal that was read after them."""
        hashes = {entry.n: entry.hash for entry in entries}
        found = []
        if self.present and self.snapshot is None:
            message = "its content does not match its own digest: not ours"
            found.append(Problem("view-altered", message, path="view.json"))
        elif self.snapshot is not None:
            documents, shown = self.snapshot
            if hashes.get(shown.entries) != shown.hash:
                message = "it shows a journal position that is not in the journal"
                found.append(Problem("view-foreign", message, path="view.json"))
            elif shown.entries == len(entries) and documents != tables.documents:
                message = "it does not show what the journal says"
                found.append(Problem("view-altered", message, path="view.json"))
        head = self.head
        if head is not None and head.entries and hashes.get(head.entries) != head.hash:
            # `verify` names the journal; where that is whole, it is this file that was changed.
            message = f"it names another entry {head.entries} than the journal holds"
            found.append(Problem("head-disagrees", message, path="head"))
        return found


class _Position(msgspec.Struct):
    n: int


_decode_position = msgspec.json.Decoder(_Position).decode


def is_past(line: str, last: int) -> bool:
    """Say whether a line of a run's positions names an entry after the last one that was read."""
    try:
        return _decode_position(line).n > last
    except msgspec.MsgspecError:
        return False
