"""Where a trainer writes: kept out of the way of the original, of the code in git, and of other runs."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import Any

from labassist.record import protocol
from labassist.record.inspect import workspace_of
from labassist.record.protocol import Order

_claimed: list[int] = []
"""Descriptors of the folders that this process saves into: their locks live as long as it does."""


def claim(folder: Path) -> bool:
    """Lock the folder of checkpoints for the life of this process; False where another recorded run holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    except OSError:
        os.close(descriptor)
        return True  # a file system without locks on folders: nobody can tell
    _claimed.append(descriptor)
    return True


def settle(trainer: Any, order: Order) -> None:
    """Keep what the trainer writes out of the way: of the original in a replay, of the code in git."""
    folder, root = Path(trainer.args.output_dir).resolve(), order.root
    if root is None or order.folder is None:
        return
    root = root.resolve()
    if workspace_of(order.folder) != root and not folder.is_relative_to(root):
        trainer.args.output_dir = str(root / "trainer-output")
        print(f"labassist: a replay: output_dir is {trainer.args.output_dir}", file=sys.stderr)
        return
    inside = folder.is_relative_to(root) and folder != root and folder != Path.cwd().resolve()
    ours = not folder.exists() or all(one.name.startswith("checkpoint-") for one in folder.iterdir())
    if protocol.rank() == 0 and inside and ours and not os.path.lexists(folder / ".gitignore"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("# Made by labassist: what a training writes is no source.\n*\n")
