"""Commands that make and keep workspaces."""

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
        "new",
        new,
        help="make a workspace: a git repository with the labs' job files and an empty ledger",
        example="labassist new my-lab\nlabassist new .",
    )
    parser.add_argument(
        "folder",
        metavar="DIR",
        help="folder to make, empty or not there yet; or the top of a repository of your own",
    )

    command(
        sub,
        "upgrade",
        upgrade,
        help="merge the job files of a newer labassist into this workspace, and commit them",
        example="labassist upgrade",
    )


def new(args: argparse.Namespace) -> int:
    """Make a workspace and say what to do next."""
    import shlex

    from labassist import workspace
    from labassist.cli.output import emit, say
    from labassist.runs.jobs import list_jobs

    made = workspace.new(args.folder)
    jobs = list_jobs(made.workspace)
    for note in made.notes:
        say(f"note: {note}")
    document = {
        "workspace": str(made.workspace.root),
        "commit": made.commit,
        "jobs": jobs,
        "notes": made.notes,
        "added": made.added,
    }
    text = (
        f"made the workspace {made.workspace.root}\n"
        f"next: cd {shlex.quote(args.folder)} && labassist      (by commands: labassist lab 01)"
    )
    if made.added:
        text = (
            f"made the repository {made.workspace.root} a workspace: added {', '.join(made.added)}\n"
            "nothing is committed; do that with: git add .gitignore labs ledger && git commit\n"
            "next: labassist run -- python YOUR_SCRIPT.py      (labassist upgrade brings the course's jobs in)"
        )
    emit(document, args.json, lambda: text)
    return 0


def upgrade(args: argparse.Namespace) -> int:
    """Merge newer job files; 1 when conflicts wait for the person."""
    from labassist.cli.output import emit
    from labassist.upgrade import upgrade as merge
    from labassist.workspace import Workspace

    done = merge(Workspace.find(args.workspace))
    emit(done.document(), args.json, done.text)
    return 1 if done.conflicts else 0
