"""A small choice before a run: which profile of a job's numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual import on
from textual.widget import Widget

from labassist.app import words
from labassist.app.actions import CHOICE
from labassist.app.screens.base import LabScreen
from labassist.app.widgets.prompt import Prompt
from labassist.app.widgets.rows import Column, Rows
from labassist.app.words import Line, Piece
from labassist.runs.jobs import Job

SMALLEST = "tiny"
"""The profile that proves in seconds that everything works: offered first until a run has finished."""

GPU = ("device", "cuda")
"""The number of a job's profile that says it needs a GPU."""

SHOWN = ("steps", "batch", "context", "model.d_model", "model.layers")
"""Numbers that tell profiles apart at a glance."""


class ChoiceScreen(LabScreen):
    """Returns the chosen profile's name, or None."""

    NAME = CHOICE
    CSS_PATH: ClassVar[Any] = "choice.tcss"

    def __init__(self, job: Job, *, first: bool) -> None:
        """`first`: no run of this job has finished yet."""
        super().__init__()
        self.job = job
        self._first = first

    def body(self) -> Iterable[Widget]:
        """Return the list of profiles."""
        yield Rows(
            (Column("profile", 12), Column("what it sets", 0)),
            self._cells,
            cursor_sign=self.lab.signs.cursor,
            id="profiles",
        )
        yield Prompt()

    def on_mount(self) -> None:
        """Highlight the profile that fits best."""
        super().on_mount()
        profiles = self.job.profiles
        wanted = SMALLEST if self._first and SMALLEST in profiles else self.job.default_profile
        self.query_one(Rows).show(profiles, profiles.index(wanted))

    def can(self, action: str) -> bool:
        """Start only what this machine can run."""
        return action != "choose" or not self._lacks(self.query_one(Rows).here)

    def _lacks(self, profile: str) -> str:
        """Return why a profile cannot run here; empty where it can, or where nobody has looked yet."""
        seen = self.lab.machine
        name, value = GPU
        if self._numbers(profile).get(name) != value or seen is None or seen.sample.gpus:
            return ""
        return f"needs a GPU: {seen.sample.no_gpu}"

    def _numbers(self, profile: str) -> dict[str, Any]:
        return {**self.job.spec.defaults, **self.job.spec.profiles.get(profile, {})}

    @on(Rows.Moved)
    def _moved(self) -> None:
        self.refresh_lines()

    def title_line(self) -> list[Line]:
        """Return what is about to be started."""
        parts: list[Line] = [[("Start ", "plain"), (self.job.name, "strong")]]
        return [*parts, [(self.lab.terms.said or "with which numbers?", "plain")]]

    @on(Rows.Chosen)
    def action_choose(self) -> None:
        """Hand the highlighted profile back, or say what it lacks."""
        profile = self.query_one(Rows).here
        lacks = self._lacks(profile)
        if lacks:
            self.notice([(f"{self.lab.signs.alarm} {profile} {lacks}", "warn")])
        else:
            self.dismiss(profile)

    def _cells(self, profile: str) -> list[Piece]:
        lacks = self._lacks(profile)
        if lacks:
            return [(profile, "dim"), (f"{self.lab.signs.no} {lacks}", "dim")]
        numbers = self._numbers(profile)
        parts = [
            f"{name.rpartition('.')[2]} {words.value(numbers[name]) if not isinstance(numbers[name], str) else numbers[name]}"
            for name in SHOWN
            if name in numbers
        ]
        return [(profile, "strong"), ("  ".join(parts), "plain")]
