"""What a run may cost, and what is done at its end: a price, limits in hours and money, a command."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from labassist.errors import InputError
from labassist.ledger import secrets

_PRICE = re.compile(r"\s*([0-9.]+(?:e-?[0-9]+)?)\s*(?:/\s*h(?:our)?)?\s*", re.IGNORECASE)
MOST = 1e6
"""A price or a limit above this is a mistake."""


@dataclass(frozen=True)
class Terms:
    """The terms of one segment. Zero or empty: none."""

    price: float = 0.0
    """What an hour of its machine costs."""
    currency: str = ""
    max_hours: float = 0.0
    max_cost: float = 0.0
    on_end: str = ""
    """A command for `sh -c`, run when the record is closed."""

    @classmethod
    def of(cls, order: Mapping[str, Any]) -> Terms:
        """Return the terms in an order.json; what a newer labassist added is left to it."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in order.get("terms", {}).items() if name in known})

    def document(self) -> dict[str, Any]:
        """Return what is set, as it stands in the order and in the run's record."""
        return {name: value for name, value in asdict(self).items() if value}

    def limit(self) -> tuple[float, str]:
        """Return after how many seconds the run is to stop, and why; infinity where there is no limit."""
        limits = [(math.inf, "")]
        if self.max_hours:
            limits.append((self.max_hours * 3600, f"{self.max_hours:g} h are over (--max-hours)"))
        if self.max_cost:
            money = f"{self.max_cost:g} {self.currency}".rstrip()
            limits.append((self.max_cost / self.price * 3600, f"{money} are spent (--max-cost)"))
        return min(limits)


def terms(
    workspace: Path,
    *,
    price: str | None,
    max_hours: float | None,
    max_cost: float | None,
    on_end: str | None,
    before: Mapping[str, Any] | None = None,
) -> Terms:
    """Return the terms that a person gave; price and command not given are those of `before`, the run that goes on.

    A limit is of one segment: that of `before` is over. `price` is a number, or one with `/h`. Raises InputError on a
    number that cannot be, a limit of money without a price, and a command with a secret in it.
    """
    earlier = before or {}
    hour = earlier.get("price", 0.0) if price is None else _price(price)
    for name, value in (("--max-hours", max_hours), ("--max-cost", max_cost)):
        if value is not None and not 0 < value <= MOST:
            raise InputError(f"{value:g} is not a number above 0", where=name)
    if max_cost and not hour:
        raise InputError("needs a price", where="--max-cost", mend="give --price P, what an hour costs")
    command = earlier.get("on_end", "") if on_end is None else on_end.strip()
    if command and (secrets.scan(command) or secrets.redact_argv([command], os.environ) != [command]):
        raise InputError(
            "has a secret in it, and is recorded",
            where="--on-end",
            mend="name an environment variable there: $TOKEN is filled in when it runs",
        )
    currency = ""
    if hour:
        from labassist.planner.cost import prices

        currency = earlier.get("currency", "") if price is None else prices(None, workspace).currency
    return Terms(hour, currency, max_hours or 0.0, max_cost or 0.0, command)


def spent(document: Mapping[str, Any], now: float = math.nan) -> float:
    """Return what a run cost, in its currency; of one that is alive so far, at `now` in seconds since the epoch."""
    if document.get("state") != "running" or not document.get("price"):
        return float(document.get("cost", 0.0))
    began = datetime.fromisoformat(document["created"]).timestamp()
    return max(0.0, now - began) / 3600 * float(document["price"])


def _price(text: str) -> float:
    match = _PRICE.fullmatch(text)
    try:
        value = float(match[1]) if match else math.nan
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST:
        raise InputError(f"{text!r} is no price", where="--price", mend="write 0.45 or 0.45/h")
    return value
