"""A script that was started by hand inside a workspace makes itself a recorded run.

It makes the run's folder, holds the lock that says it lives, and has `labassist.runs.enlist` capture the
code, journal the start and leave a supervisor behind. Its end marker it writes itself.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from labassist import own
from labassist.errors import LedgerError
from labassist.record import protocol
from labassist.record.protocol import Order

_held: list[int] = []
"""The descriptor of the lock on `alive`, for as long as this process lives."""


def enlist(mode: str, seed: int, threads: int) -> Order | str:
    """Make this process a recorded run of the workspace around the current folder, and return its order.

    Returns in words why not where there is no workspace, its ledger cannot be written, or nothing could be
    started again. Raises LedgerError with the refusal where the workspace cannot record it.
    """
    workspace = _workspace()
    if workspace is None:
        return "no workspace is around the current folder"
    if protocol.world_size() > 1:
        return "several processes are one run only under `labassist run -- torchrun …`"
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules or sys.argv[0] in ("", "-"):
        return "there is no script that could be started again"
    run = time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3)
    folder = workspace / "ledger" / "runs" / run
    try:
        folder.mkdir(parents=True, mode=0o700)
        _hold(folder / "alive")
    except OSError as error:
        return f"the ledger cannot be written: {folder}: {error.strerror}"
    told = {
        "argv": ["python", *sys.orig_argv[1:]],
        "cwd": os.getcwd(),
        "mode": mode,
        "seed": seed,
        "threads": threads,
    }
    done = subprocess.run(
        own.start("labassist.runs.enlist", str(workspace), run),
        input=json.dumps(told),
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        os.close(_held.pop())
        if not (folder / "positions.jsonl").exists():
            shutil.rmtree(folder, ignore_errors=True)
        said = own.last_line(done.stderr) or f"status {done.returncode}"
        raise LedgerError(
            f"this script cannot be recorded: {said}",
            mend=f"mend that, or set {protocol.RECORD}=off to train unrecorded",
        )
    os.environ[protocol.RUN_DIR] = str(folder)
    _End(folder).listen()
    print(f"labassist: recorded as run {run}", file=sys.stderr)
    return protocol.read_order()


def _workspace() -> Path | None:
    here = Path.cwd().resolve()
    named = os.environ.get("LABASSIST_WORKSPACE")
    for folder in [Path(named).resolve()] if named else [here, *here.parents]:
        if (folder / "labs").is_dir() and (folder / "ledger").is_dir() and here.is_relative_to(folder):
            return folder
    return None


def _hold(path: Path) -> None:
    """Take the lock that says that this run lives, and write who to signal."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.pwrite(descriptor, json.dumps({"shim": os.getpid(), "trainer": os.getpid()}).encode(), 0)
    _held.append(descriptor)


class _End:
    """Writes `end.json` when the interpreter ends. A kill leaves none, and the run is then called lost.

    Python tells nobody with which status it ends, but the C library does: `exit-status` gets it as one byte.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.status = 0
        self.pid = os.getpid()
        self._hook = sys.excepthook

    def listen(self) -> None:
        """Be called at the end of this process."""
        sys.excepthook = self._failed
        atexit.register(self._write)
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "on_exit"):
            return  # not glibc: only an exception is seen
        libc.fopen.restype = ctypes.c_void_p
        stream = libc.fopen(os.fsencode(self.folder / "exit-status"), b"wb")
        if stream:
            # on_exit calls its function with the status and its second argument: fputc(status, stream).
            libc.on_exit(libc.fputc, ctypes.c_void_p(stream))

    def _failed(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.status = 130 if issubclass(kind, KeyboardInterrupt) else 1
        self._hook(kind, error, trace)

    def _write(self) -> None:
        if os.getpid() != self.pid:
            return  # a forked child
        path = self.folder / "end.json"
        partial = path.with_suffix(".tmp")
        with partial.open("w") as file:
            json.dump({"exit": self.status, "signal": None, "time": protocol.utc_now()}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
