"""What a crash would cost: the time, and the money, between two checkpoints."""

from __future__ import annotations

import statistics
import time
from typing import Any

from transformers import TrainerCallback

MEASURED = 5
"""Steps that are timed before anything is said; the first is left out, it warms caches up."""


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


class Watch(TrainerCallback):  # type: ignore[misc]
    """Says once, when a few steps have been timed, what is at risk between two checkpoints of a Trainer."""

    def __init__(self, price: float = 0.0) -> None:
        self.price = price
        self.times: list[float] = []

    def on_step_end(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Take the time of a step; the GPU may lag a little behind, which a median of several bears."""
        if len(self.times) > MEASURED:
            return
        self.times.append(time.monotonic())
        if len(self.times) == MEASURED + 1:
            steps = [b - a for a, b in zip(self.times, self.times[1:], strict=False)]
            step = statistics.median(steps)
            every = state.save_steps if args.save_strategy.value == "steps" else state.max_steps
            told = at_risk(state.max_steps, every, step, self.price)
            print(f"labassist: {step:.2g} s a step; {told}", flush=True)
