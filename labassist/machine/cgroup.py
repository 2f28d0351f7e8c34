"""What the container allows: memory limit and CPU quota from control groups, version 2 and version 1.

A limit holds for a group and all below it, so each group from our own up to the mount's root is read and the
tightest limit counts. Sources: the kernel's admin-guide/cgroup-v2 and cgroup-v1/memory, proc_pid_mountinfo(5).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# Version 1 writes "no limit" as the largest page-aligned number.
_NO_LIMIT = 1 << 60


class Mount(NamedTuple):
    """A mounted hierarchy, and the groups in it that bind this process: its own first, the mount's root last."""

    version: int
    controllers: frozenset[str]
    levels: list[Path]


class Container:
    """The control groups of this process. Finds them once; reads their files at each call."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Look below `root` (a real machine's is `/`). No control groups at all is no error: nothing is limited."""
        self._mounts = _find_mounts(root)

    def memory(self) -> tuple[int, int] | None:
        """Return `(used, limit)` in bytes of the group with the tightest limit, or None where nothing limits.

        Used is the group's charge less its inactive file cache, which the kernel drops before it kills.
        """
        tightest: tuple[int, Path, int] | None = None
        for mount in self._mounts:
            name = "memory.max" if mount.version == 2 else "memory.limit_in_bytes"
            for level in mount.levels if mount.version == 2 or "memory" in mount.controllers else []:
                limit = _number(level / name)
                if limit is not None and limit < _NO_LIMIT and (tightest is None or limit < tightest[0]):
                    tightest = (limit, level, mount.version)
        if tightest is None:
            return None
        limit, level, version = tightest
        charge = _number(level / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
        if charge is None:
            return None
        cache = _field(level / "memory.stat", "inactive_file" if version == 2 else "total_inactive_file") or 0
        return max(charge - cache, 0), limit

    def cpu(self) -> tuple[float | None, float] | None:
        """Return `(CPU seconds used so far, quota in cores)` of the group with the tightest quota, or None.

        The seconds are None where the kernel does not count them; 1.5 cores: one and a half.
        """
        tightest: tuple[float, Path, Mount] | None = None
        for mount in self._mounts:
            for level in mount.levels:
                quota = _quota(level, mount.version)
                if quota is not None and (tightest is None or quota < tightest[0]):
                    tightest = (quota, level, mount)
        if tightest is None:
            return None
        quota, level, mount = tightest
        if mount.version == 2:
            used = _field(level / "cpu.stat", "usage_usec")
            return (None if used is None else used / 1e6), quota
        below = level.relative_to(mount.levels[-1])
        for other in self._mounts:  # cpuacct may be a hierarchy of its own
            if "cpuacct" in other.controllers:
                used = _number(other.levels[-1] / below / "cpuacct.usage")
                return (None if used is None else used / 1e9), quota
        return None, quota


def _find_mounts(root: Path) -> list[Mount]:
    groups: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            groups[name] = path
    mounts = []
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        inside, point = before.split(" ")[3:5]
        controllers = frozenset({""} if kind == "cgroup2" else set(options.split(",")) & groups.keys())
        own = next((groups[name] for name in controllers if name in groups), None)
        if own is not None:
            top = root / point.lstrip("/")
            mounts.append(Mount(2 if kind == "cgroup2" else 1, controllers, _levels(top, inside, own)))
    return mounts


def _levels(top: Path, inside: str, own: str) -> list[Path]:
    # `inside` is the group that the mount shows as its root; a group outside it cannot be seen from here.
    inside = inside.rstrip("/")
    below = own[len(inside) :].strip("/") if own == inside or own.startswith(f"{inside}/") else ""
    level = top / below
    if ".." in level.parts or not level.is_dir():
        level = top
    levels = [level]
    while level != top:
        level = level.parent
        levels.append(level)
    return levels


def _quota(level: Path, version: int) -> float | None:
    if version == 2:
        quota, _, period = _text(level / "cpu.max").strip().partition(" ")
    else:
        quota = _text(level / "cpu.cfs_quota_us").strip()
        period = _text(level / "cpu.cfs_period_us").strip()
    if not quota.isdigit() or not period.isdigit() or not int(period):
        return None  # "max", "-1" or no such file
    return int(quota) / int(period)


def _text(path: Path) -> str:
    # A file that this kernel, version or sandbox lacks says: no such limit here.
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _field(path: Path, name: str) -> int | None:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None
