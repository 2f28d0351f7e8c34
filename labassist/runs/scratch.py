"""A folder to work in that goes away, at the latest when the next labassist process starts."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from labassist.runs import life
from labassist.runs.recover import sweep_scratch
from labassist.workspace import Workspace


@contextlib.contextmanager
def scratch(workspace: Workspace, name: str = "work") -> Iterator[Path]:
    """Make a folder in the workspace's scratch place, hold its lock, and remove it at the end."""
    sweep_scratch(workspace.scratch)
    folder = workspace.scratch / f"{name}-{uuid.uuid4().hex[:12]}"
    folder.mkdir(parents=True, mode=0o700)
    lock = life.take(folder / "lock")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)
