"""A lab in the app's pilot: opened, gone through to a step, begun by what the commands do."""

from __future__ import annotations

from course_lab import loaded, record
from pilot import until
from textual.pilot import Pilot

from labassist.app.app import LabApp
from labassist.course import progress
from labassist.course.load import step_of
from labassist.ledger.store import Ledger
from labassist.workspace import Workspace


async def to_step(pilot: Pilot[int], app: LabApp, number: int) -> None:
    """Go to a step by its name in the list of all commands."""
    await until(pilot, app, "step ", " of 5")
    await pilot.press("colon", *f"step: {number}", "enter")
    await until(pilot, app, f"step {number} of 5")


async def open_lab(pilot: Pilot[int], app: LabApp, lab: str = "90 A small lab") -> None:
    """Open a lab from the course by its name in the list of all commands."""
    await until(pilot, app, lab)
    await pilot.press("colon", *f"lab: {lab[:2]}", "enter")
    await until(pilot, app, "step ", " of ")


def begun(workspace: Workspace, upto: str) -> None:
    """Do the steps before `upto` by what the commands do."""
    course, lab = loaded(workspace)
    with Ledger.open(workspace.ledger, create=True) as ledger:
        for step in lab.steps[: [one.id for one in lab.steps].index(upto)]:
            if step.kind == "read":
                progress.done(ledger, lab, step)
            elif step.kind == "predict":
                progress.guess(course, ledger, lab, step_of(lab, step.id), "3.0")
    if upto in ("fast", "double"):
        record(workspace, [3.0, 2.0])
