"""Keep labassist itself with each run: the whole package tree as one object, and bring it back."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tarfile
import uuid
from pathlib import Path

import labassist
from labassist.errors import RestoreError
from labassist.ledger.objects import Objects

_NAME = "labassist"
_LEFT_OUT = ("__pycache__", "_content")
"""Compiled files, and the course content of a wheel: a run's own copy of that is in its repository."""


def capture_package(objects: Objects) -> str:
    """Store the package that is imported now as an uncompressed tar and return its SHA-256.

    Equal trees make equal tars: names are sorted, times and owners are zero, compiled files are left out.
    """
    return objects.put(_pack(Path(labassist.__file__).resolve().parent))


def unpack_package(objects: Objects, sha: str, into: Path) -> Path:
    """Unpack a stored package below `into` and return the folder to put first on PYTHONPATH.

    Raises RestoreError when the object holds anything but a package of ours, or is not restored exactly.
    """
    if (into / _NAME).exists():
        raise RestoreError("something is there already", where=str(into / _NAME), mend="name an empty folder")
    into.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(objects.get(sha)), mode="r:") as tar:
            for member in tar:
                if not member.isfile() or not member.name.startswith(f"{_NAME}/"):
                    raise RestoreError("the package holds what is not its own", where=member.name)
                tar.extract(member, into, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise RestoreError(f"the package cannot be unpacked: {error}", where=f"object {sha}") from error
    if _pack(into / _NAME) != objects.get(sha):
        raise RestoreError("the package was not restored exactly", where=str(into / _NAME))
    return into


def shared_copy(objects: Objects, sha: str, folder: Path) -> Path:
    """Return a copy of a stored package that runs share, below `folder`; made where it is missing or altered.

    Raises as `unpack_package`.
    """
    target = folder / sha[:16]
    if _is_whole(target, sha):
        return target
    partial = folder / f"{sha[:16]}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Of many runs that start at once, one makes it: a second would take away what the first begins to import.
        with open(folder / f"{sha[:16]}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_whole(target, sha):
                unpack_package(objects, sha, partial)
                if target.exists():
                    shutil.rmtree(target)
                os.replace(partial, target)
    except OSError as error:
        raise RestoreError(f"the package cannot be put there: {error.strerror}", where=str(target)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _is_whole(folder: Path, sha: str) -> bool:
    try:
        return (folder / _NAME).is_dir() and hashlib.sha256(_pack(folder / _NAME)).hexdigest() == sha
    except FileNotFoundError:  # another process takes an altered copy away
        return False


def _pack(root: Path) -> bytes:
    """Return the tree below `root` as a tar, each file under `labassist/`."""
    files = []
    for folder, names, here in os.walk(root):
        names[:] = [name for name in names if name not in _LEFT_OUT]
        files += [Path(folder) / name for name in here if not name.endswith((".pyc", ".pyo"))]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(files, key=lambda file: file.relative_to(root).as_posix()):
            data = path.read_bytes()
            info = tarfile.TarInfo(f"{_NAME}/{path.relative_to(root).as_posix()}")
            info.size = len(data)
            info.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
