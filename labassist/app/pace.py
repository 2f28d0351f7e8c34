"""How often the app looks and draws: a slow link gets few frames, and nothing that moves for its own sake."""

from __future__ import annotations

from typing import NamedTuple


class Pace(NamedTuple):
    """Seconds between two of each."""

    look: float
    """At the files of the ledger and of the runs."""
    machine: float
    """At the machine: a number that jumps faster than twice a second cannot be read."""
    chart: float
    """Repaints of a chart, however fast points come in."""


NORMAL = Pace(0.5, 0.9, 0.25)
SLOW = Pace(3.0, 9.0, 6.0)
