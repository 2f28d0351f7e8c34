"""Commands that hand runs on: to other tools, to another ledger, home from a rented box."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from labassist.cli import exports

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers
    from labassist.ledger.store import Ledger
    from labassist.runs.merge import Merged

CHECKPOINTS = ("last", "all", "none")


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli.parsing import RUN, command

    parser = command(
        sub,
        "export",
        export,
        help="hand runs to another ledger or tool",
        example="labassist export @last --to bundle -o run.tar\nlabassist export @last --to html -o run.html\n"
        "labassist export --all --to csv -o tables",
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help=RUN)
    parser.add_argument(
        "--to",
        required=True,
        choices=tuple(FORMATS),
        help="the form; script: a fine-tuning job as a plain Python script",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="where to write it (default: a name by what it is, in this folder)",
    )
    parser.add_argument("--all", action="store_true", help="every run that has ended")
    _checkpoints(parser)
    _with_files(parser)

    parser = command(
        sub,
        "import",
        import_,
        help="take the runs of a bundle, or of another workspace, into this ledger",
        example="labassist import run.tar\nlabassist import /mnt/old-disk/my-lab",
    )
    parser.add_argument("path", metavar="PATH", help="a bundle, or the folder of a workspace or ledger")

    parser = command(
        sub,
        "pull",
        pull,
        help="bring the runs of another machine's workspace here over ssh, going on where a lost link left it",
        example="labassist pull gpu-box:my-lab\nlabassist pull gpu-box:bundle.tar",
    )
    parser.add_argument("source", metavar="HOST:PATH", help="a workspace or a bundle there, as for scp")
    _checkpoints(parser)
    parser.add_argument(
        "--outputs-up-to",
        type=float,
        metavar="MIB",
        help="leave outputs with a larger file there, and name them (default: bring all that there is room for)",
    )

    parser = command(
        sub,
        "leave",
        leave,
        help="before a box is given back: stop, bundle, copy elsewhere, verify, and say what would be lost",
        example="labassist leave home-box:labs/\nlabassist leave /mnt/usb",
    )
    parser.add_argument("target", metavar="HOST:PATH|DIR", help="where the bundle goes")
    _checkpoints(parser)
    _with_files(parser)


def _checkpoints(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoints",
        choices=CHECKPOINTS,
        default="last",
        help="which come along: the last one of each run (default), all, none",
    )


def _with_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--with-files",
        action="store_true",
        help="take large files along too that the ledger knows by their hash only",
    )


def export(args: argparse.Namespace) -> int:
    """Write runs in another form."""
    from labassist.errors import InputError

    if bool(args.runs) == args.all:
        raise InputError(
            "name the runs, or give --all", where="export", mend="labassist export @last --to bundle"
        )
    if args.output == "-":
        mend = "name one; `labassist curve RUN --csv -` prints a curve"
        raise InputError("an export goes to a file or a folder", where="-o -", mend=mend)
    return FORMATS[args.to](args)


def _bundle(args: argparse.Namespace) -> int:
    """Write a bundle."""
    from labassist.cli.opening import opened
    from labassist.cli.output import emit, say
    from labassist.errors import counted
    from labassist.runs import parcel as parcels
    from labassist.runs.belongings import by_hash_only, not_taken
    from labassist.runs.logs import secrets_in
    from labassist.runs.scratch import scratch

    workspace, ledger = opened(args)
    with scratch(workspace) as folder:
        parcel = parcels.collect(
            workspace,
            ledger,
            args.runs,
            checkpoints=args.checkpoints,
            scratch=folder,
            with_files=args.with_files,
        )
        path = Path(args.output or f"labassist-{parcel.head[:12]}.tar").expanduser()
        digest = parcels.write(parcel, path)
    documents = [ledger.run(run) or {} for run in parcel.runs]
    absent = {}
    for run, made in zip(parcel.runs, documents, strict=True):
        for name, place, size, sha256 in by_hash_only(workspace.root, made, ledger.objects):
            inside = place.relative_to(workspace.root) if place.is_relative_to(workspace.root) else place
            if inside.as_posix() not in parcel.work:
                how = "take it along with --with-files" if sha256 else "copy it yourself"
                absent[name] = (
                    f"{name}, {size / 2**20:,.1f} MiB, is not in it, and a replay of run {run} may need it; {how}"
                )
    notes = [*parcel.notes, *not_taken(workspace.root, documents, parcel.work), *absent.values()]
    for run in parcel.runs:
        for log in ("log.txt", "on-end.log"):
            if held := secrets_in(ledger.run_folder(run) / log):
                notes.append(
                    f"{log} of run {run} has secrets in it ({', '.join(held)}), and a bundle carries logs as they are"
                )
    for note in notes:
        say(f"note: {note}")
    steps = sum(len(parcel.steps(run)) for run in parcel.runs)
    size = path.stat().st_size
    document = {
        "path": str(path),
        "sha256": digest,
        "bytes": size,
        "runs": parcel.runs,
        "checkpoints": steps,
        "notes": notes,
    }
    emit(
        document,
        args.json,
        lambda: (
            f"wrote {path}: {counted(len(parcel.runs), 'runs')}, {counted(steps, 'checkpoints')}, {size / 2**20:,.1f} MiB\nsha256 {digest}"
        ),
    )
    return 0


def _script(args: argparse.Namespace) -> int:
    """Write a fine-tuning run as a plain script."""
    from labassist.cli.finetune import export_script

    return export_script(args)


FORMATS: dict[str, Callable[[argparse.Namespace], int]] = {
    "bundle": _bundle,
    "html": exports.html,
    "csv": exports.csv,
    "ro-crate": exports.ro_crate,
    "mlflow": exports.mlflow,
    "script": _script,
}
"""What `export --to` takes, and who writes it."""


def import_(args: argparse.Namespace) -> int:
    """Take runs in; 1 where one was passed over."""
    from labassist.cli.opening import opened
    from labassist.runs.bring import bring

    workspace, ledger = opened(args)
    _must_be_writable(ledger)
    return _told(bring(workspace, ledger, Path(args.path).expanduser()), args.json)


def _told(merged: Merged, json: bool) -> int:
    from labassist.cli.output import emit, say

    for note in merged.notes:
        say(f"note: {note}")
    emit(merged.document(), json, merged.text)
    return 1 if merged.refused else 0


def _must_be_writable(ledger: Ledger) -> None:
    """Raise LedgerError before anything is unpacked that could not be kept."""
    from labassist.errors import LedgerError

    if ledger.readonly:
        mend = "bring the runs into a workspace of your own: labassist new DIR"
        raise LedgerError("the ledger is read-only", where=str(ledger.folder), mend=mend)


def pull(args: argparse.Namespace) -> int:
    """Bring runs home; 1 where one was passed over."""
    from labassist.cli.opening import opened
    from labassist.cli.output import say
    from labassist.errors import InputError
    from labassist.runs import remote
    from labassist.runs.pull import pull as mirror

    source = remote.parse(args.source)
    if isinstance(source, Path):
        mend = f"labassist import {args.source} takes what lies on this machine"
        raise InputError("names no host", where=args.source, mend=mend)
    workspace, ledger = opened(args)
    _must_be_writable(ledger)
    most = None if args.outputs_up_to is None else args.outputs_up_to * 2**20
    merged = mirror(workspace, ledger, source, checkpoints=args.checkpoints, say=say, most=most)
    return _told(merged, args.json)


def leave(args: argparse.Namespace) -> int:
    """Make it safe to go; 1 where it is not."""
    from labassist.cli.opening import opened
    from labassist.cli.output import emit, say
    from labassist.runs import remote
    from labassist.runs.leave import leave as go

    target = remote.parse(args.target)
    workspace, ledger = opened(args)
    left = go(workspace, ledger, target, checkpoints=args.checkpoints, say=say, with_files=args.with_files)
    emit(left.document(), args.json, left.text)
    return 0 if left.safe else 1
