"""A journal of a few entries, a ledger of a few runs, and work in a forked process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labassist.errors import LedgerError
from labassist.ledger.journal import Journal
from labassist.ledger.store import Ledger

FORK = multiprocessing.get_context("fork")


def filled(folder: Path, entries: int = 6) -> Journal:
    """A journal of a few entries, every second one with a run whose folder keeps positions."""
    (folder / "runs" / "run-a").mkdir(parents=True)
    journal = Journal(folder)
    for i in range(entries):
        journal.append("note", run="run-a" if i % 2 else "", put={"_default": {"1": {"id": "run-a", "i": i}}})
    return journal


def codes(folder: Path) -> set[str]:
    return {problem.code for problem in Journal(folder, readonly=True).verify()}


def in_child(work: Callable[[], Any]) -> Any:
    """Run `work` in a forked process and return its result, or the LedgerError it raised as text."""
    receive, send = FORK.Pipe(duplex=False)

    def main() -> None:
        try:
            send.send(work())
        except LedgerError as error:
            send.send(f"LedgerError: {error}")

    process = FORK.Process(target=main)
    process.start()
    process.join(30)
    assert receive.poll(), f"the child ended with {process.exitcode} and said nothing"
    return receive.recv()


def make(tmp_path: Path, runs: int = 3) -> Ledger:
    ledger = Ledger.open(tmp_path / "ledger", create=True)
    for i in range(runs):
        state = "running" if i % 2 else "finished"
        ledger.write(
            "start",
            {"id": f"20260101-00000{i}-{i:x}a{i:x}b{i:x}c", "state": state, "config": {"lr": 1e-4 * i}},
        )
    return ledger


def rebuilt(ledger: Ledger) -> dict[str, Any]:
    """All tables, computed from the journal alone."""
    (ledger.folder / "view.json").unlink(missing_ok=True)
    with Ledger.open(ledger.folder) as fresh:
        return fresh.db.storage.read() or {}
