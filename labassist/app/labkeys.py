"""Which keys a lab's step offers now, and what each is called."""

from __future__ import annotations

from labassist.app.actions import LAB, Action, on
from labassist.app.labstate import LabState
from labassist.app.steprun import StepRun

ALWAYS = ("back", "help", "commands", "where", "ledger", "machine", "jobs")
"""What needs no step."""

LETTERS = "abcdefgh"
"""Options that a key commits to."""

_WAITING = [
    one
    for one in on(LAB)
    if one.name in ("guess", "run_or_stop", "check", "hint", "edit", "next", "open", "copy")
]

HELD = {one.name: one.name for one in _WAITING} | {
    f"letter('{letter}')": next((one.name for one in _WAITING if letter in one.keys.split(",")), "")
    for letter in LETTERS
}
"""Action, as a key is bound to it -> what else its key does; those that mean what a step is once it is kept."""


def offered(action: str, state: LabState, run: StepRun, *, readonly: bool, commanding: bool) -> bool:
    """Say whether an action makes sense for the step that is shown.

    `commanding`: a command of the step goes on that is more than one run.
    """
    step = state.step
    if action in ALWAYS:
        return True
    if step is None:
        return False
    offers = {
        "guess": state.guessing and not readonly,
        "run_or_stop": step["run"] is not None
        and (run.alive or commanding or not (state.guessing or readonly or run.starting)),
        "check": not state.guessing and step["kind"] not in ("read", "predict"),
        "hint": bool(step["hints"]["total"]),
        "edit": step["edit"] is not None,
        "next": step["kind"] == "read" or step["standing"] == "done",
        "previous": state.at > 0,
        "open": bool(run.id),
        "text": bool(run.id) or step["check"] is not None,
        "copy": step["run"] is not None,
        "read": bool(run.id),
        "terms": step["run"] is not None and not readonly,
    }
    return bool(offers.get(action, True))


def labelled(action: Action, state: LabState, run: StepRun, *, commanding: bool) -> str:
    """Return what an action does to the step that is shown."""
    step = state.step
    if step is None:
        return action.label
    if action.name == "run_or_stop":
        if commanding:
            return "give it up"
        return "stop run" if run.alive else "run again" if run.id else "run"
    if action.name == "hint":
        return f"hint ({len(step['hints']['taken'])} of {step['hints']['total']})"
    if action.name == "next":
        read = "" if step["standing"] == "done" else "read, "
        return read + ("back to the course" if state.on_last else "next")
    return action.label
