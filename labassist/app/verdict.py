"""A replay's verdict, big and in words, and how far a replay is while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labassist.app.big import big
from labassist.app.words import Line, Signs, bar, value
from labassist.errors import counted

KIND = {
    "BITWISE": "good",
    "WITHIN_NOISE": "warn",
    "DIVERGED": "bad",
    "INCOMPLETE": "warn",
    "INCOMPARABLE": "warn",
}

MEANING = {
    "BITWISE": "the {what} is equal, bit for bit",
    "WITHIN_NOISE": "not equal, but inside the bound",
    "DIVERGED": "the {what} went another way",
    "INCOMPLETE": "there is too little on one side to compare",
    "INCOMPARABLE": "an exact replay cannot be expected here",
}


def verdict_lines(
    found: Mapping[str, Any], marks: Signs, *, plain: bool, room: int, what: str = "replay"
) -> list[Line]:
    """Return a verdict in at most `room` lines: in large letters where that leaves two for the words.

    `found` is a `Verdict` as a document, or the answer of `replay --json`; `what` was compared with the recorded run.
    """
    word = found["verdict"]
    kind = KIND[word]
    counts = found.get("compared") or found
    sign = marks.yes if word == "BITWISE" else marks.no if word == "DIVERGED" else marks.alarm
    words: list[Line] = [[(f"{sign} {word}", kind), (f"  {MEANING[word].format(what=what)}", "plain")]]
    steps, series, tensors = (counts.get(name, 0) for name in ("steps", "series", "tensors"))
    if steps or tensors:
        parts = (counted(steps, "steps"), f"{series} series", counted(tensors, "tensors"))
        words.append([(f"compared {', '.join(parts)}", "plain")])
    first = found.get("first_difference")
    if first:
        words.append([(_difference(first), "plain")])
    words += [[(cause, "dim")] for cause in found.get("likely_causes", [])]
    large: list[Line] = [[(row, kind)] for row in big(word, plain=plain)]
    if len(large) + 2 > room:
        return words[:room]
    return [*large, *words[: room - len(large)]]


def _difference(first: Mapping[str, Any]) -> str:
    if "step" in first and "series" in first:
        a, b = value(first.get("a"), 8), value(first.get("b"), 8)
        return f"first difference at step {first['step']:,}: {first['series']} {a} / {b}"
    return "first difference: " + ", ".join(f"{key} {item}" for key, item in first.items())


def progress_lines(
    phase: str, step: int, total: int, compared: int, different: int | None, marks: Signs
) -> list[Line]:
    """Return how far a replay is; `different` is the first step at which a loss was not equal."""
    if not step:
        return [[(f"{marks.live} replaying: ", "good"), (phase or "starting", "plain")]]
    share = step / total if total else 0.0
    done = f"step {step:,}" + (f"/{total:,}" if total else "") + (f", {phase}" if phase else "")
    lines: list[Line] = [
        [(f"{marks.live} replaying  ", "good"), (bar(share, 24, marks), "key"), (f"  {done}", "plain")]
    ]
    if different is not None:
        lines.append([(f"{marks.no} ", "bad"), (f"the loss differs from step {different:,} on", "plain")])
    elif compared:
        lines.append(
            [(f"{marks.yes} ", "good"), (f"{compared:,} losses so far, each equal in every bit", "plain")]
        )
    return lines
