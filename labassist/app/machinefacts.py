"""A sample of the machine as lines of words, and where each reading comes from. No screen, no files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labassist.app import words
from labassist.app.runfacts import size
from labassist.app.where import Source
from labassist.app.words import Line, Signs

if TYPE_CHECKING:
    from labassist.machine.readings import GpuSample, HostSample, MachineSample
    from labassist.machine.throttle import ThrottleTime

_GIB = 1 << 30
LABEL = 10
"""Cells of a reading's name."""

NVML = {
    "util": "nvmlDeviceGetUtilizationRates.gpu: share of its last period in which any kernel ran",
    "memory_used": "nvmlDeviceGetMemoryInfo_v2.used: without what the driver keeps for itself",
    "power": "nvmlDeviceGetPowerUsage, and the limit in force",
    "temperature": "nvmlDeviceGetTemperature",
    "sm_clock": "nvmlDeviceGetClockInfo, SM",
    "memory_clock": "nvmlDeviceGetClockInfo, memory",
    "throttle": "nvmlDeviceGetCurrentClocksEventReasons, sampled while this screen is open",
    "fan": "nvmlDeviceGetFanSpeed",
    "pcie_gen": "nvmlDeviceGetCurrPcieLinkGeneration; an idle link drops to 1",
    "processes": "nvmlDeviceGetComputeRunningProcesses",
}
"""Reading -> the driver call behind it."""


def gpu_page(gpu: GpuSample, throttled: ThrottleTime | None, marks: Signs, cells: int) -> list[Line]:
    """Return one GPU: a bar each for use and memory, then power, heat, clocks, link and processes."""
    lines: list[Line] = [[(f"GPU {gpu.index}  ", "head"), (gpu.name or "unknown", "strong")]]
    lost = gpu.absent.get("handle")
    if lost:
        return [*lines, [(f"  {marks.alarm} ", "bad"), (lost, "plain")]]
    if gpu.util is not None:
        lines.append(_bar("util", gpu.util / 100, f"{gpu.util}%", marks, cells))
    if gpu.memory_used is not None and gpu.memory_total:
        said = f"{gpu.memory_used / _GIB:.1f} of {gpu.memory_total / _GIB:.1f} GiB"
        lines.append(_bar("memory", gpu.memory_used / gpu.memory_total, said, marks, cells))
    if gpu.power is not None and gpu.power_limit:
        lines.append(
            _bar(
                "power",
                gpu.power / gpu.power_limit,
                f"{gpu.power:.0f} of {gpu.power_limit:.0f} W",
                marks,
                cells,
            )
        )
    heat = [f"{gpu.temperature} C"] if gpu.temperature is not None else []
    heat += [f"fan {gpu.fan}%"] if gpu.fan is not None else []
    lines += _row("heat", "  ".join(heat))
    lines += _row(
        "clocks",
        _of("SM", gpu.sm_clock, gpu.sm_clock_max) + _of("memory", gpu.memory_clock, gpu.memory_clock_max),
    )
    lines += _throttle(gpu, throttled, marks)
    if gpu.pcie_gen is not None:
        link = f"gen {gpu.pcie_gen} of {gpu.pcie_gen_max or '-'}, {gpu.pcie_width or '-'} of {gpu.pcie_width_max or '-'} lanes"
        slow = gpu.slow
        if slow is not None and slow.pcie_rx is not None and slow.pcie_tx is not None:
            link += f", in {size(slow.pcie_rx)}/s, out {size(slow.pcie_tx)}/s"
        lines += _row("PCIe", link)
    for process in gpu.processes or []:
        used = f"{process.memory / _GIB:.1f} GiB" if process.memory is not None else "memory unknown"
        ours = ", ours" if process.own else ""
        lines += _row("process", f"pid {process.pid}  {used}{ours}")
    return lines


def _throttle(gpu: GpuSample, throttled: ThrottleTime | None, marks: Signs) -> list[Line]:
    from labassist.machine import throttle

    if gpu.throttle is None:
        return []
    now = ", ".join(gpu.throttle) or "none"
    bad = throttle.worst(gpu.throttle) != "neutral"
    sign: Line = [(f"{marks.alarm} ", "warn")] if bad else []
    lines: list[Line] = [[("  throttle".ljust(LABEL + 2), "dim"), *sign, (now, "plain")]]
    lines += [
        [(" " * (LABEL + 2), "dim"), (f"{name}: {throttle.meaning(name)}", "dim")] for name in gpu.throttle
    ]
    if throttled is not None and throttled.total > 0:
        lines += _row("", f"{throttled.words()}, over {throttled.total:.0f} s")
    return lines


def host_page(host: HostSample, marks: Signs, cells: int) -> list[Line]:
    """Return the host: CPU, each core, memory, load and disk."""
    lines: list[Line] = [[("Host", "head")]]
    where = " of the container's share" if host.cpu_scope == "container" else ""
    if host.cpu is not None:
        lines.append(
            _bar("CPU", host.cpu / 100, f"{host.cpu:.0f}% of {host.cores:g} cores{where}", marks, cells)
        )
    cores = host.per_core or []
    for start in range(0, len(cores), 4):
        row = cores[start : start + 4]
        said = "  ".join(
            f"{start + at:>3} {words.bar(share / 100, 6, marks)} {share:3.0f}%"
            for at, share in enumerate(row)
        )
        lines += _row("cores" if not start else "", said)
    limit = " (the container's limit)" if host.memory_scope == "container" else ""
    said = f"{host.memory_used / _GIB:.1f} of {host.memory_total / _GIB:.1f} GiB{limit}"
    lines.append(_bar("memory", host.memory_used / host.memory_total, said, marks, cells))
    if host.load is not None:
        one, five, fifteen = host.load
        lines += _row("load", f"{one:.2f} in 1 min, {five:.2f} in 5, {fifteen:.2f} in 15; whole machine")
    if host.disk_free is not None and host.disk_total:
        used = 1 - host.disk_free / host.disk_total
        said = f"{size(host.disk_free)} free of {size(host.disk_total)}"
        lines.append(_bar("disk", used, said, marks, cells))
    return lines


def gpu_sources(sample: MachineSample) -> list[Source]:
    """Return the driver call behind each reading of each GPU, or why there is none."""
    if not sample.gpus:
        return [Source("GPU", "none", sample.no_gpu)]
    found = []
    for gpu in sample.gpus:
        for name, call in NVML.items():
            value = getattr(gpu, name)
            why = gpu.absent.get(name)
            if name == "processes" and value is not None:
                value = len(value)
            shown = "-" if value is None else ", ".join(value) if isinstance(value, list) else f"{value:,}"
            found.append(Source(f"GPU {gpu.index} {name}", shown, f"{call}; absent: {why}" if why else call))
    return found


def host_sources(host: HostSample) -> list[Source]:
    """Return the file behind each reading of the host."""
    boxed = "the tightest control group: "
    cpu = (
        f"{boxed}cpu.stat against cpu.max"
        if host.cpu_scope == "container"
        else "/proc/stat, since the last look"
    )
    memory = (
        f"{boxed}memory.current less inactive_file, memory.max"
        if host.memory_scope == "container"
        else "/proc/meminfo: MemTotal less MemAvailable"
    )
    return [
        Source("CPU", "-" if host.cpu is None else f"{host.cpu:.1f}%", cpu),
        Source("cores", f"{host.cores:g}", "the affinity mask, or the container's quota where that is less"),
        Source("memory used", size(host.memory_used), memory),
        Source("load", str(host.load and host.load[0]), "/proc/loadavg"),
        Source("disk free", size(host.disk_free or 0), "statvfs of the workspace's file system"),
    ]


def _bar(name: str, share: float, said: str, marks: Signs, cells: int) -> Line:
    return [
        (f"  {name.ljust(LABEL)}", "dim"),
        (words.bar(share, cells, marks), "key"),
        (f"  {said}", "plain"),
    ]


def _row(name: str, said: str) -> list[Line]:
    return [[(f"  {name.ljust(LABEL)}", "dim"), (said, "plain")]] if said else []


def _of(name: str, now: int | None, most: int | None) -> str:
    return "" if now is None else f"{name} {now:,}" + (f" of {most:,}" if most else "") + " MHz  "
