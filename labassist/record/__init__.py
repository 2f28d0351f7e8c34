"""What a trainer imports: `from labassist import record`.

    order = record.read_order("labs/01-first-loop/train.toml")
    record.determinism.apply(order.mode, order.seed, order.threads)
    recorder = record.start(total_steps=2000, order=order)
    recorder.record(1, loss=4.17, batch=record.digest([0, 1, 2]))

or, for a script with a trainer of transformers or TRL, one line: `record.attach(trainer)`.

Importing this package loads neither torch nor anything else; each name is fetched when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labassist.record import determinism
    from labassist.record.exact_mode import exact
    from labassist.record.lag import Lagged
    from labassist.record.protocol import Order, read_order
    from labassist.record.recorder import Recorder, digest, start
    from labassist.record.trainer import LedgerCallback, attach

__all__ = [
    "Lagged",
    "LedgerCallback",
    "Order",
    "Recorder",
    "attach",
    "determinism",
    "digest",
    "exact",
    "read_order",
    "start",
]

_HOME = {
    "Lagged": "lag",
    "LedgerCallback": "trainer",
    "Order": "protocol",
    "Recorder": "recorder",
    "attach": "trainer",
    "digest": "recorder",
    "exact": "exact_mode",
    "read_order": "protocol",
    "start": "recorder",
}


def __getattr__(name: str) -> Any:
    if name == "determinism":
        return importlib.import_module("labassist.record.determinism")
    if name not in _HOME:
        raise AttributeError(f"module 'labassist.record' has no attribute {name!r}")
    return getattr(importlib.import_module(f"labassist.record.{_HOME[name]}"), name)
