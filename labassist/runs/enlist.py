"""Record a script that was started by hand: called by the script itself, while it waits.

`python -m labassist.runs.enlist WORKSPACE RUN` reads on standard input what the script says of itself
(`argv`, `cwd`, `mode`, `seed`, `threads`), captures code and machine, journals the start and leaves a
supervisor behind that watches. The script holds the lock on the run's `alive` file already.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from labassist.errors import LabError
from labassist.ledger.records import to_document
from labassist.ledger.store import Ledger
from labassist.runs import life
from labassist.runs.command import command_script, job_name, portable
from labassist.runs.launch import Plan, describe, spawn_supervisor, write_order
from labassist.workspace import Workspace


def main() -> None:
    """Enlist the calling script; one line and status 2 when it cannot be recorded."""
    workspace, run_id = Workspace(Path(sys.argv[1])), sys.argv[2]
    try:
        enlist(workspace, run_id, json.load(sys.stdin))
    except (LabError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def enlist(workspace: Workspace, run_id: str, told: dict[str, Any]) -> None:
    """Record a living script as run `run_id`. Raises LabError, and then nothing was journalled."""
    cwd = Path(told["cwd"])
    argv = portable(workspace, told["argv"], cwd)
    script = command_script(cwd, argv)
    plan = Plan(
        job=job_name(argv, script),
        kind="command",
        argv=argv,
        mode=told["mode"],
        seed=told["seed"],
        threads=told["threads"],
        cwd=str(cwd.relative_to(workspace.root)),
        script=script,
        started=True,
    )
    with Ledger.open(workspace.ledger, create=True) as ledger:
        folder = ledger.run_folder(run_id)
        supervised = life.take(folder / "supervised")
        assert supervised is not None  # the run is new: nobody else knows it
        record, order = describe(workspace, ledger, plan, run_id, folder)
        write_order(folder, order)
        ledger.write("start", to_document(record))
        spawn_supervisor(ledger.folder, run_id, "--supervised", str(supervised), pass_fds=(supervised,))
    os.close(supervised)


if __name__ == "__main__":
    main()
