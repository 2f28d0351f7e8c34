"""What a crash would cost: the time, and the money, between two checkpoints."""

from __future__ import annotations


def minutes(seconds: float) -> str:
    """Return a time as a person says it."""
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.1f} s"


def at_risk(steps: int, every: int, seconds: float, price: float = 0.0) -> str:
    """Return what a crash can cost where a step takes `seconds`; `price` is an hour's, 0 where it is not known."""
    never = every >= steps
    lost = min(every, steps) * seconds
    money = f" ({lost / 3600 * price:.2f} at {price:g} an hour)" if price else ""
    if never:
        return (
            f"no checkpoint falls before the last of the {steps} steps: a crash costs up to {minutes(lost)}{money}, "
            f"the whole run; take --set every.checkpoint={max(1, steps // 4)}"
        )
    return f"a checkpoint every {every} steps: a crash costs up to {minutes(lost)}{money}"
