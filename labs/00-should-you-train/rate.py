"""How many labels of the set are wrong, from the marked sample, with the 95% interval.

    labassist run 00-should-you-train/rate               recorded
    python labs/00-should-you-train/rate.py --check      what the check of the sheet reads, as JSON

Series of the one step: sampled, wrong, low_percent, high_percent, set_percent (what a person could not know),
minutes, hours_for_all.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from messages import Marks, messages, read_sheet

from labassist import record
from labassist.errors import InputError, counted
from labassist.planner.decide import wilson


def checked(path: Path) -> Marks:
    """Return the marks of a sheet that is whole. Raises InputError on what is still missing in it."""
    marks = read_sheet(path)
    if not marks.marks:
        raise InputError("holds no row of a sheet", where=str(path), mend="make one with messages.py")
    if marks.left:
        raise InputError(
            f"not judged: {counted(marks.left, 'rows')}", where=str(path), mend="write . or x in them"
        )
    if not marks.minutes or marks.minutes <= 0:
        raise InputError("the minutes are missing", where=str(path), mend="write them in its first line")
    return marks


def main() -> None:
    """Count, and put the counts on record."""
    order = record.read_order("labs/00-should-you-train/rate.toml")
    path = order.input("sheet", order.config["sheet"])
    marks = checked(path)
    recorder = record.start(total_steps=1, order=order)
    sampled, wrong = len(marks.marks), marks.wrong
    low, high = (100 * bound for bound in wilson(wrong, sampled))
    rows = messages()
    planted = sum(row.label != row.truth for row in rows)
    minutes = float(marks.minutes or 0.0)
    hours = minutes / sampled * len(rows) / 60
    recorder.record(
        1,
        sampled=sampled,
        wrong=wrong,
        low_percent=low,
        high_percent=high,
        set_percent=100 * planted / len(rows),
        minutes=minutes,
        hours_for_all=hours,
    )
    recorder.finish(1)
    print(f"{wrong} of {sampled} labels are wrong: {low:.1f} to {high:.1f}% of all labels, 95 times of 100.")
    print(f"Of all {len(rows):,} labels {planted} were made wrong: {100 * planted / len(rows):.1f}%.")
    print(f"At your pace reading every row once takes {hours:.1f} hours.")


def compare() -> dict[str, object]:
    """Return how the marks agree with what the messages are about."""
    marks = read_sheet(Path(__file__).parent / "sheet.tsv")
    wrong = {row.number for row in messages() if row.label != row.truth}
    judged = {number: mark for number, mark in marks.marks.items() if mark in (".", "x")}
    return {
        "rows": len(marks.marks),
        "left": marks.left,
        "minutes": marks.minutes,
        "wrong": sum(number in wrong for number in marks.marks),
        "seen": sum(mark == "x" and number in wrong for number, mark in judged.items()),
        "right": sum(number not in wrong for number in marks.marks),
        "kept": sum(mark == "." and number not in wrong for number, mark in judged.items()),
    }


if __name__ == "__main__":
    if "--check" in sys.argv:
        print(json.dumps(compare()))
    else:
        main()
