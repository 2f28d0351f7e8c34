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

    parser = command(
        sub,
        "prune",
        prune,
        help="drop old checkpoints, keeping the last of each lineage and the hashes of the others",
        example="labassist prune --keep-last 2 --keep-best val_loss --dry-run\n"
        "labassist prune @last --keep-every 1000 --keep @last:500",
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="only these runs' lineages (default: all)")
    parser.add_argument(
        "--keep-last", type=int, default=3, metavar="N", help="the newest N of each lineage (3)"
    )
    parser.add_argument(
        "--keep-every", type=int, default=0, metavar="K", help="those at multiples of K steps"
    )
    parser.add_argument(
        "--keep-best",
        nargs="?",
        const="val_loss",
        default="",
        metavar="SERIES",
        help="the one with the lowest value of a series (val_loss)",
    )
    parser.add_argument(
        "--keep", action="append", default=[], metavar="RUN[:STEP]", help="this one; may be repeated"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would go, and drop nothing")


def fsck(args: argparse.Namespace) -> int:
    """Check the store, and mend it where asked; 1 when something is left that matters."""
    from labassist.cli.output import emit
    from labassist.runs.fsck import fsck as check
    from labassist.workspace import Workspace

    found = check(Workspace.find(args.workspace).ledger, repair=args.repair)
    emit(found.document(), args.json, found.text)
    return 0 if found.ok else 1


def prune(args: argparse.Namespace) -> int:
    """Drop the checkpoints that the policy does not keep."""
    from labassist.cli.output import emit
    from labassist.cli.runs import opened
    from labassist.runs.prune import Policy, keys
    from labassist.runs.prune import prune as drop

    _workspace, ledger = opened(args)
    policy = Policy(
        last=args.keep_last,
        every=args.keep_every,
        best=args.keep_best,
        named=keys(ledger, args.keep),
        runs=frozenset(ledger.find(name)["id"] for name in args.runs),
    )
    found = drop(ledger, policy, dry=args.dry_run)
    emit(found.document(), args.json, found.text)
    return 0
