"""Where a bundle goes before a box is given back: is there a place for it, and does that place outlive the box.

Everything is asked before anything is stopped or written, so that a wrong word ends no training.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from labassist.errors import InputError, LedgerError
from labassist.ledger.environment import machine
from labassist.machine.mounts import Mount, mount_of
from labassist.runs.remote import Remote

_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""One id a running kernel: every container on a machine has that of the machine."""
_MEND = "name a folder that exists, or a new one in a folder that exists"
_ASK = """
[ -d {path} ] || mkdir {path} || exit 1
cd {path} || exit 1
one=$(mktemp ./.labassist-XXXXXX) && rm "$one" || exit 1
printf 'place %s\\n' "$(pwd -P)"
printf 'boot %s\\n' "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
printf 'id %s\\n' "$(cat /etc/machine-id 2>/dev/null)"
printf 'free %s\\n' "$(df -Pk . | tail -n 1)"
for one in *.tar *.tar.part; do [ ! -f "$one" ] || printf 'file %s %s\\n' "$(stat -c %s "$one")" "$one"; done
printf 'mounts\\n'; cat /proc/self/mountinfo 2>/dev/null || true
"""


@dataclass
class Destination:
    """A folder that a bundle can be put into."""

    free: int
    """Bytes that may still be written there."""
    unsafe: str = ""
    """Why a copy there may not outlive this box."""
    unknown: str = ""
    """What could not be found out about it."""
    files: dict[str, int] = field(default_factory=dict)
    """Bundles and parts of bundles that lie there, with their sizes."""


def look(workspace: Path, target: Remote | Path) -> Destination:
    """Look at the folder that a bundle for `target` goes to; its last part is made where it is missing.

    Raises InputError where there is no such place or it cannot be written, LedgerError where the host does not answer.
    """
    bundle = (target.path if isinstance(target, Remote) else target.name).endswith(".tar")
    if isinstance(target, Remote):
        return _there(Remote(target.host, str(PurePosixPath(target.path).parent)) if bundle else target)
    return _here(workspace, target.parent if bundle else target)


def _here(workspace: Path, folder: Path) -> Destination:
    try:
        if not folder.is_dir():
            folder.mkdir()
        tempfile.TemporaryFile(dir=folder).close()
        files = {
            path.name: path.stat().st_size for path in [*folder.glob("*.tar"), *folder.glob("*.tar.part")]
        }
        same = folder.stat().st_dev == workspace.stat().st_dev
    except OSError as error:
        raise InputError(
            f"the bundle cannot be put there: {error.strerror}; nothing was stopped",
            where=str(folder),
            mend=_MEND,
        ) from error
    found = Destination(shutil.disk_usage(folder).free, files=files)
    mount = mount_of(folder)
    if same:
        found.unsafe = "the copy lies on the disk of this workspace and goes away with it"
    elif mount is None:
        found.unsafe = "it is not known what disk the copy lies on, and whether that outlives this machine"
    elif mount.dies:
        found.unsafe = f"{folder} {mount.dies}"
    elif not mount.remote and not _on_usb(folder):
        found.unsafe = "the copy lies on another disk of this same machine: gone with it if it is rented"
    return found


def _on_usb(folder: Path) -> bool:
    """Say whether the disk of a folder hangs on USB, so that a person can carry it away."""
    device = folder.stat().st_dev
    return "/usb" in os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")


def _there(folder: Remote) -> Destination:
    try:
        told = folder.run(_ASK.format(path=folder.quoted)).decode("utf-8", "replace")
    except LedgerError as error:
        raise LedgerError(
            f"{error.what}; nothing was stopped", where=str(folder), mend=error.mend or _MEND
        ) from error
    facts, whole, mounts = told.partition("mounts\n")
    if not whole:
        raise LedgerError("its answer was cut; nothing was stopped", where=str(folder), mend="run it again")
    words = [line.partition(" ") for line in facts.splitlines()]
    said = {name: value for name, _, value in words if name != "file"}
    free = re.search(r"(\d+)\s+\d+%", said["free"])
    found = Destination(int(free[1]) * 1024 if free else 2**62)
    for name, _, value in words:
        if name == "file":
            size, _, file = value.partition(" ")
            found.files[file] = int(size)
    mount: Mount | None = mount_of(Path(said["place"]), mounts)
    if _same_machine(said["boot"], said["id"]):
        found.unsafe = f"{folder.host} is this same machine: the copy is gone with it if it is rented"
    elif mount is not None and mount.dies:
        found.unsafe = f"{folder} {mount.dies}"
    elif mount is None:
        found.unknown = f"what kind of disk {folder} is on is not known"
    return found


def _same_machine(boot: str, machine_id: str) -> bool:
    """Compare another host's ids with ours: of the running kernel, else of the installed system."""
    try:
        ours = _BOOT.read_text().strip()
    except OSError:
        ours = ""
    if ours and boot:
        return ours == boot
    hashed = hashlib.sha256(f"labassist {machine_id}".encode()).hexdigest()[:32]
    return bool(machine_id) and hashed == machine().id
