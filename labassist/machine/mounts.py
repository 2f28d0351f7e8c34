"""What kind of disk a folder lies on, and whether it outlives a rented machine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
LAYERED = ("overlay", "overlayfs", "aufs", "fuse-overlayfs")
"""A container's own root: it goes when the container is removed."""
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "beegfs", "glusterfs")


@dataclass(frozen=True)
class Mount:
    """One mounted file system."""

    point: Path
    kind: str
    """As the kernel calls it: ext4, overlay, tmpfs, nfs4, fuse.sshfs …"""
    source: str

    @property
    def dies(self) -> str:
        """Why what lies here does not outlive the machine, in words; empty where nothing says so."""
        if self.kind in IN_MEMORY:
            return f"is {self.kind}, which is memory: a reboot empties it"
        if self.kind in LAYERED:
            return f"is the container's own {self.kind}: it goes with the container, that is with the rental"
        return ""

    @property
    def remote(self) -> bool:
        """Whether another machine keeps it."""
        return self.kind in NETWORK or self.kind.startswith("fuse.")


def mount_of(folder: Path, table: str | None = None) -> Mount | None:
    """Return the mount that `folder` lies on, None where the kernel does not tell (not Linux).

    `table` is the text of /proc/self/mountinfo (proc_pid_mountinfo(5)), of another machine perhaps, and `folder`
    then has no links in it. Of two mounts on one point the later hides the earlier.
    """
    place = folder
    if table is None:
        try:
            table = MOUNTS.read_text()
        except OSError:
            return None
        place = Path(os.path.realpath(folder))
    best: Mount | None = None
    for line in table.splitlines():
        fields, dash, rest = line.partition(" - ")
        words, tail = fields.split(), rest.split()
        if not dash or len(words) < 5 or len(tail) < 2:
            continue
        point = Path(_plain(words[4]))
        if place.is_relative_to(point) and (best is None or len(point.parts) >= len(best.point.parts)):
            best = Mount(point, tail[0], _plain(tail[1]))
    return best


def _plain(word: str) -> str:
    r"""Return a word without the kernel's escapes: a space is `\040` there."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)
