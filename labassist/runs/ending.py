"""What happens when a run's record is closed: the person's own command is run, and its failure noted."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from labassist import own
from labassist.errors import LabError
from labassist.ledger.store import Ledger
from labassist.runs.terms import Terms

LOG = "on-end.log"
"""In the run folder: what the command printed."""

PATIENCE_S = 600.0
"""A command that takes longer is killed."""


def command(folder: Path) -> str:
    """Return the command that a run asked for at its end; empty without one."""
    try:
        return Terms.of(json.loads((folder / "order.json").read_text())).on_end
    except (OSError, ValueError, TypeError):
        return ""  # without its order the run is closed all the same


def after(ledger: Ledger, run_id: str) -> None:
    """Run a closed run's command, once; a failure is journalled with the run, and changes nothing else of it.

    The command finds LABASSIST_RUN, LABASSIST_JOB, LABASSIST_STATE, LABASSIST_REASON, LABASSIST_EXIT (the shell's
    status of the trainer, empty where it is not known) and LABASSIST_WORKSPACE in its environment, and runs in the
    workspace.
    """
    folder = ledger.run_folder(run_id)
    line = command(folder)
    if not line:
        return
    trouble = _run(line, ledger.run(run_id) or {}, folder, ledger.folder.parent)
    if trouble:
        # A full disk: what the command said stands in its log, as far as that could be written.
        with contextlib.suppress(LabError, OSError):
            ledger.change("note", run_id, lambda run: {**run, "on_end_failed": trouble})


def spawn(ledger: Ledger, run_id: str) -> None:
    """Do the same in a process of its own, where whoever closed the record has other things to do."""
    if not command(ledger.run_folder(run_id)):
        return
    subprocess.Popen(
        own.start("labassist.runs.ending", str(ledger.folder), run_id),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> None:
    """Run the command of one closed run."""
    parser = argparse.ArgumentParser(prog="labassist.runs.ending")
    parser.add_argument("ledger", type=Path)
    parser.add_argument("run")
    args = parser.parse_args()
    with Ledger.open(args.ledger) as ledger:
        after(ledger, args.run)


def _run(line: str, document: dict[str, Any], folder: Path, workspace: Path) -> str:
    """Run the command and return what went wrong, empty where nothing did."""
    status = document.get("exit")
    if document.get("signal") is not None:
        status = 128 + int(document["signal"])
    told = {
        "LABASSIST_RUN": document.get("id", folder.name),
        "LABASSIST_JOB": document.get("job", ""),
        "LABASSIST_STATE": document.get("state", ""),
        "LABASSIST_REASON": document.get("reason", ""),
        "LABASSIST_EXIT": "" if status is None else str(status),
        "LABASSIST_WORKSPACE": str(workspace),
    }
    try:
        log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = subprocess.Popen(
                ["sh", "-c", line],
                cwd=workspace,
                env={**os.environ, **told},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        try:
            ended = child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            child.wait()
            return f"killed after {PATIENCE_S:g} s; see {LOG}"
    except OSError as error:
        return f"could not be run: {error.strerror}"
    return f"exit status {ended}; see {LOG}" if ended > 0 else f"signal {-ended}" if ended else ""
