"""What `export` writes for other tools: csv, html, ro-crate, mlflow."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labassist.ledger.store import Ledger


def csv(args: argparse.Namespace) -> int:
    """Write a folder with a table of the runs and their curves."""
    from labassist.export import tables

    return _write(args, "labassist-csv", lambda ledger, runs, place: len(tables.write(ledger, runs, place)))


def html(args: argparse.Namespace) -> int:
    """Write one page."""
    from labassist.export.facts import facts
    from labassist.export.page import page
    from labassist.ledger.entries import Head
    from labassist.record.durable import hand_out
    from labassist.runs.absorb import now

    def write(ledger: Ledger, runs: list[dict[str, Any]], place: Path) -> int:
        journal = ledger.journal
        head = Head(journal.head, journal.entries, journal.bytes)
        text = page([facts(ledger, run) for run in runs], head, now()[:19].replace("T", " ") + " UTC")
        place.parent.mkdir(parents=True, exist_ok=True)
        hand_out(place, text)
        return 1

    return _write(args, "labassist.html", write)


def ro_crate(args: argparse.Namespace) -> int:
    """Write a folder that is a Process Run Crate."""
    from labassist.export import crate
    from labassist.runs.absorb import now

    def write(ledger: Ledger, runs: list[dict[str, Any]], place: Path) -> int:
        crate.write(ledger, runs, place, now()[:10])
        return sum(path.is_file() for path in place.rglob("*"))

    return _write(args, "labassist-crate", write)


def mlflow(args: argparse.Namespace) -> int:
    """Log to an MLflow store."""
    from labassist.cli.opening import opened
    from labassist.cli.output import emit
    from labassist.errors import counted
    from labassist.export import mlflow as store
    from labassist.export.facts import chosen

    _workspace, ledger = opened(args)
    target = args.output or "mlflow.db"
    logged, known = store.write(ledger, chosen(ledger, args.runs), target)
    document = {"store": target, "logged": logged, "known": known}
    there = f"; {known} were there already" if known else ""
    emit(document, args.json, lambda: f"logged {counted(logged, 'runs')} to {target}{there}")
    return 0


def _write(
    args: argparse.Namespace, name: str, write: Callable[[Ledger, list[dict[str, Any]], Path], int]
) -> int:
    """Let `write` make what was asked for, and say where it lies."""
    from labassist.cli.opening import opened
    from labassist.cli.output import emit, say
    from labassist.errors import InputError, counted
    from labassist.export.facts import chosen
    from labassist.ledger.seals import altered_curves

    _workspace, ledger = opened(args)
    runs = chosen(ledger, args.runs)
    for line in altered_curves(ledger, runs):
        say(f"warning: {line}")
    place = Path(args.output or name).expanduser()
    try:
        files = write(ledger, runs, place)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", where=str(error.filename or place), mend="see -o PATH"
        ) from error
    document = {"path": str(place), "runs": [run["id"] for run in runs], "files": files}
    what = counted(len(runs), "runs")
    emit(document, args.json, lambda: f"wrote {place}: {what}" + (f", {files} files" if files > 1 else ""))
    return 0
