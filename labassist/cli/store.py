"""Commands that keep the ledger itself: audit it, check and mend its files, drop old checkpoints."""

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
        "audit",
        audit,
        help="verify the chain, the curves, the checkpoints and the code",
        example="labassist audit\nlabassist audit --anchor -o ~/anchor.txt\nlabassist audit --anchor ~/anchor.txt",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="only this run (default: all)")
    parser.add_argument(
        "--anchor",
        nargs="?",
        const="",
        metavar="FILE|LINE",
        help="print a line to be kept elsewhere; with one that was kept: is the ledger still the same up to it",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the anchor there too")
    parser.add_argument(
        "--git-note",
        action="store_true",
        help="keep it as a note of the last commit too: git push origin refs/notes/labassist takes it elsewhere",
    )
    parser.add_argument("--sign", metavar="KEY", help="sign what is written with this ssh key, as FILE.sig")

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
        help="the one with the lowest value of a series (val_loss); all of a lineage that has none",
    )
    parser.add_argument(
        "--keep", action="append", default=[], metavar="RUN[:STEP]", help="this one; may be repeated"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would go, and drop nothing")


def audit(args: argparse.Namespace) -> int:
    """Verify everything that the ledger promises; 1 when something is not as it was."""
    from pathlib import Path

    from labassist.cli.output import emit, say
    from labassist.errors import InputError
    from labassist.ledger import anchor
    from labassist.ledger.audit import audit as verify
    from labassist.workspace import Workspace

    if (args.output or args.sign or args.git_note) and args.anchor != "":
        raise InputError("only a new anchor is written", where="audit", mend="give --anchor without a value")
    if args.sign and not args.output:
        raise InputError("there is no file to sign", where="--sign", mend="name it with -o FILE")
    kept, signed = anchor.read(args.anchor) if args.anchor else (None, "")
    if args.output:
        kept = anchor.replaced(Path(args.output).expanduser())
    workspace = Workspace.find(args.workspace)
    found = verify(workspace.ledger, workspace.root, args.run, anchor=kept, take_anchor=args.anchor == "")
    if signed:
        say(f"note: {signed}")
    if (args.output or args.git_note) and found.anchor is not None and not found.ok:
        see = f"labassist audit --anchor {args.output}" if kept else "labassist audit"
        raise InputError(
            "a ledger with problems is not anchored", where=str(workspace.ledger), mend=f"see {see}"
        )
    if args.output and found.anchor is not None:
        key = Path(args.sign).expanduser() if args.sign else None
        anchor.write(found.anchor, Path(args.output).expanduser(), key)
        say(f"note: written to {args.output}; keep it where nobody can change both it and the ledger")
    if args.git_note and found.anchor is not None:
        anchor.note(found.anchor, workspace.root)
        say("note: kept at refs/notes/labassist; git push origin refs/notes/labassist takes it elsewhere")
    emit(found.document(), args.json, found.text)
    return 0 if found.ok else 1


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
    from labassist.cli.opening import opened
    from labassist.cli.output import emit
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
