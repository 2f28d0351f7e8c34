"""How numbers, times and states are said: the same words on every screen, with a symbol and never colour alone."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from rich.cells import cell_len

from labassist.ledger.canonical import decode_number

Piece = tuple[str, str]
"""A text and its kind: plain, dim, strong, good, warn, bad, code, key, head."""

Line = list[Piece]


class Signs(NamedTuple):
    """The symbols of one character set; each is one cell wide."""

    yes: str
    no: str
    live: str
    open: str
    stopped: str
    unknown: str
    cursor: str
    alarm: str
    dot: str
    up: str
    down: str
    full: str
    empty: str


UNICODE = Signs("✓", "✗", "▸", "·", "■", "?", "▸", "!", "·", "↑", "↓", "▇", "▁")
ASCII = Signs("+", "x", ">", "-", "#", "?", ">", "!", "-", "^", "v", "#", ".")


def signs(plain: bool) -> Signs:
    """Return the symbols to use."""
    return ASCII if plain else UNICODE


class Shown(NamedTuple):
    """A run's state as a person should read it."""

    word: str
    sign: str
    kind: str


def state(document: Mapping[str, Any], life: str, readonly: bool, marks: Signs) -> Shown:
    """Return what is known here about a run; `life` is that of `runs.life` and counts only while it runs."""
    word = document["state"]
    if word == "running":
        if life == "unseen":
            return Shown("unseen", marks.unknown, "warn")
        if life == "over":
            # Somebody closes it within a moment, but nobody may where the ledger is read-only.
            return Shown("unclosed" if readonly else "closing", marks.unknown, "warn")
        return Shown("running", marks.live, "good")
    sign, kind = {
        "finished": (marks.yes, "plain"),
        "failed": (marks.no, "bad"),
        "stopped": (marks.stopped, "plain"),
        "lost": (marks.unknown, "warn"),
    }[word]
    if document.get("health") and word == "finished":
        return Shown("finished", marks.alarm, "warn")
    return Shown(word, sign, kind)


def value(number: object, digits: int = 4) -> str:
    """Return a recorded number in few characters; whole ones have no point, what is no number says so."""
    if isinstance(number, str):
        try:
            return value(float(decode_number(number)), digits)
        except ValueError:
            return number
    if not isinstance(number, int | float):
        return "-"
    if not math.isfinite(number):
        return str(number)
    if isinstance(number, int) or (number == int(number) and abs(number) < 1e6):
        return f"{int(number):,}"
    if 1e-3 <= abs(number) < 1e5:
        return f"{number:,.{digits}g}"
    return f"{number:.2e}"


def ago(stamp: str, now: float | None = None) -> str:
    """Return how long ago a ledger's time was: `12 s`, `3 min`, `2 h`, `5 d`."""
    seconds = max(0.0, (time.time() if now is None else now) - moment(stamp))
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} d"


def moment(stamp: str) -> float:
    """Return a ledger's time as seconds since the epoch; 0 for one that is none."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0


def age(stamp: str) -> float:
    """Return the seconds since a ledger's time."""
    return time.time() - moment(stamp)


def clock(stamp: str) -> str:
    """Return a ledger's time as local date and time."""
    return clock_of(moment(stamp))


def clock_of(seconds: float) -> str:
    """Return seconds since the epoch as local date and time."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


_ASCII = str.maketrans(dict(zip("…·—–‘’“”×→←−•⟦⟧", "~*--''\"\"x><-*[]", strict=True)))


def plain(text: str) -> str:
    """Return a text of the same length with what an ASCII terminal has, and a `?` for what it lacks."""
    return text if text.isascii() else text.translate(_ASCII).encode("ascii", "replace").decode()


def bar(share: float, cells: int, marks: Signs) -> str:
    """Return a bar of `cells` cells, `share` (0 to 1) of them full."""
    full = round(min(1.0, max(0.0, share)) * cells)
    return marks.full * full + marks.empty * (cells - full)


def short(run_id: str) -> str:
    """Return the part of a run's id that a person types."""
    return run_id.rpartition("-")[2]


def length(line: Line) -> int:
    """Return the cells of a line."""
    return sum(cell_len(text) for text, _ in line)
