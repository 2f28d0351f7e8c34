"""A replay as it goes over the run that it replays: its curve, and how many losses are equal bit for bit so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labassist.app import words
from labassist.app.messages import ReplayMoved, RunGrew, RunsChanged
from labassist.app.points import Points
from labassist.app.verdict import progress_lines, verdict_lines
from labassist.app.words import Line, Signs
from labassist.ledger.curves import same_value

CLOSING_S = 60.0
"""A replay that ended less than so many seconds ago may still be compared by the process that started it."""


class Overlay:
    """Follows the newest replay of one run, whoever started it."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.replay = ""
        """Id of the replay that is followed; empty: none is."""
        self.series: dict[str, Points] = {}
        self._step = 0
        self._compared = 0
        self._different: int | None = None

    def drop(self) -> None:
        """Follow none."""
        self.follow("")

    def follow(self, replay: str) -> None:
        """Follow this replay, from its first point on."""
        self.replay, self.series = replay, {}
        self._step, self._compared, self._different = 0, 0, None

    def newest(self, runs: RunsChanged | None) -> Mapping[str, Any] | None:
        """Return the newest replay that the ledger has."""
        return runs.replays.get(self.run) if runs else None

    def to_follow(self, runs: RunsChanged | None) -> str:
        """Return a replay that lives and is not followed yet, or nothing."""
        newest = self.newest(runs)
        if newest is None or newest["id"] == self.replay or not _lives(newest, runs):
            return ""
        return str(newest["id"])

    def feed(self, message: RunGrew, original: Points) -> None:
        """Take what is new of the replay; `original` has the losses of the run itself."""
        for row in message.points:
            self._step = row["step"]
            for name, number in row.items():
                if isinstance(number, float) and name != "t":
                    self.series.setdefault(name, Points()).add(self._step, number)
            before = original.at(self._step)
            if "loss" in row and before is not None:
                self._compared += 1
                if self._different is None and not same_value(row["loss"], before):
                    self._different = self._step

    def goes_on(self, own: ReplayMoved | None, runs: RunsChanged | None) -> bool:
        """Say whether a replay goes on; `own` is the last word of one that this app started."""
        if own is not None:
            return own.answer is None and not own.problem
        newest = self.newest(runs)
        return newest is not None and (_lives(newest, runs) or self._undecided(newest))

    def _undecided(self, newest: Mapping[str, Any]) -> bool:
        ended = words.age(newest.get("ended", ""))
        return newest["id"] == self.replay and not newest.get("verdict") and ended < CLOSING_S

    def lines(
        self,
        document: Mapping[str, Any],
        own: ReplayMoved | None,
        runs: RunsChanged | None,
        marks: Signs,
        *,
        plain: bool,
    ) -> list[Line]:
        """Return how far the replay is, or its verdict; nothing where the run was never replayed."""
        newest = self.newest(runs)
        if self.goes_on(own, runs):
            phase = own.phase if own and not self._step else ""
            if newest is not None and newest["id"] == self.replay and newest["state"] != "running":
                phase = "comparing"
            total = (newest or {}).get("total_steps") or document.get("step", 0)
            return progress_lines(phase, self._step, total, self._compared, self._different, marks)
        if own is not None and own.problem:
            return [[(f"{marks.no} no verdict: ", "bad"), (own.problem, "plain")]]
        found = (own.answer if own else None) or (newest or {}).get("verdict") or document.get("verdict")
        return verdict_lines(found, marks, plain=plain, room=7 if plain else 5) if found else []


def _lives(replay: Mapping[str, Any], runs: RunsChanged | None) -> bool:
    return runs is not None and runs.lives.get(replay["id"]) == "alive"
