"""Moving things out of the way without losing them: `ledger/aside/<n>/`, with the path that they had."""

from __future__ import annotations

import os
from pathlib import Path

NAME = "aside"


class Aside:
    """One numbered folder below `ledger/aside`, made when the first thing is moved into it."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self.folder: Path | None = None
        """None while nothing has been moved."""

    def move(self, path: Path) -> str:
        """Move a file or folder of the ledger there; return its new path, relative to the ledger. Raises OSError."""
        if self.folder is None:
            self.folder = self._new_folder()
        target = self.folder / path.relative_to(self._ledger)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, target)
        return target.relative_to(self._ledger).as_posix()

    def _new_folder(self) -> Path:
        place = self._ledger / NAME
        place.mkdir(exist_ok=True)
        n = 1
        while True:
            try:
                (folder := place / str(n)).mkdir()
            except FileExistsError:
                n += 1
            else:
                return folder
