"""The workspace and the ledger that a command works on."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labassist.ledger.store import Ledger
    from labassist.workspace import Workspace


def opened(args: argparse.Namespace) -> tuple[Workspace, Ledger]:
    """Return the workspace and its ledger, after closing or adopting what was left behind."""
    from labassist.cli.output import say
    from labassist.errors import LedgerError
    from labassist.ledger.store import Ledger
    from labassist.runs.recover import recover, sweep_scratch
    from labassist.workspace import Workspace

    workspace = Workspace.find(args.workspace)
    ledger = Ledger.open(workspace.ledger, create=True)
    try:
        for line in recover(ledger):
            say(f"note: {line}")
        if not ledger.readonly:
            sweep_scratch(workspace.scratch)
    except (LedgerError, OSError) as error:
        # Reading must go on where nothing can be written, on a full disk for one.
        say(f"note: a run that has ended cannot be closed yet: {error}")
    return workspace, ledger
