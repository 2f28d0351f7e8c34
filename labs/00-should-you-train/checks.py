"""What the checks of this lab read."""

from __future__ import annotations

from typing import Any

from labassist.course.evidence import Evidence
from labassist.course.model import Criterion, Measured
from labassist.errors import counted

SEEN, KEPT = 0.8, 0.95
"""Shares of the wrong labels that must be seen, and of the right ones that must be left alone."""

SOURCE_LENGTH, REASON_LENGTH = 4, 30
"""Characters below which a source or a reason says nothing."""


def thresholds(found: Evidence) -> list[Criterion]:
    """Both thresholds that waited have a value and a source."""
    table = found.program(["decide.py", "--thresholds"])
    return [
        _threshold(table, "examples", "rows: a threshold with its source", 1, "rows"),
        _threshold(table, "hours", "hours: a factor with its source", 1, "times"),
    ]


def _threshold(table: dict[str, Any], name: str, title: str, least: int, unit: str) -> Criterion:
    value, source = table[name]["value"], str(table[name]["source"]).strip()
    got = counted(1, unit) if value == 1 else f"{value:g} {unit}"
    return Criterion(
        title,
        value >= least and len(source) >= SOURCE_LENGTH,
        f"at least {counted(least, unit)}, and where that comes from ({SOURCE_LENGTH} characters or more)",
        f"{got}, {source or 'no source'}",
        f"thresholds.toml [{name}]",
    )


def sheet(found: Evidence) -> list[Criterion]:
    """The whole sheet is judged, and as the messages themselves say."""
    got = found.program(["rate.py", "--check"])
    where = "sheet.tsv"
    # How many there are is said when every row is judged: before, it would be a hint.
    wrong, right = (f" of {got[name]}" if not got["left"] else "" for name in ("wrong", "right"))
    return [
        Criterion("every row is judged", got["left"] == 0, "0 rows left", f"{got['left']} left", where),
        Criterion(
            "wrong labels are seen",
            got["seen"] >= SEEN * got["wrong"],
            f"at least {SEEN:.0%}{wrong}",
            f"{got['seen']}",
            where,
        ),
        Criterion(
            "right labels are kept",
            got["kept"] >= KEPT * got["right"],
            f"at least {KEPT:.0%}{right}",
            f"{got['kept']}",
            where,
        ),
        Criterion(
            "the minutes are written",
            bool(got["minutes"] and got["minutes"] > 0),
            "how long the marking took",
            "none" if not got["minutes"] else f"{got['minutes']:g} minutes",
            where,
        ),
    ]


def rate(found: Evidence) -> list[Criterion]:
    """The sample is large enough, and its interval holds the rate of the whole set."""
    got, source = _last(found, "rate")
    share = got["set_percent"]
    return [
        Criterion(
            "at least 60 rows were read", got["sampled"] >= 60, "60 rows", f"{got['sampled']:.0f}", source
        ),
        Criterion(
            "the interval holds the whole set's rate",
            got["low_percent"] <= share <= got["high_percent"],
            f"{got['low_percent']:.1f} to {got['high_percent']:.1f}% holds it",
            f"{share:.1f}%",
            source,
        ),
    ]


def measured_guess(found: Evidence) -> Measured:
    """What the sample and the whole set say."""
    got, source = _last(found, "rate")
    low, high = got["low_percent"], got["high_percent"]
    return Measured(
        f"{got['set_percent']:.1f}%; the sample of {got['sampled']:.0f} said {low:.1f} to {high:.1f}%", source
    )


def decide(found: Evidence) -> list[Criterion]:
    """The record rests on what was measured, and holds a reason."""
    run = found.run("decide")
    config = run["config"]
    told, from_rate = _last(found, "rate")
    got, source = _last(found, "decide")
    why = str(config["why"]).strip()
    return [
        Criterion(
            "the label errors are those of your sample",
            config["sample"] == told["sampled"] and config["errors"] == told["wrong"],
            f"{told['wrong']:.0f} of {told['sampled']:.0f} ({from_rate})",
            f"{config['errors']} of {config['sample']}",
            "decide.toml",
        ),
        Criterion(
            "people's hours hold at least the reading",
            config["people_hours"] >= told["hours_for_all"],
            f"{told['hours_for_all']:.1f} hours or more ({from_rate})",
            f"{config['people_hours']:g}",
            "decide.toml",
        ),
        Criterion(
            "machine hours stand beside them",
            config["machine_hours"] >= 0,
            "a number from `plan time`",
            "unknown" if config["machine_hours"] < 0 else f"{config['machine_hours']:g}",
            "decide.toml",
        ),
        Criterion(
            "the reason is written",
            len(why) >= REASON_LENGTH,
            f"a sentence of {REASON_LENGTH} characters or more",
            why or "nothing",
            "decide.toml",
        ),
        Criterion(
            "all four conditions are on record",
            got["conditions"] == 4,
            "4",
            f"{got['conditions']:.0f}",
            source,
        ),
    ]


def _last(found: Evidence, step: str) -> tuple[dict[str, float], str]:
    """Return the recorded series of a step's run, each with its last value, and where that stands."""
    run = found.run(step)
    names = (
        ("sampled", "wrong", "low_percent", "high_percent", "set_percent", "hours_for_all")
        if step == "rate"
        else ("conditions",)
    )
    return {
        name: found.series(run, name)[-1][1] for name in names
    }, f"run {run['id'].rpartition('-')[2]} step 1"
