"""What an audit finds: one problem, in the shape that `labassist audit --json` prints."""

from __future__ import annotations

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One thing that is not as the ledger says it was."""

    code: str
    """Stable name, as `journal-edited`."""
    message: str
    """One line for a person."""
    run: str = ""
    path: str = ""
    """Relative to the ledger folder."""
    tensor: str = ""
    line: int = 0
    """1-based line of `path`; 0 where lines mean nothing."""
