"""What the supervisor watches beside the trainer: the run's limits in hours and money, and GPUs that stand idle."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from labassist.ledger.store import Ledger
from labassist.machine.readings import GpuSample
from labassist.machine.sample import Sampler
from labassist.runs import life
from labassist.runs.terms import Terms

IDLE_BELOW = 5
"""Percent of the time with any kernel."""
IDLE_AFTER_S = 180.0
LOOK_EVERY_S = 5.0
_MOST_NOTICES = 8


class Meter:
    """Stops one run when its limit is reached, and notes idle GPUs with it."""

    def __init__(self, ledger: Ledger, run_id: str, order: Mapping[str, Any]) -> None:
        self._ledger = ledger
        self._run_id = run_id
        self._folder = ledger.run_folder(run_id)
        terms = Terms.of(order)
        self._limit, self._why = terms.limit()
        self._began = (self._folder / "order.json").stat().st_mtime
        self._idle = Idle(paid=bool(terms.price), visible=_visible(order))
        self._sampler: Sampler | None = Sampler(slow_seconds=None)
        self._looked = time.monotonic()

    def poll(self) -> None:
        """Look at the clock, and now and then at the GPUs. Raises LedgerError where nothing can be written."""
        if time.time() - self._began >= self._limit and not life.stop_asked(self._folder):
            life.ask_to_stop(self._folder, self._why)
        if self._sampler is None or time.monotonic() - self._looked < LOOK_EVERY_S:
            return
        self._looked = time.monotonic()
        self._sampler.own = frozenset(life.pids(self._folder).values())
        sample = self._sampler.sample()
        if not sample.gpus:
            self.close()
            return
        for notice in self._idle.feed(sample.gpus, self._looked):
            self._note(notice)

    def close(self) -> None:
        """Let the driver go."""
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def _note(self, notice: str) -> None:
        """Say it in the run's log and in its record, which the app shows."""
        fd = os.open(self._folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, f"labassist: {notice}\n".encode())
        finally:
            os.close(fd)

        def change(run: dict[str, Any]) -> dict[str, Any]:
            return {**run, "idle": [*run.get("idle", []), notice][-_MOST_NOTICES:]}

        self._ledger.change("note", self._run_id, change)


class Idle:
    """Tells from samples which of a run's GPUs has done nothing for minutes; once for each such time."""

    def __init__(self, *, paid: bool, visible: frozenset[str] | None) -> None:
        """Watch the GPUs in `visible` (index or UUID; None: all): where they are paid for each, else those in use."""
        self._paid = paid
        self._visible = visible
        self._since: dict[int, float] = {}
        self._said: set[int] = set()

    def feed(self, gpus: Iterable[GpuSample], now: float) -> list[str]:
        """Take one sample at `now`, in seconds of any clock; return what there is to say."""
        notices = []
        for gpu in gpus:
            if gpu.util is None or not self._watched(gpu):
                continue
            if gpu.util >= IDLE_BELOW:
                self._since.pop(gpu.index, None)
                self._said.discard(gpu.index)
                continue
            began = self._since.setdefault(gpu.index, now)
            if now - began >= IDLE_AFTER_S and gpu.index not in self._said:
                self._said.add(gpu.index)
                notices.append(
                    f"GPU {gpu.index} was under {IDLE_BELOW}% for {(now - began) / 60:.0f} minutes"
                )
        return notices

    def _watched(self, gpu: GpuSample) -> bool:
        if self._visible is not None and not {str(gpu.index), gpu.uuid} & self._visible:
            return False
        return self._paid or any(process.own is not False for process in gpu.processes or [])


def _visible(order: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves to the trainer; None: all of them."""
    name = "CUDA_VISIBLE_DEVICES"
    wanted = order["env"].get(name, os.environ.get(name))
    return None if wanted is None else frozenset(part.strip() for part in wanted.split(","))
