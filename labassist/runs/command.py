"""Any command as a run: what it is called, where it runs, and what it says that it makes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from labassist.errors import InputError
from labassist.ledger.records import Mode
from labassist.runs.launch import Plan
from labassist.workspace import Workspace


def plan_command(
    workspace: Workspace,
    argv: Sequence[str],
    *,
    mode: Mode,
    seed: int,
    threads: int,
    note: str,
    outputs: Sequence[str],
) -> Plan:
    """Return the plan of `run -- CMD …`, run in the current folder if it lies in the workspace.

    Raises InputError when there is no such program, or an output lies outside the workspace.
    """
    if shutil.which(argv[0]) is None:
        raise InputError("no such program", where=argv[0], mend="check the spelling and PATH")
    here = Path.cwd().resolve()
    cwd = here.relative_to(workspace.root) if here.is_relative_to(workspace.root) else Path()
    declared = []
    for output in outputs:
        path = Path(os.path.normpath(workspace.root / cwd / output))
        if not path.is_relative_to(workspace.root):
            raise InputError(
                "lies outside the workspace", where=f"--out {output}", mend="a replay could not tell it apart"
            )
        declared.append(str(path.relative_to(workspace.root)))
    return Plan(
        job=Path(argv[0]).name,
        kind="command",
        argv=list(argv),
        mode=mode,
        seed=seed,
        threads=threads,
        note=note,
        outputs=declared,
        cwd=str(cwd),
    )
