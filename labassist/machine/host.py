"""CPU, memory, load and disk of the host, within the limits of the container this process runs in."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from labassist.machine.cgroup import Container
from labassist.machine.readings import HostSample, Scope


class Host:
    """Samples the host. CPU percentages are means over the time since the sample before."""

    def __init__(self, disk: Path, container: Container | None = None) -> None:
        """Report the free space of the file system of `disk`."""
        self._disk = disk
        self._container = container or Container()
        self._cpus = _allowed_cpus()
        self._machine_memory = psutil.virtual_memory().total
        self._clock = time.monotonic()
        self._busy = self._busy_times()
        quota = self._container.cpu()
        self._used = quota[0] if quota else None

    def sample(self) -> HostSample:
        """Return one reading of the host; never raises for a thing that this host does not have."""
        memory_used, memory_total, memory_scope = self._memory()
        per_core = self._per_core()
        cpu = sum(per_core) / len(per_core) if per_core else None
        cores, cpu_scope = float(len(self._cpus)), "host"
        quota = self._container.cpu()
        now = time.monotonic()
        if quota is not None and quota[1] < cores:
            used, cores = quota
            cpu_scope = "container"
            cpu = None
            if used is not None and self._used is not None and now > self._clock:
                cpu = min(100.0, 100.0 * (used - self._used) / (now - self._clock) / cores)
            self._used = used
        self._clock = now
        disk = self._disk_usage()
        return HostSample(
            cores=cores,
            memory_used=memory_used,
            memory_total=memory_total,
            cpu=cpu,
            per_core=per_core,
            cpu_scope="container" if cpu_scope == "container" else "host",
            memory_scope=memory_scope,
            load=os.getloadavg(),
            disk_free=disk[0] if disk else None,
            disk_total=disk[1] if disk else None,
        )

    def _memory(self) -> tuple[int, int, Scope]:
        limited = self._container.memory()
        if limited is not None and limited[1] < self._machine_memory:
            return *limited, "container"
        memory = psutil.virtual_memory()
        # Some virtual machines are given more memory while they run.
        self._machine_memory = memory.total
        return memory.total - memory.available, memory.total, "host"

    def _busy_times(self) -> list[tuple[float, float]]:
        """Return `(busy, total)` seconds since boot of each allowed CPU."""
        every = psutil.cpu_times(percpu=True)
        # After a CPU went offline the numbers no longer match the list: then show all that are there.
        chosen = [every[cpu] for cpu in self._cpus] if max(self._cpus) < len(every) else every
        times = []
        for cpu in chosen:
            # guest time is already in user, guest_nice in nice
            total = sum(cpu) - getattr(cpu, "guest", 0.0) - getattr(cpu, "guest_nice", 0.0)
            times.append((total - cpu.idle - getattr(cpu, "iowait", 0.0), total))
        return times

    def _per_core(self) -> list[float] | None:
        before, after = self._busy, self._busy_times()
        if len(before) != len(after) or all(b[1] <= a[1] for a, b in zip(before, after, strict=True)):
            return None  # the kernel counts in ticks of 10 ms: too early to tell
        self._busy = after
        return [
            100.0 * min(1.0, max(0.0, (b[0] - a[0]) / (b[1] - a[1]))) if b[1] > a[1] else 0.0
            for a, b in zip(before, after, strict=True)
        ]

    def _disk_usage(self) -> tuple[int, int] | None:
        try:
            usage = psutil.disk_usage(str(self._disk))
        except OSError:
            return None  # the folder is gone or its file system is: there is no free space to report
        return usage.free, usage.total


def _allowed_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
