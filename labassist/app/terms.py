"""What an hour costs and where a run is to stop: typed once, for the runs that this app starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from labassist.errors import InputError

PURPOSE = "set price and limits"
"""What the bottom line says that enter does to the line."""

TAKES = "an hour's price, and where to stop: price=0.45 hours=8 cost=3"

_OPTIONS = {"price": "--price", "hours": "--max-hours", "cost": "--max-cost"}


@dataclass(frozen=True)
class RunTerms:
    """A price and limits as they were typed; the empty ones are none."""

    text: str = ""
    options: tuple[str, ...] = ()
    """For `labassist run`."""
    said: str = ""
    """In words: `0.45 EUR an hour, stopped with a checkpoint at 8 h`."""


def read(workspace: Path, text: str) -> RunTerms:
    """Return the terms of a line such as `price=0.45 hours=8 cost=3`, each of the three at most once.

    Raises InputError on any other word, and on what `labassist run` would refuse.
    """
    from labassist.runs.terms import terms

    given: dict[str, str] = {}
    for word in re.sub(r"\s*=\s*", "=", text).split():
        name, _, value = word.partition("=")
        if name not in _OPTIONS or not value or name in given:
            raise InputError(
                f"{word!r} is none of it", mend="write price=0.45 hours=8 cost=3, or some of these"
            )
        given[name] = value
    if "cost" in given and "price" not in given:
        raise InputError("cost needs the price of an hour", mend="add price=0.45")
    known = terms(
        workspace,
        price=given.get("price"),
        max_hours=_number(given, "hours"),
        max_cost=_number(given, "cost"),
        on_end=None,
    )
    money = f" {known.currency}" if known.currency else ""
    limits = [f"{known.max_hours:g} h"] if known.max_hours else []
    limits += [f"{known.max_cost:g}{money}"] if known.max_cost else []
    said = [f"{known.price:g}{money} an hour"] if known.price else []
    said += [f"stopped with a checkpoint at {' or '.join(limits)}"] if limits else []
    options = tuple(word for name, value in given.items() for word in (_OPTIONS[name], value))
    return RunTerms(text, options, ", ".join(said))


def _number(given: dict[str, str], name: str) -> float | None:
    if name not in given:
        return None
    try:
        return float(given[name])
    except ValueError:
        raise InputError(f"{given[name]!r} is no number", where=name, mend=f"write {name}=8") from None
