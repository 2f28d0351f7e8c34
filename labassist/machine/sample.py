"""One sampler for the whole machine: cheap enough to be asked every second beside a training run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from labassist.machine.host import Host
from labassist.machine.nvml import Nvml
from labassist.machine.readings import GpuSlow, MachineSample


class Sampler:
    """Takes `MachineSample`s; a context manager. Not thread-safe: use one a thread.

    NVML is loaded by the first `sample()`. GPU readings that cost milliseconds are taken once in `slow_seconds`,
    one GPU a call so that eight GPUs do not stall one sample, and are carried in the samples between.
    """

    def __init__(
        self,
        disk: Path | None = None,
        *,
        own: Iterable[int] = (),
        slow_seconds: float | None = 10.0,
    ) -> None:
        """Watch the free space of `disk` (default: the current folder).

        `own` are pids whose GPU processes, with their descendants, are marked as ours; `own` may be set again
        later. `slow_seconds=None` leaves the slow readings out.
        """
        self.own = frozenset(own)
        self._host = Host(disk or Path.cwd())
        self._slow_seconds = slow_seconds
        self._slow: dict[int, GpuSlow] = {}
        self._nvml: Nvml | None = None

    def sample(self) -> MachineSample:
        """Return what the machine is doing now; what cannot be read is absent, never an error."""
        if self._nvml is None:
            self._nvml = Nvml()
        now = time.time()
        gpus = [gpu.read(self.own) for gpu in self._nvml.gpus]
        self._read_one_slow(self._nvml, now)
        for gpu in gpus:
            gpu.slow = self._slow.get(gpu.index)
        return MachineSample(time=now, host=self._host.sample(), gpus=gpus, no_gpu=self._nvml.reason)

    def close(self) -> None:
        """Let the driver go. Another `sample()` starts anew."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def __enter__(self) -> Sampler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_one_slow(self, nvml: Nvml, now: float) -> None:
        if self._slow_seconds is None or not nvml.gpus:
            return
        # The GPU that waited longest, if it waited long enough.
        gpu = min(nvml.gpus, key=lambda gpu: self._slow[gpu.index].time if gpu.index in self._slow else 0.0)
        last = self._slow.get(gpu.index)
        if last is None or now - last.time >= self._slow_seconds:
            self._slow[gpu.index] = gpu.read_slow()
