"""The orders in which a list of runs can stand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from labassist.ledger.canonical import decode_number

SORTS = ("when", "loss", "steps", "job", "state")
"""Columns that `s` goes through: the newest, the lowest loss, the most steps first; words by the alphabet."""

DOWNWARD = ("when", "steps")


def sorted_by(runs: Sequence[Mapping[str, Any]], column: str) -> list[Mapping[str, Any]]:
    """Return runs (oldest first) by a column of SORTS; what has no value there comes last, ties the newest first."""
    newest = list(reversed(runs))
    if column == "when":
        return newest
    if column == "steps":
        return sorted(newest, key=lambda run: -run.get("step", 0))
    if column == "loss":
        return sorted(newest, key=lambda run: _loss(run))
    return sorted(newest, key=lambda run: str(run.get(column, "")))


def _loss(run: Mapping[str, Any]) -> float:
    """Return the last loss; infinite where there is none or it is no number."""
    try:
        number = decode_number(run.get("last", {}).get("loss"))
    except ValueError:
        return math.inf
    return math.inf if math.isnan(number) else number
