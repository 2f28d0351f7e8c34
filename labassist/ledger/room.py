"""A run's document stays small whatever its run does: lists that grow are kept short, what is long becomes an object.

Ten thousand documents must open at once, and an end that is refused for its size could never be recorded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from labassist.ledger import canonical
from labassist.ledger.objects import Objects

MAX_START_BYTES = 8 * 1024
"""Most that the document of a new run may take as canonical JSON: what a person gives, and what is known by then.

The documents of the labs stay under 3 KiB (a test says so); the room above is for long notes and arguments.
"""

MAX_RUN_BYTES = 24 * 1024
"""Most that it may take later. The limits below keep it from ever being reached."""

MAX_NOTE_BYTES = 4 * 1024

_LINES = 12
_LINE_CHARS = 240
_INPUTS_BYTES = 2 * 1024
_LAST_BYTES = 1536
_CONFIG_BYTES = 3 * 1024
_VALUE_CHARS = 120
_MORE = re.compile(r"and (\d+) more")

_FIRST = ("loss", "eval_loss", "val_loss", "lr", "grad_norm", "accuracy", "perplexity")
"""Series whose last value is kept before any other's."""


def few(lines: Sequence[str], most: int = _LINES) -> list[str]:
    """Return the lines, each cut to a length; of too many the first ones and how many more there are."""
    cut = [line if len(line) <= _LINE_CHARS else line[: _LINE_CHARS - 1] + "…" for line in lines]
    return cut if len(cut) <= most else [*cut[: most - 1], f"and {len(cut) - most + 1} more"]


def added(lines: Sequence[str], line: str) -> list[str]:
    """Return what `few` would keep of these lines, which it kept before, with one more; the same one is not added."""
    (line,) = few([line])
    if line in lines:
        return list(lines)
    more = _MORE.fullmatch(lines[-1]) if lines else None
    if more:
        return [*lines[:-1], f"and {int(more[1]) + 1} more"]
    return few([*lines, line])


def newest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last values of the series that there is room for: losses and rates first, then by name."""
    kept: dict[str, Any] = {}
    room = _LAST_BYTES
    known = [name for name in _FIRST if name in values]
    for name in [*known, *(name for name in sorted(values) if name not in known)]:
        room -= len(canonical.dumps({name: values[name]}))
        if room < 0:
            break
        kept[name] = values[name]
    return {name: kept[name] for name in values if name in kept}


def settings(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat configuration that a program told of: of a long one, long values are cut and end in a digest.

    The whole stands in the run's events, which are sealed. What is still too long is left out and counted in `…`.
    """
    if len(canonical.dumps(dict(flat))) <= _CONFIG_BYTES:
        return dict(flat)
    kept: dict[str, Any] = {}
    room = _CONFIG_BYTES
    for name, value in flat.items():
        short = _cut(value)
        room -= len(canonical.dumps({name: short}))
        if room < 0:
            kept["…"] = f"{len(flat) - len(kept)} more"
            break
        kept[name] = short
    return kept


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else canonical.dumps(value).decode()
    if len(text) <= _VALUE_CHARS:
        return value
    return f"{text[:_VALUE_CHARS]}… sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def place_inputs(run: dict[str, Any], entries: Sequence[Mapping[str, Any]], objects: Objects) -> None:
    """Write a run's inputs into its document: the first ones, and the rest as an object. Raises LedgerError."""
    room, inline = _INPUTS_BYTES, 0
    for entry in entries:
        room -= len(canonical.dumps(dict(entry)))
        if room < 0:
            break
        inline += 1
    run["inputs"] = [dict(entry) for entry in entries[:inline]]
    run.pop("more_inputs", None)
    if rest := [dict(entry) for entry in entries[inline:]]:
        run["more_inputs"] = objects.put_json(rest)


def inputs(run: Mapping[str, Any], objects: Objects) -> list[dict[str, Any]]:
    """Return all inputs that a run document names, those in an object too. Raises LedgerError."""
    rest = objects.get_json(run["more_inputs"]) if run.get("more_inputs") else []
    return [*run.get("inputs", []), *rest]
