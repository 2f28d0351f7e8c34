"""Energy of a run, and whether a power supply carries its cards."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from labassist.errors import InputError

HOST_WATTS = 150.0
"""A desktop's board, processor, memory, disks and fans under a loader's load."""

SUPPLY_SHARE = 0.8
"""Share of a power supply's rating, in watts and in amperes at 12 V, that a load of hours should not pass."""

EXCURSION = 1.5
"""What a card draws for milliseconds over its limit; supplies after ATX 3.0 carry up to 2 for 100 microseconds
(Intel's design guide), older ones may cut off."""

AUXILIARY_VOLTS = 12.0


@dataclass(frozen=True)
class Power:
    """Watts, amperes, kilowatt-hours."""

    fits: bool | None
    """None where no supply was named."""
    peak_w: float
    excursion_w: float
    supply_w: float
    load: float
    """Peak over the supply's rating, 0 without one."""
    amps_12v: float
    energy_kwh: float
    warnings: list[str] = field(default_factory=list)


def power(
    watts: float,
    gpus: int,
    *,
    hours: float = 0.0,
    average_watts: float = 0.0,
    host_watts: float = HOST_WATTS,
    supply_watts: float = 0.0,
    rail_amps: float = 0.0,
) -> Power:
    """Return what `gpus` cards of `watts` each draw at their peak, and over `hours` at `average_watts` a card.

    The 12 V current is all of the cards' and the host's: what a single-rail supply's 12 V rating must carry.
    Raises InputError on numbers that cannot be.
    """
    for name, value, low, high in (
        ("--watts", watts, 1.0, 5000.0),
        ("--gpus", float(gpus), 1.0, 1024.0),
        ("--hours", hours, 0.0, 1e6),
        ("--average-watts", average_watts, 0.0, 5000.0),
        ("--host-watts", host_watts, 0.0, 20000.0),
        ("--psu", supply_watts, 0.0, 100000.0),
        ("--rail-amps", rail_amps, 0.0, 10000.0),
    ):
        if not low <= value <= high:
            raise InputError(f"{value:g} is not from {low:g} to {high:g}", where=name)
    peak = watts * gpus + host_watts
    burst = watts * EXCURSION * gpus + host_watts
    amps = peak / AUXILIARY_VOLTS
    warnings = []
    fits: bool | None = None
    if supply_watts:
        fits = peak <= SUPPLY_SHARE * supply_watts
        if not fits:
            warnings.append(
                f"{peak:.0f} W is over {SUPPLY_SHARE:.0%} of {supply_watts:.0f} W: take "
                f"{math.ceil(peak / SUPPLY_SHARE)} W or more, or lower the cards' limit (nvidia-smi -pl)"
            )
        elif burst > supply_watts:
            warnings.append(
                f"excursions of milliseconds may reach {burst:.0f} W: a supply older than ATX 3.0 may cut off"
            )
    if rail_amps:
        carried = amps <= SUPPLY_SHARE * rail_amps
        fits = carried and fits is not False
        if not carried:
            warnings.append(
                f"{amps:.0f} A at 12 V is over {SUPPLY_SHARE:.0%} of the supply's {rail_amps:.0f} A: take one of "
                f"{math.ceil(amps / SUPPLY_SHARE)} A or more"
            )
    if gpus > 1:
        warnings.append(
            "an inner card breathes what the outer ones blow: watch its temperature and throttling "
            "(nvidia-smi -q -d TEMPERATURE,PERFORMANCE -l 5), leave a slot free, or limit its power"
        )
    energy = ((average_watts or watts) * gpus + host_watts) * hours / 1000
    load = peak / supply_watts if supply_watts else 0.0
    return Power(fits, peak, burst, supply_watts, load, amps, energy, warnings)
