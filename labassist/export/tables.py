"""Runs and curves as CSV: one table of all runs, one file a curve."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labassist.export.facts import own_curve
from labassist.ledger.curve_table import csv_text
from labassist.ledger.store import Ledger
from labassist.record.durable import hand_out

FIRST = (
    *("id", "job", "kind", "state", "mode", "seed", "threads", "profile", "created", "ended", "seconds", "exit"),
    *("signal", "reason", "step", "total_steps", "tokens_per_step", "tokens_per_s", "health", "note"),
    *("price", "currency", "cost", "replay_of", "resumed_from.run", "resumed_from.step", "verdict.verdict"),
    *("code.commit", "code.branch", "code.dirty", "code.digest", "machine.host"),
)  # fmt: skip
"""The columns that every table has, in this order; then those of the runs' configurations, values and versions."""

_MORE = ("last.", "config.", "versions.")


def write(ledger: Ledger, runs: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Write `runs.csv` and `curves/<run>.csv` into a folder, and return the files. Raises OSError."""
    (folder / "curves").mkdir(parents=True, exist_ok=True)
    table = folder / "runs.csv"
    hand_out(table, runs_text(runs))
    written = [table]
    for run in runs:
        curve = own_curve(ledger, run)
        if curve.series:
            place = folder / "curves" / f"{run['id']}.csv"
            hand_out(place, csv_text(curve, list(curve.series)))
            written.append(place)
    return written


def runs_text(runs: Iterable[dict[str, Any]]) -> str:
    """Return the table of runs: a value a cell, numbers in their shortest exact form, an empty cell for none."""
    rows = [flat(run) for run in runs]
    known = {name for row in rows for name in row}
    more = [name for start in _MORE for name in sorted(known) if name.startswith(start)]
    out = io.StringIO()
    writer = csv.DictWriter(out, [*FIRST, *more], extrasaction="ignore", lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a record's scalars under dotted names; lists of words joined by blanks."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool):
            found[prefix + key] = str(value).lower()
        elif isinstance(value, float):
            found[prefix + key] = repr(value)
        elif isinstance(value, list):
            found[prefix + key] = " ".join(map(str, value))
        elif value is not None:
            found[prefix + key] = value
    return found
