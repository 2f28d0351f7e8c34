"""A folder to work in that goes away, at the latest when the next labassist process starts."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from labassist.runs import life
from labassist.runs.recover import sweep_scratch
from labassist.workspace import Workspace

_NO_WRITING = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextlib.contextmanager
def scratch(workspace: Workspace, name: str = "work") -> Iterator[Path]:
    """Make a folder in the workspace's scratch place, hold its lock, and remove it at the end.

    Of a workspace that cannot be written, as a backup that is mounted, it lies among the system's temporary files.
    """
    folder = workspace.scratch / f"{name}-{uuid.uuid4().hex[:12]}"
    try:
        sweep_scratch(workspace.scratch)
        folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        if error.errno not in _NO_WRITING:
            raise
        folder = Path(tempfile.mkdtemp(prefix=f"labassist-{name}-"))
    lock = life.take(folder / "lock")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)
