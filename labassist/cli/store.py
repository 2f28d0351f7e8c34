"""Commands that keep the ledger itself: check and mend its files, drop old checkpoints."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli.parsing import command

    parser = command(
        sub,
        "fsck",
        fsck,
        help="check the store itself: journal, head, snapshot, objects, run folders",
        example="labassist fsck\nlabassist fsck --repair",
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="mend what follows from the journal; nothing is dropped, only moved to ledger/aside",
    )


def fsck(args: argparse.Namespace) -> int:
    """Check the store, and mend it where asked; 1 when something is left that matters."""
    from labassist.cli.output import emit
    from labassist.runs.fsck import fsck as check
    from labassist.workspace import Workspace

    found = check(Workspace.find(args.workspace).ledger, repair=args.repair)
    emit(found.document(), args.json, found.text)
    return 0 if found.ok else 1
