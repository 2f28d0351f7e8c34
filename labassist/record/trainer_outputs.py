"""Where a trainer writes: kept out of the way of the original, of the code in git, and of other runs."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

from labassist.errors import InputError
from labassist.record import protocol
from labassist.record.inspect import manifests_of, workspace_of
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


def _of_others(folder: Path) -> Path | None:
    """Return a checkpoint in a folder that no run of an experiment (`ckpt prove`, `ablate`) wrote last."""
    for path in sorted(folder.glob("checkpoint-*")):
        manifests = manifests_of(path)
        if not manifests or not _experiment(manifests[0][0].parents[1]):
            return path
    return None


def _experiment(run_folder: Path) -> bool:
    """Say whether a run was one of an experiment, or went on from one of these."""
    try:
        order = json.loads((run_folder / "order.json").read_bytes())
    except (OSError, ValueError):
        return False
    origin = (order.get("resume") or {}).get("run")
    return order.get("experiment") is True or bool(origin and _experiment(run_folder.parent / origin))


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
    if order.experiment and (taken := _of_others(folder)):
        raise InputError(
            f"an experiment would write over {taken.name}, which is not of one",
            where=str(folder),
            mend="move the checkpoints there aside, or give the script an output_dir of its own for this",
        )
    inside = folder.is_relative_to(root) and folder != root and folder != Path.cwd().resolve()
    ours = not folder.exists() or all(one.name.startswith("checkpoint-") for one in folder.iterdir())
    if protocol.rank() == 0 and inside and ours and not os.path.lexists(folder / ".gitignore"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("# Made by labassist: what a training writes is no source.\n*\n")


def name_full_disk(trainer: Any) -> None:
    """End a training whose checkpoint finds no room with one line and status 1, in place of a library's traceback."""
    save = trainer._save_checkpoint

    def saved(*args: Any, **more: Any) -> Any:
        try:
            return save(*args, **more)
        except Exception as error:
            if not _no_room(error):
                raise
            folder = Path(trainer.args.output_dir).resolve()
            sys.exit(
                f"labassist: {folder}/checkpoint-{trainer.state.global_step}: this checkpoint cannot be written, the "
                "disk is full; free some space, then `labassist resume` goes on from the last one that is whole"
            )

    trainer._save_checkpoint = saved


def _no_room(error: Exception) -> bool:
    """Say whether it was a full disk or quota: safetensors passes the system's error on as text, torch only where it failed."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return True
    told = str(error)
    texts = [os.strerror(one) for one in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
    return "inline_container.cc" in told or any(text in told for text in texts)
