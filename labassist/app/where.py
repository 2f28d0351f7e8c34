"""Where a number on the screen comes from: the answer to `w`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from labassist.app import words


class Source(NamedTuple):
    """One number as the screen shows it, and the file or the formula behind it."""

    name: str
    value: str
    source: str


JOURNAL = "ledger/journal.jsonl"


def of_record(document: Mapping[str, Any], fields: Mapping[str, str]) -> list[Source]:
    """Return the fields of a run's record that it has; `fields` is field -> name on the screen."""
    run = words.short(document["id"])
    found = []
    for field, name in fields.items():
        value: Any = document
        for part in field.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value not in (None, "", {}, []):
            shown = repr(value) if isinstance(value, float) else str(value)
            found.append(Source(name, shown, f"{JOURNAL}: record of run {run}, field {field}"))
    return found
