"""What a training costs: machine hours, people's hours, and a buffer; and whether to rent or to buy."""

from __future__ import annotations

import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labassist.errors import InputError, did_you_mean
from labassist.planner.arch import DATA
from labassist.planner.cards import find

BUFFER = 3.0
"""Factor on machine hours for runs that fail, are repeated or were forgotten: the second article's figure."""

TRAPS = (
    "a stopped instance can be deleted within days: read the provider's rule",
    "its disk may not outlive it: download checkpoints and the ledger before you stop it",
    "do on a CPU what needs no GPU: cleaning, tokenising, evaluation sets",
)


@dataclass(frozen=True)
class Prices:
    """A price table that its user keeps. Nothing in it is live."""

    path: Path
    as_of: str
    currency: str
    electricity: float
    """A kilowatt-hour."""
    person: float
    """One person's hour."""
    rent: dict[str, float]
    """A card's hour, by card."""
    buy: dict[str, float]
    """A card, by card."""

    def of(self, table: str, card: str) -> float:
        """Return the price of a card in `rent` or `buy`. Raises InputError where it is not there."""
        rows: dict[str, float] = getattr(self, table)
        for name, price in rows.items():
            if name.lower() == card.lower():
                return price
        wanted = find(card).name
        for name, price in rows.items():
            with suppress(InputError):  # a card that its user has a price for, and the table of cards lacks
                if find(name).name == wanted:
                    return price
        raise InputError(
            f"no [{table}] price for {card}{did_you_mean(card, rows)}",
            where=str(self.path),
            mend=f"add it there, or give --{'price' if table == 'rent' else 'purchase'}",
        )


def prices(path: Path | None = None, workspace: Path | None = None) -> Prices:
    """Return the table at `path`, else the workspace's templates/prices.toml, else the one that comes along.

    Raises InputError on a file that is no such table.
    """
    own = workspace / "templates" / "prices.toml" if workspace else None
    chosen = path or (own if own and own.is_file() else DATA / "prices.toml")
    try:
        values = tomllib.loads(chosen.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", where=str(chosen), mend="give --prices FILE") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"is no TOML: {error}", where=str(chosen), mend="mend it") from error
    return Prices(
        path=chosen,
        as_of=_day(values, chosen),
        currency=str(_need(values, "currency", chosen)),
        electricity=_price(_need(values, "electricity", chosen), "electricity", chosen),
        person=_price(_need(values, "person", chosen), "person", chosen),
        rent=_rows(values, "rent", chosen),
        buy=_rows(values, "buy", chosen),
    )


def _need(values: dict[str, Any], key: str, path: Path) -> Any:
    if key not in values:
        raise InputError(
            f"lacks {key}", where=str(path), mend="see the comments of the table that comes along"
        )
    return values[key]


def _day(values: dict[str, Any], path: Path) -> str:
    """Return when the prices were looked up: a year, a month or a day, as text or as TOML's own date."""
    text = str(_need(values, "as_of", path))
    found = re.fullmatch(r"\d{4}(?:-(\d\d)(?:-(\d\d))?)?", text)
    if not found or not all(
        1 <= int(one or 1) <= most for one, most in zip(found.groups(), (12, 31), strict=True)
    ):
        raise InputError(
            f"as_of = {text!r} is no day", where=str(path), mend="write it as 2026-01-31 or 2026-01"
        )
    return text


def _price(value: Any, key: str, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise InputError(f"{key} = {value!r} is no price", where=str(path), mend="give a number")
    return float(value)


def _rows(values: dict[str, Any], table: str, path: Path) -> dict[str, float]:
    rows = values.get(table, {})
    if not isinstance(rows, dict):
        raise InputError(f"{table} is no table", where=str(path), mend=f"write [{table}] and a card a line")
    return {name: _price(value, f"{table}.{name}", path) for name, value in rows.items()}


@dataclass(frozen=True)
class Cost:
    """Money in the table's currency; ranges where hours are."""

    machine: tuple[float, float]
    """As planned, without the buffer."""
    machine_buffered: tuple[float, float]
    people: float
    total: tuple[float, float]
    people_share: float
    """Of the middle of the total."""


def cost(
    hours: tuple[float, float], gpus: int, rate: float, people_hours: float, person: float, buffer: float
) -> Cost:
    """Return the whole cost of `hours` on `gpus` cards at `rate` an hour each. Raises InputError on bad numbers."""
    for name, value, least in (
        ("--hours", hours[0], 0.0),
        ("--price", rate, 0.0),
        ("--people-hours", people_hours, 0.0),
        ("--person", person, 0.0),
        ("--buffer", buffer, 1.0),
    ):
        if not least <= value < 1e9:
            raise InputError(f"{value:g} is not a number from {least:g}", where=name)
    machine = (hours[0] * gpus * rate, hours[1] * gpus * rate)
    buffered = (machine[0] * buffer, machine[1] * buffer)
    people = people_hours * person
    total = (buffered[0] + people, buffered[1] + people)
    middle = sum(total) / 2
    return Cost(machine, buffered, people, total, people / middle if middle else 0.0)


@dataclass(frozen=True)
class BreakEven:
    """When a bought card has paid for itself."""

    hours: float | None
    """Of use; None where renting is cheaper than the current alone."""
    months: float | None
    saved_an_hour: float


def break_even(
    purchase: float,
    resale: float,
    rent: float,
    watts: float,
    electricity: float,
    *,
    idle_watts: float,
    hours_a_month: float,
) -> BreakEven:
    """Return the hours of use after which buying is cheaper than renting.

    (purchase - resale) / (rent - current an hour); the hours a month it stands idle cost their current too.
    Raises InputError on numbers that cannot be.
    """
    if not 0 < hours_a_month <= 744:
        raise InputError(f"{hours_a_month:g} is not from 0 to 744", where="--hours-a-month")
    for name, value in (("--purchase", purchase), ("--idle-watts", idle_watts)):
        if not 0 <= value < 1e9:
            raise InputError(f"{value:g} is not a number from 0", where=name)
    if not 0 <= resale <= purchase:
        raise InputError(f"{resale:g} is not from 0 to the purchase price", where="--resale")
    running = watts / 1000 * electricity
    idle = idle_watts / 1000 * electricity * (730 - min(730, hours_a_month)) / hours_a_month
    saved = rent - running - idle
    if saved <= 0:
        return BreakEven(None, None, saved)
    hours = (purchase - resale) / saved
    return BreakEven(hours, hours / hours_a_month, saved)


def answer(
    table: Prices,
    *,
    hours: tuple[float, float],
    gpus: int,
    card: str | None,
    rate: float | None,
    people_hours: float,
    person: float | None,
    buffer: float,
    currency: str | None,
    exchange: float | None,
    purchase: float | None,
    resale: float | None,
    hours_a_month: float,
    idle_watts: float,
) -> dict[str, Any]:
    """Return the document of `plan cost`; prices not given come from the table. Raises InputError."""
    if not 1 <= gpus <= 65536:
        raise InputError(f"{gpus} is not from 1 to 65,536", where="--gpus")
    if rate is None and card is None:
        raise InputError("needs a card or its price", where="--card", mend="name one, or give --price")
    an_hour = table.of("rent", card) if rate is None and card else float(rate or 0.0)
    person_hour = table.person if person is None else person
    factor, shown = _exchange(table, currency, exchange)
    money = cost(hours, gpus, an_hour, people_hours, person_hour, buffer)
    return {
        "currency": shown,
        "as_of": table.as_of,
        "prices": str(table.path),
        "hours": list(hours),
        "gpus": gpus,
        "price": an_hour * factor,
        "machine": [one * factor for one in money.machine],
        "buffer": buffer,
        "machine_buffered": [one * factor for one in money.machine_buffered],
        "people_hours": people_hours,
        "people": money.people * factor,
        "people_share": money.people_share,
        "total": [one * factor for one in money.total],
        "break_even": _bought(table, card, an_hour, factor, purchase, resale, hours_a_month, idle_watts),
        "traps": list(TRAPS),
    }


def _bought(
    table: Prices,
    card: str | None,
    an_hour: float,
    factor: float,
    purchase: float | None,
    resale: float | None,
    hours_a_month: float,
    idle_watts: float,
) -> dict[str, Any] | None:
    """Return when buying the card pays, in the currency that is `factor` of the table's; None where its price or power is not known."""
    watts = price = 0.0
    if card:
        with suppress(InputError):
            watts = find(card).watts
            price = table.of("buy", card) if purchase is None else purchase
    if not watts or not price:
        return None
    sold = price / 2 if resale is None else resale
    even = break_even(
        price, sold, an_hour, watts, table.electricity, idle_watts=idle_watts, hours_a_month=hours_a_month
    )
    return {
        "purchase": price * factor,
        "resale": sold * factor,
        "hours": even.hours,
        "months": even.months,
        "saved_an_hour": even.saved_an_hour * factor,
        "hours_a_month": hours_a_month,
    }


def _exchange(table: Prices, currency: str | None, exchange: float | None) -> tuple[float, str]:
    """Return what to multiply the table's money with, and the currency that it then is."""
    if currency is None or currency == table.currency:
        if exchange is not None:
            raise InputError(
                f"says nothing: the money is shown in {table.currency}, as the table has it",
                where="--exchange",
                mend="give --currency too, or leave it out",
            )
        return 1.0, table.currency
    if exchange is None or not 0 < exchange < 1e9:
        raise InputError(
            f"the table is in {table.currency}",
            where=f"--currency {currency}",
            mend=f"give --exchange, the {currency} for one {table.currency}, or a table in {currency}",
        )
    return exchange, currency
