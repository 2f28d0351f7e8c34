"""Where the large files of a run lie: in its folder, or on another disk that LABASSIST_ARTIFACTS names."""

from __future__ import annotations

import os
from pathlib import Path

from labassist.errors import InputError
from labassist.record.protocol import CHECKPOINTS

VARIABLE = "LABASSIST_ARTIFACTS"
"""Environment variable: an absolute folder for checkpoints, as of a larger disk."""


def checkpoints_place(run_folder: Path) -> Path:
    """Return a run's folder of checkpoints, made where it is missing: a link to the other disk if one is named.

    Every path in the ledger stays as it is and leads through that link. Raises InputError where the disk
    cannot be used.
    """
    place = run_folder / CHECKPOINTS
    if os.path.lexists(place):
        return place
    named = os.environ.get(VARIABLE)
    if not named:
        place.mkdir()
        return place
    root = Path(named).expanduser()
    if not root.is_absolute():
        raise InputError("must be an absolute path", where=f"{VARIABLE}={named}", mend="name a folder from /")
    real = root / run_folder.name / CHECKPOINTS
    try:
        real.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"checkpoints cannot be kept there: {error.strerror}",
            where=f"{VARIABLE}={named}",
            mend="name another",
        ) from error
    place.symlink_to(real, target_is_directory=True)
    return place


def disk(workspace: Path) -> Path:
    """Return a folder on the disk that checkpoints of new runs go to."""
    named = os.environ.get(VARIABLE)
    root = Path(named).expanduser() if named else workspace
    while not root.exists() and root != root.parent:
        root = root.parent
    return root
