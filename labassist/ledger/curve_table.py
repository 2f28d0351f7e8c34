"""A curve as a table: CSV that holds every value exactly, and the choice of series."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from labassist.errors import InputError, did_you_mean
from labassist.ledger.curves import Curve, encode, held_out


def numbers(curve: Curve) -> list[str]:
    """Return the names of the series that hold numbers, and no digests."""
    return [
        name for name, series in curve.series.items() if not any(isinstance(v, str) for v in _few(series))
    ]


def _few(series: object) -> list[object]:
    """Return the first value of a series: all of them are of its kind."""
    return list(getattr(series, "values_in_order", ())[:1])


def chosen(curve: Curve, names: Sequence[str], *, drawn: bool) -> list[str]:
    """Return the series that a person asked for; without a name all of them, or `drawn` the loss alone.

    Raises InputError for a name that the curve does not have, or, where they are to be drawn, for a digest.
    """
    drawable = numbers(curve)
    there = drawable if drawn else list(curve.series)
    for name in names:
        if name not in there:
            why = "is a digest and cannot be drawn" if name in curve.series else "is no series of this run"
            mend = f"there are {', '.join(there) or 'none'}{did_you_mean(name, there)}"
            raise InputError(why, where=name, mend=mend)
    if names:
        return list(dict.fromkeys(names))
    return [name for name in ("loss", held_out(there)) if name in there] or there[:1] if drawn else there


def csv_text(curve: Curve, names: Sequence[str], counts: Sequence[str] = ()) -> str:
    """Return a header line and one line a step: shortest exact numbers, `nan:<bits>`, `inf`, digests as they are.

    An empty cell is a step at which the series has no value. The series of `counts` are written as whole numbers.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["step", *names])
    columns = [curve.series[name] for name in names]
    for step in curve.steps:
        cells = [column.get(step) for column in columns]
        cells = [
            int(cell) if cell is not None and name in counts else cell
            for name, cell in zip(names, cells, strict=True)
        ]
        if any(cell is not None for cell in cells) or not names:
            writer.writerow([step, *("" if cell is None else _cell(cell) for cell in cells)])
    return out.getvalue()


def _cell(value: float | str) -> str:
    kept = encode(value)
    return kept if isinstance(kept, str) else repr(kept)
