"""What a step's screen asks of the course, `lab`, `check` and `hint`: what goes on, and what waits for its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from labassist.app.errands import Errands
from labassist.app.steprun import COMMAND

READ, KEEP, CHECK, HINT = "lab", "keep", "check", "hint"

ANSWERS = (READ, KEEP, CHECK, HINT, COMMAND)
"""Keys of the answers that a step's screen waits for."""


class StepErrands:
    """Asks, and knows what is on its way. Keys that mean the step as it will be wait until it is kept."""

    def __init__(self, errands: Errands, lang: str) -> None:
        self._errands = errands
        self._lang = lang
        self.keeping = False
        """A guess or a done-mark is on its way into the ledger."""
        self.typed = ""
        """The guess on its way, as it was typed; empty for a letter and a done-mark."""
        self.then_on = False
        """Go to the next step when it is kept."""
        self._held: list[Callable[[], object]] = []
        self._checking = 0.0
        """When the check that goes on was started, by the monotonic clock; 0: none goes on."""
        self._hinting = 0
        """Hints asked for that have not come."""

    def read(self, place: str) -> None:
        """Ask for a lab or a step as it is; what is being kept is not given up for it."""
        if self.keeping:
            self.hold(partial(self.read, place))
        else:
            self._errands.ask(READ, "lab", place, "--lang", self._lang)

    def keep(self, place: str, option: str, *, typed: str = "", then_on: bool = False) -> None:
        """Keep a guess or a done-mark, by its option of `lab`."""
        self._errands.drop(READ)  # it would answer with the step as it was
        self.keeping, self.typed, self.then_on = True, typed, then_on
        self._errands.ask(KEEP, "lab", place, option, "--lang", self._lang)

    def hold(self, do: Callable[[], object]) -> None:
        """Do something when all is kept, in the order of asking."""
        self._held.append(do)

    def take(self, key: str) -> None:
        """Take note that an answer came."""
        if key == KEEP:
            self.keeping = False
        elif key == CHECK:
            self._checking = 0.0

    def forget(self) -> None:
        """Give up what waits: after what was not kept, or behind the last step, it would mean something else."""
        self._held.clear()
        self.no_hints()

    def go_on(self) -> None:
        """Do what was held, up to the next thing that is to be kept."""
        while self._held and not self.keeping:
            self._held.pop(0)()

    def check(self, place: str) -> None:
        """Check a step; a check that goes on begins again, as it may have looked too early."""
        self._checking = time.monotonic()
        self._errands.ask(CHECK, "check", place, "--lang", self._lang)

    @property
    def checking(self) -> float:
        """Seconds that the check has taken that goes on; 0: none goes on."""
        return time.monotonic() - self._checking if self._checking else 0.0

    def drop_check(self) -> None:
        """Give the check up."""
        self._errands.drop(CHECK)
        self._checking = 0.0

    def hint(self, place: str) -> None:
        """Take one hint more; each call counts, also while one is on its way."""
        self._hinting += 1
        if self._hinting == 1:
            self._errands.ask(HINT, "hint", place)

    def hinted(self, place: str, *, more: bool) -> None:
        """Take note of a hint that came, and ask for the next one where one is wanted and there are `more`."""
        self._hinting = max(0, self._hinting - 1) if more else 0
        if self._hinting:
            self._errands.ask(HINT, "hint", place)

    def no_hints(self) -> None:
        """Take note that no hint is wanted any more."""
        self._hinting = 0
