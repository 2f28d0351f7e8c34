"""Every key of the app, once: bindings, the bottom line and the help page all come from here."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True)
class Action:
    """One thing a key does on some screens."""

    name: str
    """The method `action_<name>` of the screen."""
    keys: str
    """As Textual names them, the one that is shown first."""
    label: str
    """For the bottom line: a word or two."""
    help: str
    """For the help page: a sentence."""
    screens: tuple[str, ...]


COURSE, RUN, LEDGER, HELP, CHOICE = "Course", "Run", "Ledger", "Help", "Choice"
EVERYWHERE = (COURSE, RUN, LEDGER, HELP)

ACTIONS = (
    Action(
        "start",
        "enter,r",
        "run",
        "Start a recorded run of the job; asks for its profile.",
        (COURSE,),
    ),
    Action("choose", "enter", "start", "Start with the highlighted profile.", (CHOICE,)),
    Action("newest", "o", "open run", "Open the live run, or else the newest one.", (COURSE,)),
    Action("open", "enter,o", "open", "Open the highlighted run.", (LEDGER,)),
    Action("stop", "s", "stop after checkpoint", "Ask the run for a checkpoint and its end.", (RUN,)),
    Action("replay", "y", "replay", "Run the recorded code again and compare every bit.", (RUN,)),
    Action("replay", "r,y", "replay", "Replay the highlighted run and compare every bit.", (LEDGER,)),
    Action("find", "slash", "find", "Find runs: lr>1e-4 state=failed job~train, or a word.", (LEDGER,)),
    Action("smooth", "a", "average", "Lay a moving average over the loss, or take it off.", (RUN,)),
    Action("log_scale", "g", "log scale", "Draw the loss on a logarithmic scale, or a linear.", (RUN,)),
    Action("ledger", "l", "ledger", "Open the ledger: every recorded run.", (COURSE, RUN)),
    Action("help", "question_mark,f1", "help", "Show every key.", (COURSE, RUN, LEDGER)),
    Action("back", "escape,q", "back", "Go back one screen.", (RUN, LEDGER, HELP, CHOICE)),
    Action("leave", "q", "quit", "Leave the app. Runs and replays go on.", (COURSE,)),
)

NAMES = {"slash": "/", "question_mark": "?", "escape": "esc", "enter": "enter"}


def on(screen: str) -> list[Action]:
    """Return the actions of a screen in the order of the bottom line."""
    return [action for action in ACTIONS if screen in action.screens]


def bindings(screen: str) -> list[Binding]:
    """Return a screen's bindings."""
    return [Binding(action.keys, action.name, action.label, show=False) for action in on(screen)]


def keys(action: Action) -> list[str]:
    """Return an action's keys as a person reads them."""
    return [
        NAMES.get(key, key.upper() if key[:1] == "f" and key[1:].isdigit() else key)
        for key in action.keys.split(",")
    ]
