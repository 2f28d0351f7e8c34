"""Opening a file at a line in the learner's own editor, in this very terminal."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from labassist.errors import InputError

if TYPE_CHECKING:
    from labassist.app.app import LabApp

FALLBACKS = ("nano", "vim", "vi")
"""Tried in this order where neither VISUAL nor EDITOR says anything."""

COLON = ("hx", "helix", "zed", "subl", "micro")
"""Editors that take FILE:LINE; all others take +LINE FILE."""


def argv(path: Path, line: int, environment: Mapping[str, str]) -> list[str]:
    """Return the command that opens a file at a line.

    Raises InputError, which names file and line, where no editor is named and none is installed.
    """
    named = environment.get("VISUAL") or environment.get("EDITOR") or ""
    try:
        words = shlex.split(named)
    except ValueError:
        words = [named]
    if not words:
        found = next((name for name in FALLBACKS if shutil.which(name, path=environment.get("PATH"))), None)
        if found is None:
            raise InputError(
                "no editor here", where=f"{path}:{line}", mend="open the file elsewhere, or set EDITOR"
            )
        words = [found]
    program = Path(words[0]).name
    if program in ("code", "codium"):
        return [*words, "--wait", "--goto", f"{path}:{line}"]
    if program in COLON:
        return [*words, f"{path}:{line}"]
    return [*words, f"+{line}", str(path)]


def edit(app: LabApp, path: Path, line: int) -> None:
    """Leave the screen to the editor until it ends. Raises InputError, which names file and line, where it cannot."""
    words = argv(path, line, os.environ)
    place = f"{path}:{line}"
    status = 0
    failed: OSError | ValueError | None = None
    try:
        with app.suspend():
            # Nothing may be raised in here: the terminal would stay the editor's.
            try:
                status = subprocess.run(words, cwd=app.workspace.root, check=False).returncode
            except (OSError, ValueError) as error:
                failed = error
    except SuspendNotSupported:
        raise InputError("the editor needs a terminal", where=place, mend="open the file elsewhere") from None
    if failed is not None:
        what = f"{words[0]} cannot be started: {getattr(failed, 'strerror', None) or failed}"
        raise InputError(what, where=place, mend="set EDITOR to one that is installed") from failed
    if status:
        raise InputError(f"{words[0]} ended with status {status}", where=place)
