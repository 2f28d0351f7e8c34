"""On which line of a TOML file a key stands: tomllib does not say, and an author wants to know."""

from __future__ import annotations

import re
from collections.abc import Sequence

Place = Sequence[str | int]
"""Keys and, for arrays, positions: `("steps", 2, "run", "job")`."""

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=")
_TRIPLE = re.compile(r'"""|\'\'\'')


def line_of(text: str, place: Place) -> int:
    """Return the 1-based line of `place`, or of what is nearest around it; 1 where nothing of it is found."""
    lines = text.split("\n")
    keys = _keys(lines)
    for size in range(len(place), 0, -1):
        found = keys.get(tuple(place[:size]))
        if found is not None:
            return _inside(lines, found, place[size:])
    return 1


def _keys(lines: Sequence[str]) -> dict[tuple[str | int, ...], int]:
    """Return the line of every header, and of every key that begins a line."""
    found: dict[tuple[str | int, ...], int] = {}
    counts: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    quoted = False
    for number, line in enumerate(lines, 1):
        marks = len(_TRIPLE.findall(line))
        if quoted:
            quoted = marks % 2 == 0
            continue
        quoted = marks % 2 == 1
        header = _HEADER.match(line)
        if header:
            table = _table(header[1], _parts(header[2]), counts)
            found.setdefault(table, number)
            continue
        key = _KEY.match(line)
        if key:
            found.setdefault((*table, *_parts(key[1])), number)
    return found


def _table(
    brackets: str, parts: list[str], counts: dict[tuple[str | int, ...], int]
) -> tuple[str | int, ...]:
    """Return the place that a header opens; `[steps.run]` belongs to the last of `[[steps]]`."""
    table: tuple[str | int, ...] = ()
    for at, part in enumerate(parts):
        table = (*table, part)
        if at == len(parts) - 1 and brackets == "[[":
            counts[table] = counts.get(table, 0) + 1
        if table in counts:
            table = (*table, counts[table] - 1)
    return table


def _parts(name: str) -> list[str]:
    return [part.strip().strip("\"'") for part in name.split(".")]


def _inside(lines: Sequence[str], number: int, rest: Place) -> int:
    """Return the line of what stands within the value that begins on a line: inline tables and arrays."""
    at = number - 1
    column = lines[at].find("=") + 1
    for one in rest:
        pattern = "{" if isinstance(one, int) else rf"\b{re.escape(one)}\b[\"']?\s*="
        for _ in range(one + 1 if isinstance(one, int) else 1):
            hit = _next(lines, at, column, pattern)
            if hit is None:
                return at + 1
            at, column = hit
    return at + 1


def _next(lines: Sequence[str], at: int, column: int, pattern: str) -> tuple[int, int] | None:
    """Return line and column after the next hit, not beyond the next key or header."""
    first = at
    while at < len(lines):
        if at > first and (_HEADER.match(lines[at]) or _KEY.match(lines[at])):
            return None
        hit = re.compile("\\{" if pattern == "{" else pattern).search(lines[at], column)
        if hit:
            return at, hit.end()
        at, column = at + 1, 0
    return None
