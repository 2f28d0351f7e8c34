"""The run that belongs to a step: how it is started, and which of the ledger's runs it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from labassist.app.messages import RunsChanged
from labassist.app.progress import Progress

if TYPE_CHECKING:
    from labassist.app.app import LabApp


COMMAND = "step"
"""Key of a step's command that is neither a run nor a replay, while it goes on."""


class StepRun:
    """One step's run as the lab's screen follows it."""

    def __init__(self) -> None:
        self.id = ""
        """Empty: there is none yet."""
        self.progress = Progress()
        self.printed: list[str] = []
        """The end of its log."""
        self.starting = False
        """Somebody asked for a run, and it has no id yet."""

    @property
    def alive(self) -> bool:
        """Whether its trainer lives, here."""
        return bool(self.id) and self.progress.alive

    @property
    def running(self) -> bool:
        """Whether the ledger has it as running: a trainer's end is recorded a moment after its death."""
        document = self.progress.document
        return document is not None and document["state"] == "running"

    def follow(self, run: str) -> None:
        """Follow this run, from its first point on."""
        self.id, self.progress, self.printed = run, Progress(), []

    def belonging(self, step: dict[str, Any], runs: RunsChanged | None) -> str:
        """Return the run that a step shows: the live one of its job or command, else its newest, else none."""
        wanted = step["run"]
        if wanted is None:
            return ""
        if runs is not None:
            live = [run for run in runs.runs if runs.lives.get(run["id"]) == "alive" and _fits(run, wanted)]
            if live:
                return str(live[-1]["id"])
            if self.id and any(run["id"] == self.id for run in runs.runs):
                return self.id  # it has ended a moment ago: the step's newest is asked for now
        return str(wanted["newest"])

    def begin(self, app: LabApp, words: list[str]) -> None:
        """Start what a step asks for, by the words of its command."""
        if words[0] in ("run", "resume"):
            self.starting = True
            terms = app.terms.options if words[0] == "run" else ()
            app.desk.begin(words[0], *terms, *words[1:])
        elif words[0] == "replay" and (run := _named(words[1], app.runs)):
            app.replay(run)
        else:
            app.desk.errands.ask(COMMAND, *words)


def _fits(run: Mapping[str, Any], wanted: dict[str, Any]) -> bool:
    """Say whether a live run is what a step asks for: its job, a replay, or one that its command starts."""
    if wanted["words"][0] == "replay":
        return bool(run.get("replay_of"))
    named = run["job"] == wanted["job"] or (not wanted["job"] and run["job"] in wanted["words"])
    return named and not run.get("replay_of")


def _named(name: str, runs: RunsChanged | None) -> str:
    """Return the run that `@last` or `@-n` means, or the name itself."""
    if not name.startswith("@") or runs is None:
        return name
    originals = [run["id"] for run in runs.runs if not run.get("replay_of")]
    back = 1 if name == "@last" else int(name[2:]) if name[2:].isdigit() else 0
    return str(originals[-back]) if 0 < back <= len(originals) else ""
