"""What every labassist process does first: nothing stays `running` for ever.

Three cases, by the two locks of a run that the ledger calls running: the trainer lives and nobody
watches it (adopt it); nobody lives and nobody is closing the record (close it, from the end marker or as
lost); a copy of a ledger from elsewhere (leave it alone, it is only unseen).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

from labassist.errors import LedgerError
from labassist.ledger.environment import machine
from labassist.ledger.store import Ledger
from labassist.runs import ending, life
from labassist.runs.absorb import Absorber, iso
from labassist.runs.launch import spawn_supervisor


def recover(ledger: Ledger) -> list[str]:
    """Adopt or close what was left behind; return one line for each thing done.

    Does nothing on a read-only ledger. Cheap when no run is open. Raises the LedgerError of a run that cannot be
    closed, once all others are.
    """
    done: list[str] = []
    failed: LedgerError | None = None
    if ledger.readonly:
        return done
    for document in ledger.running():
        run_id = document["id"]
        folder = ledger.run_folder(run_id)
        state = life.life(folder, document, machine().id)
        if state == "unseen" or life.held(folder / "supervised"):
            continue
        if state == "alive":
            if _adopt(ledger, run_id, folder):
                done.append(f"adopted run {run_id}: its supervisor was gone, its trainer goes on")
            continue
        try:
            closed = _close(ledger, run_id, folder)
        except LedgerError as error:
            failed = failed or error
            continue
        if closed:
            done.append(closed)
    if failed is not None:
        raise failed
    return done


def main() -> None:
    """Do it for one ledger: called by a run's shim when its supervisor has gone."""
    with Ledger.open(Path(sys.argv[1])) as ledger:
        for line in recover(ledger):
            print(line, flush=True)


def _adopt(ledger: Ledger, run_id: str, folder: Path) -> bool:
    """Start a supervisor for a living trainer. The lock is taken here: of many that look, one adopts."""
    lock = life.take(folder / "supervised", patience=0.05)
    if lock is None:
        return False
    try:
        since = iso((folder / "supervised").stat().st_mtime)
        options = ("--supervised", str(lock), "--unwatched-since", since)
        spawn_supervisor(ledger.folder, run_id, *options, pass_fds=(lock,))
    finally:
        os.close(lock)
    return True


def _close(ledger: Ledger, run_id: str, folder: Path) -> str:
    lock = life.take(folder / "supervised", patience=0.2)
    if lock is None:
        return ""
    try:
        current = ledger.run(run_id)
        if current is None or current["state"] != "running":
            return ""
        absorber = Absorber(ledger, run_id, ledger.folder.parent)
        document = absorber.finalise(
            vanished="trainer and supervisor vanished (killed, or the machine went away)",
        )
    finally:
        os.close(lock)
    ending.spawn(ledger, run_id)
    word = document["state"]
    hint = f"; go on with: labassist resume {run_id}" if word == "lost" else ""
    return f"closed run {run_id} as {word} at step {document['step']}{hint}"


def sweep_scratch(scratch: Path) -> None:
    """Remove what a killed replay left in the scratch folder; a living one holds its lock."""
    if not scratch.is_dir():
        return
    for folder in scratch.iterdir():
        lock = life.take(folder / "lock") if folder.is_dir() else None
        if lock is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(folder)
            os.close(lock)
