"""Where a script with the one line stands: its order, its mode, and who seeded the generators when."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

from labassist.errors import InputError
from labassist.record import protocol
from labassist.record.exact_mode import asked
from labassist.record.protocol import Order

_SEEDS_END = 2**32
"""A larger seed of torch's generator is its own random choice: nobody has set one (numpy takes no larger)."""

_taken: list[str] = []


@dataclass
class Start:
    """How this process is recorded. An order without a folder means: not at all."""

    order: Order
    seeds: dict[str, Any] = field(default_factory=dict)
    """`seed`, `by` whom, and whether the model stood before that; kept with the run."""
    alone: bool = False
    """The script enlisted itself: ctrl-c comes to it, not to somebody who follows it."""


def prepare(*, built: bool) -> Start:
    """Read or make this process's order, apply its mode, and seed the generators if nobody has.

    `built` says that the trainer, and so the model, exists already. One trainer a process is recorded.
    """
    protocol.show_one_line_errors()
    if _taken:
        protocol.read_order().warn(
            "one trainer a process is recorded, and this is another: start it by a command of its own, or declare "
            "what it makes with --out"
        )
        return Start(Order(config={}))
    _taken.append("taken")
    import torch

    if os.environ.get(protocol.RUN_DIR):
        order = protocol.read_order()
        return Start(order, _settle(order.mode, order.seed, order.threads, built))
    given = torch.initial_seed()
    seed = asked.get("seed", given if given < _SEEDS_END else protocol.DEFAULT_SEED)
    threads = torch.get_num_threads()
    mode = asked.get("mode", "fast")
    seeds = _settle(mode, seed, threads, built)
    if os.environ.get(protocol.RECORD) == "off":
        return Start(Order(config={}), seeds)
    from labassist.record.trainer_alone import enlist

    enlisted = enlist(mode, seed, threads)
    if isinstance(enlisted, str):
        print(f"labassist: training unrecorded: {enlisted}", file=sys.stderr)
        return Start(Order(config={}), seeds)
    return Start(enlisted, seeds, alone=True)


def _settle(mode: str, seed: int, threads: int, built: bool) -> dict[str, Any]:
    """Apply the mode, seed where nobody did, and say who seeded and what stood before."""
    import torch

    from labassist.record import determinism

    given = torch.initial_seed()
    if asked:
        seeds = {"seed": asked["seed"], "by": "record.exact()", "model_before": False}
        mine = None
    elif given < _SEEDS_END:
        # Seeded by the script or by the trainer's own arguments: the script's numbers stay the script's.
        seeds = {"seed": given, "by": "the trainer" if built else "the script", "model_before": built}
        mine = None
    else:
        seeds = {"seed": seed, "by": "labassist", "model_before": built}
        mine = seed
    try:
        determinism.apply(mode, mine, threads)
    except InputError as error:
        if error.where != "threads":
            raise
        print(f"labassist: {error.what}; the record says how many there are", file=sys.stderr)
    return seeds
