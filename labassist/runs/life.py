"""Who lives: the locks that say so, and the signals that end it.

A run is alive exactly while somebody holds the flock on its `alive` file. The kernel frees that lock on
any kind of death and it works across pid namespaces; a pid can be reused, so pids are for signals only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Literal

from labassist.errors import LedgerError
from labassist.record.protocol import RUN_DIR

STOP = "stop"
"""A file in the run folder: somebody asked the run for a checkpoint and its end. It may say why."""

_LAST_WRITE_S = 5.0
"""Seconds that a killed process gets to be gone: the kernel may still be writing for it."""

Life = Literal["alive", "over", "unseen"]


def take(path: Path, *, patience: float = 0.0) -> int | None:
    """Take the exclusive lock on `path` and return its descriptor, or None where another holds it.

    Probes by `held` take the lock for microseconds, hence the `patience` in seconds. The descriptor is
    not inheritable until someone passes it on. Raises LedgerError where the file system has no locks.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            time.sleep(0.01)
        except OSError as error:
            os.close(fd)
            raise _no_locks(path, error) from error
        else:
            return fd


def held(path: Path) -> bool:
    """Say whether somebody holds the lock on `path`. False where the file is missing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise _no_locks(path, error) from error
    finally:
        os.close(fd)
    return False


def _no_locks(path: Path, error: OSError) -> LedgerError:
    if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
        return LedgerError(
            "this file system has no file locks, so two processes could corrupt the ledger",
            where=str(path),
            mend="put the workspace on a local disk",
        )
    return LedgerError(f"cannot lock: {error.strerror}", where=str(path))


def life(folder: Path, document: dict[str, Any], machine_id: str) -> Life:
    """Say what is known here about a run that the ledger calls running.

    `folder` is its run folder. A ledger that was copied, to another machine or beside itself, must not
    judge: its `alive` file has another inode, or the run was recorded on another machine.
    """
    machine = document["machine"]
    try:
        inode = (folder / "alive").stat().st_ino
    except FileNotFoundError:
        return "unseen"
    if machine["id"] != machine_id or machine.get("inode", inode) != inode:
        return "unseen"
    return "alive" if held(folder / "alive") else "over"


def last_sign(folder: Path) -> float:
    """Return when a run last gave a sign of life, in seconds since the epoch; 0 where its folder is gone."""
    files = [folder / name for name in ("end.json", "metrics-rank0.jsonl", "order.json")]
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def pids(folder: Path) -> dict[str, int]:
    """Return the pids the shim wrote: `shim` and `trainer`; empty before it did."""
    try:
        content: dict[str, int] = json.loads((folder / "alive").read_text() or "{}")
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return content


def ask_to_stop(folder: Path, why: str = "") -> bool:
    """Ask the run in `folder` for a checkpoint and its end. False when it was not alive.

    The request is a file, so it holds however young the run is and whoever supervises it later: the
    supervisor looks for it and keeps the grace time. `why` is kept where nobody asked before. Raises LedgerError when it cannot be written.
    """
    if not held(folder / "alive"):
        return False
    try:
        with open(folder / STOP, "a") as file:
            if why and not file.tell():
                file.write(why)
    except OSError as error:
        raise LedgerError(
            f"cannot ask the run to stop: {error.strerror}", where=str(folder / STOP)
        ) from error
    return True


def began_elsewhere(folder: Path) -> str:
    """Return where the workspace of a run in `folder` was when it began, empty where it is still there.

    Its processes know that path only. A container may also have another name for the same folder.
    """
    try:
        order = json.loads((folder / "order.json").read_bytes())
        known = Path(order["env"][RUN_DIR])
        return "" if known.exists() and known.samefile(folder) else str(known.parents[2])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return ""


def stop_asked(folder: Path) -> bool:
    """Say whether somebody asked the run to stop."""
    return (folder / STOP).exists()


def stop_reason(folder: Path) -> str:
    """Return why the run was asked to stop, in a few words."""
    try:
        return (folder / STOP).read_text() or "asked to stop"
    except OSError:
        return "asked to stop"


def kill(folder: Path) -> None:
    """Kill the trainer of the run in `folder`, if it is alive, with its process group where it leads one.

    The ranks of a launcher such as torchrun go first: each has a session of its own, and would live on.
    """
    trainer = pids(folder).get("trainer")
    if trainer and held(folder / "alive"):
        for rank in _ranks(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            # A script that enlisted itself may stand in a shell's group: that is not ours to kill.
            leads = os.getpgid(trainer) == trainer
            (os.killpg if leads else os.kill)(trainer, signal.SIGKILL)


def end_ranks(folder: Path) -> int:
    """Kill what still records of a run whose command was killed, and return how many processes that were.

    Ranks of a launcher and a script's child live on, out of reach of any stop, and write into a run that is closed.
    """
    left = _ranks(folder)
    for rank in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
    deadline = time.monotonic() + _LAST_WRITE_S
    while _ranks(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(left)


def vanish(folder: Path) -> None:
    """Kill whatever runs or watches the run in `folder`, as its machine does by going away."""
    shim = pids(folder).get("shim")
    watchers = [shim]
    with contextlib.suppress(OSError, ValueError):
        watchers.insert(0, int((folder / "supervised").read_text()))
    if held(folder / "supervised"):
        if shim:
            with contextlib.suppress(ProcessLookupError):
                os.kill(shim, signal.SIGSTOP)  # it would have the run adopted
        for pid in watchers:
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)
    kill(folder)


def _ranks(folder: Path) -> list[int]:
    """Return the pids that the ranks of a run gave, of those that are still processes of this run."""
    found = []
    for events in folder.glob("events-rank*.jsonl"):
        for line in events.read_bytes().splitlines():
            with contextlib.suppress(OSError, ValueError, KeyError):
                pid = int(json.loads(line)["pid"])
                # A pid can be another process by now: one of this run has the run's folder in its environment.
                if f"LABASSIST_RUN_DIR={folder}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
    return found
