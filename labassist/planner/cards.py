"""Cards by name or size, from the data file."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from labassist.errors import InputError, did_you_mean
from labassist.planner.arch import DATA

USABLE_SHARE = 0.985
"""What a driver leaves to a process of a card whose own figure is not in the table (98.2 to 99.6% in it)."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(mib|gib|mb|gb|g|m)?", re.IGNORECASE)


@dataclass(frozen=True)
class Card:
    """One kind of card; figures a card's table lacks are 0."""

    name: str
    total_mib: float
    usable_mib: float
    tflops: float = 0.0
    bandwidth: float = 0.0
    watts: float = 0.0
    source: str = ""
    bf16: bool = True
    """Whether it computes in bf16 natively; a card that the table lacks is taken to."""

    @property
    def gib(self) -> float:
        """Memory as the driver reports it, in GiB."""
        return self.total_mib / 1024

    @property
    def usable_gib(self) -> float:
        """Memory that a process can have, in GiB."""
        return self.usable_mib / 1024


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads((DATA / "cards.toml").read_text(encoding="utf-8"))


def known() -> tuple[Card, ...]:
    """Return the cards of the table."""
    return tuple(Card(name=name, **values) for name, values in _table().items() if name != "links")


def links() -> dict[str, float]:
    """Return the links of the table: name -> GB/s in one direction."""
    return dict(_table()["links"])


def link(name: str) -> float:
    """Return a link's GB/s, by its name in the table or as a number. Raises InputError."""
    folded = {_fold(one): speed for one, speed in links().items()}
    if _fold(name) in folded:
        return folded[_fold(name)]
    try:
        speed = float(name)
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1e5:
        raise InputError(
            f"unknown link {name!r}{did_you_mean(name, links())}",
            where="--link",
            mend=f"give GB/s in one direction, or one of {', '.join(links())}",
        )
    return speed


def find(text: str) -> Card:
    """Return the card that a name (`4090`, `a100-80gb`) or a size (`24GB`) means.

    A size takes the smallest card of the table that is sold as that size (24GB: a 4090), those with error
    correction aside, which report 6% less and are meant by name; a size that no card has is taken as it is.
    Raises InputError on what is neither.
    """
    wanted = _fold(text)
    cards = known()
    exact = [card for card in cards if _fold(card.name) == wanted]
    part = [card for card in cards if wanted and wanted in _fold(card.name)]
    size = _SIZE.fullmatch(text.strip())
    if exact or (part and not (size and size.group(2))):
        return (exact or sorted(part, key=lambda card: card.total_mib))[0]
    if size is None:
        raise InputError(
            f"unknown card {text!r}{did_you_mean(text, [card.name for card in cards])}",
            where="--card",
            mend="give a size (24GB) or a name (4090, A100 80GB, H200)",
        )
    unit = (size.group(2) or "gb").lower()
    gib = float(size.group(1)) / (1024 if unit.startswith("m") else 1)
    if not 0.5 <= gib <= 4096:
        raise InputError(f"{text!r} is no card's memory", where="--card", mend="give a size in GB, as 24GB")
    sold = [card for card in cards if 0.97 * gib <= card.gib <= 1.001 * gib]
    if sold and unit in ("gb", "g"):
        least = min(sold, key=lambda card: card.usable_mib)
        name = f"{size.group(1)} GB, as the {least.name}"
        return Card(name, least.total_mib, least.usable_mib, source=least.source, bf16=least.bf16)
    return Card(f"{gib:g} GiB", gib * 1024, gib * 1024 * USABLE_SHARE, source="as given")


def of_gpu(name: str) -> Card | None:
    """Return the card of the table that a driver's name (`NVIDIA A100-SXM4-80GB`) means, None where none is."""
    spellings = {_fold(name), re.sub(r"sxm\d|pcie", "", _fold(name))}
    named = [
        card
        for card in known()
        if any(re.search(rf"(?<!\d){_fold(card.name)}(?!\d)", one) for one in spellings)
    ]
    return max(named, key=lambda card: len(card.name), default=None)


def _fold(text: str) -> str:
    """Return a name without what people spell differently."""
    return re.sub(
        r"[^a-z0-9]", "", text.lower().replace("nvidia", "").replace("geforce", "").replace("rtx", "")
    )
