"""Writes that are on the disk when they return. All raise OSError."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in one piece: after a crash it is there whole, as before, or not at all."""
    partial = path.with_name(path.name + ".tmp")
    write_file(partial, data)
    partial.replace(path)
    sync_folder(path.parent)


def hand_out(path: Path, text: str) -> None:
    """Write a text where a person asked for it: whole, or what was there stays. A device or a pipe is written to."""
    if path.exists() and (not path.is_file() or path.is_relative_to("/dev")):
        path.write_text(text, encoding="utf-8")
        return
    place = path.resolve()
    partial = place.with_name(place.name + ".part")
    try:
        write_file(partial, text.encode())
        partial.replace(place)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def sync_file(path: Path) -> None:
    """Wait until what another library wrote into a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make what was renamed in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
