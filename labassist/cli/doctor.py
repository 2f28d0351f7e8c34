"""The command that looks whether this machine can do what the labs ask of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli.parsing import command

    command(
        sub,
        "doctor",
        doctor,
        help="check python, torch and CUDA, disk, git, terminal, hub and locks, with a mend for each",
        example="labassist doctor\nlabassist doctor --json",
    )


def doctor(args: argparse.Namespace) -> int:
    """Say what is well and what is not; 1 when something is in the way."""
    import os

    from labassist.cli.output import emit
    from labassist.errors import InputError
    from labassist.runs.doctor import examine
    from labassist.workspace import VARIABLE, Workspace

    try:
        workspace = Workspace.find(args.workspace)
    except InputError:
        if args.workspace is not None or os.environ.get(VARIABLE):
            raise
        workspace = None  # before `new` there is none, and then the machine is what matters
    found = examine(workspace)
    emit(found.document(), args.json, found.text)
    return 0 if found.ok else 1
