"""How much memory a resume could use here."""

from __future__ import annotations

Memory = list[tuple[str, int, int]]
"""Name of a memory, its free and its total bytes."""


def memory() -> Memory:
    """Return the host's memory (or the container's share of it) and that of the freest GPU, if there is one."""
    import psutil

    from labassist.machine.cgroup import Container

    host = psutil.virtual_memory()
    free, total = int(host.available), int(host.total)
    limit = Container().memory()
    if limit and limit[1] < total:
        free, total = min(free, limit[1] - limit[0]), limit[1]
    return [("memory", free, total), *_gpus()]


def _gpus() -> Memory:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
        sizes = [pynvml.nvmlDeviceGetMemoryInfo(handle) for handle in handles]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()
    best = max(sizes, key=lambda size: int(size.free), default=None)
    return [("GPU memory", int(best.free), int(best.total))] if best else []
