"""Every key of the app, once: bindings, the bottom line, the command list and the help page come from here."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True)
class Action:
    """One thing a key does on some screens."""

    name: str
    """The method `action_<name>` of the screen, with its arguments if it takes any: `tab(2)`."""
    keys: str
    """As Textual names them, the one that is shown first."""
    label: str
    """For the bottom line: a word or two."""
    help: str
    """For the help page: a sentence."""
    screens: tuple[str, ...]
    listed: bool = True
    """Whether the bottom line names it; what stands on the screen already need not."""

    @property
    def method(self) -> str:
        """The name without arguments."""
        return self.name.partition("(")[0]


COURSE, LAB, JOBS, CHOICE = "Course", "Lab", "Jobs", "Choice"
RUN, LEDGER, COMPARE, AUDIT, MACHINE = "Run", "Ledger", "Compare", "Audit", "Machine"
PLAN, RESUME, EXPERIMENT = "Plan", "Resume", "Experiment"
WHERE, COMMANDS, HELP = "Where", "Commands", "Help"

MAIN = (COURSE, LAB, JOBS, RUN, LEDGER, COMPARE, AUDIT, MACHINE, PLAN, RESUME, EXPERIMENT)
"""The screens that one works on; the others lie over them for a moment."""

_OVER = (LAB, COMPARE)
"""Screens with a chart beside the part that takes the keys."""

TABS = ("curves", "log", "config", "code", "lineage", "checkpoints")

ACTIONS = (
    Action("open", "enter,o", "open", "Open the lab at its next step.", (COURSE,)),
    Action("newest", "r", "open run", "Open the live run, or else the newest one.", (COURSE,)),
    Action("jobs", "s", "start a job", "List the jobs; any can be started without a lab.", (COURSE,)),
    Action("start", "enter,r", "run", "Start a recorded run of the job; asks a profile.", (JOBS,)),
    Action("choose", "enter", "start", "Start with the highlighted profile.", (CHOICE,)),
    Action("terms", "dollar_sign", "price, limits", "What an hour costs, and where to stop.", (CHOICE,)),
    Action("guess", "enter", "guess", "Commit your guess: a letter, or enter and type it.", (LAB,)),
    Action("run_or_stop", "space", "run", "Start the step's run, or ask it for its end.", (LAB,)),
    Action("check", "c", "check", "Check the step; again: give the check up.", (LAB,)),
    Action("hint", "h", "hint", "Show the next hint; hints are counted.", (LAB,)),
    Action("edit", "e", "edit", "Open your editor at the line; the app waits.", (LAB,)),
    Action("next", "n", "next", "Go to the next step, when this one is done.", (LAB,)),
    Action("previous", "p", "previous", "Go back to the step before.", (LAB,)),
    Action("open", "o", "open run", "Open the step's run.", (LAB,)),
    Action("text", "t", "whole text", "Show the text alone, or all parts again.", (LAB,)),
    Action("jobs", "s", "start a job", "List the jobs; any can be started without a lab.", (LAB,)),
    Action(
        "terms", "dollar_sign", "price, limits", "What an hour costs, where to stop.", (LAB,), listed=False
    ),
    Action("open", "enter,o", "open", "Open the highlighted run.", (LEDGER,)),
    Action("mark", "space", "mark", "Mark the run; two marked ones can be compared.", (LEDGER,)),
    Action("compare", "d", "compare", "What differs: the two marked, or marked and here.", (LEDGER,)),
    Action("more", "right,plus", "more", "The next value of the highlighted setting.", (PLAN,)),
    Action("less", "left,minus", "less", "The value before.", (PLAN,)),
    Action("type", "enter", "type", "Type a value for the highlighted setting.", (PLAN,)),
    Action("fit", "f", "make it fit", "Make the cheapest change that makes it fit.", (PLAN,)),
    Action("finding", "enter", "finding", "Go to the findings; again: open the one at hand.", (RESUME,)),
    Action("prove", "p", "prove", "Run it unbroken and resumed; compare every bit.", (RESUME,)),
    Action("ablate", "b", "ablate", "Resume without each of the six states in turn.", (RESUME,)),
    Action("folder", "o", "other folder", "Type the path of a checkpoint from elsewhere.", (RESUME,)),
    Action("check", "c", "check again", "Read the highlighted folder again.", (RESUME,)),
    Action("again", "r", "again", "Make the runs of the experiment anew.", (EXPERIMENT,)),
    Action("stop", "s", "stop after checkpoint", "Ask the run for a checkpoint and its end.", (RUN,)),
    Action("replay", "r", "replay", "Run the recorded code again, compare every bit.", (RUN, LEDGER)),
    Action("audit", "a", "audit", "Say whether all that was recorded is as it was.", (RUN, LEDGER)),
    Action("note", "n", "note", "Keep a note with the run.", (RUN, LEDGER)),
    Action("find", "slash", "find", "Find runs: lr>1e-4 state=failed job~train, a word.", (LEDGER,)),
    Action("sort", "s", "sort", "Sort by the next column: when, loss, steps, job.", (LEDGER,)),
    *(
        Action(f"tab({at})", str(at), name, f"Show the run's {name}.", (RUN,), listed=False)
        for at, name in enumerate(TABS, 1)
    ),
    Action("read(-1, True)", "left", "earlier", "Read the curve's exact values further left.", _OVER, False),
    Action("read(1, True)", "right", "later", "Further right; on past the newest: off.", _OVER, False),
    Action("read(-1, False)", "comma", "step before", "Read them one step earlier.", _OVER, False),
    Action("read(1, False)", "full_stop", "step after", "Read them one step later.", _OVER, False),
    Action("series", "u", "next series", "Draw the next series: loss, grad norm, lr.", (RUN, COMPARE)),
    Action("smooth", "v", "average", "Lay a moving average over the curve, or not.", (RUN, COMPARE)),
    Action("log_scale", "g", "log scale", "A logarithmic scale, or a linear one.", (RUN, COMPARE)),
    Action("copy", "y", "copy", "Copy the command, and keep it in a file.", (LAB, PLAN, EXPERIMENT)),
    Action("copy", "y", "copy id", "Copy the run's id, and keep it in a file.", (RUN, LEDGER)),
    Action("export", "x", "page", "Write the run as one HTML page for a browser.", (RUN, LEDGER)),
    Action("plan", "p", "plan", "What a training needs, takes and costs.", (COURSE,)),
    Action("checkpoints", "c", "checkpoints", "Whether a resume from a checkpoint is exact.", (COURSE, RUN)),
    Action("ledger", "l", "ledger", "Open the ledger: every recorded run.", (COURSE, LAB, JOBS, RUN)),
    Action("machine", "m", "machine", "Each GPU and the host.", (COURSE, LAB, JOBS, RUN, LEDGER)),
    Action("where", "w", "where from", "Where the numbers on this screen come from.", MAIN),
    Action("commands", "colon,ctrl+p", "all", "Everything that can be done now, by name.", MAIN),
    Action("help", "question_mark,f1", "help", "What the keys do, here and everywhere.", MAIN),
    Action(
        "back",
        "escape,q",
        "back",
        "Go back one screen.",
        (LAB, JOBS, CHOICE, RUN, LEDGER, COMPARE, AUDIT, MACHINE, PLAN, RESUME, EXPERIMENT, WHERE, HELP),
    ),
    Action("back", "escape", "back", "Leave the list; nothing is done.", (COMMANDS,)),
    Action("leave", "q", "quit", "Leave the app. Runs and replays go on.", (COURSE,)),
)

NAMES = {
    "slash": "/",
    "question_mark": "?",
    "escape": "esc",
    "enter": "enter",
    "space": "space",
    "colon": ":",
    "comma": ",",
    "full_stop": ".",
    "plus": "+",
    "minus": "-",
    "dollar_sign": "$",
}


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
