"""The machine in one line of text, for the bottom of a lab step."""

from __future__ import annotations

from labassist.machine import throttle
from labassist.machine.readings import GpuSample, HostSample, MachineSample

_GIB = 1 << 30


def machine_line(sample: MachineSample, width: int, ascii: bool = False) -> str:  # noqa: A002 - the app's own word
    """Return at most `width` cells: each GPU, or the host where there is none; what does not fit is left out.

    An alarm comes before the numbers that matter less than it does. `ascii`: no block characters.
    """
    if not sample.gpus:
        return _fitted([*_host_parts(sample.host, ascii), "no GPU"], width, "  ")
    first, *others = sample.gpus
    parts = _gpu_parts(first)
    parts += [" ".join(_gpu_parts(gpu)[:1]) for gpu in others]
    parts += _gpu_extra(first)
    if sample.host.cpu is not None:
        parts.append(f"CPU {sample.host.cpu:.0f}%")
    return _fitted(parts, width, " ")


def bar(share: float, cells: int, ascii: bool = False) -> str:  # noqa: A002 - the app's own word
    """Return a bar of `cells` cells, `share` (0 to 1) of them full."""
    full = round(min(1.0, max(0.0, share)) * cells)
    on, off = ("#", ".") if ascii else ("▇", "▁")
    return on * full + off * (cells - full)


def _gpu_parts(gpu: GpuSample) -> list[str]:
    util = f" {gpu.util}%" if gpu.util is not None else ""
    parts = [f"GPU{gpu.index}{util}"]
    lost = gpu.absent.get("handle")
    if lost:
        return [f"GPU{gpu.index}", f"({lost})"]
    bad = [name for name in gpu.throttle or [] if throttle.severity(name) != "neutral"]
    if bad:
        parts.append(f"! {', '.join(bad)}")
    if gpu.memory_used is not None and gpu.memory_total is not None:
        parts.append(f"mem {gpu.memory_used / _GIB:.1f}/{gpu.memory_total / _GIB:.1f} GiB")
    if gpu.power is not None:
        limit = f"/{gpu.power_limit:.0f}" if gpu.power_limit is not None else ""
        parts.append(f"{gpu.power:.0f}{limit} W")
    if gpu.temperature is not None:
        parts.append(f"{gpu.temperature} C")
    return parts


def _gpu_extra(gpu: GpuSample) -> list[str]:
    if gpu.sm_clock is None:
        return []
    most = f"/{gpu.sm_clock_max:,}" if gpu.sm_clock_max is not None else ""
    return [f"{gpu.sm_clock:,}{most} MHz"]


def _host_parts(host: HostSample, ascii: bool) -> list[str]:  # noqa: A002
    cpu = f"CPU {bar(host.cpu / 100, 6, ascii)} {host.cpu:.0f}%" if host.cpu is not None else "CPU -"
    total = host.memory_total / _GIB
    whole = f"{total:.0f}" if total >= 10 else f"{total:.1f}"
    return [cpu, f"mem {host.memory_used / _GIB:.1f}/{whole} GiB"]


def _fitted(parts: list[str], width: int, gap: str) -> str:
    line = parts[0][:width]
    for part in parts[1:]:
        if len(line) + len(gap) + len(part) > width:
            break
        line += gap + part
    return line
