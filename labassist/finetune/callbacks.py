"""Callbacks of a fine-tuning job's trainer: what a crash would cost, and what an adapter was trained on."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from labassist.finetune.lineage import FILE
from labassist.finetune.risk import at_risk
from labassist.record.durable import replace_file

MEASURED = 5
"""Steps that are timed before anything is said; the first is left out, it warms caches up."""


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


class Kept(TrainerCallback):  # type: ignore[misc]
    """Writes the lineage into each checkpoint, before the record seals it: put it before `record.attach`."""

    def __init__(self, lineage: dict[str, Any]) -> None:
        self.lineage = lineage

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Add the file to the checkpoint that was just written."""
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            told = {**self.lineage, "step": state.global_step}
            replace_file(folder / FILE, json.dumps(told, indent=1).encode() + b"\n")
