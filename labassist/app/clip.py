"""Copying over SSH: OSC 52 asks the terminal at home, and a file holds the text where the terminal does not listen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from labassist.errors import InputError

if TYPE_CHECKING:
    from labassist.app.app import LabApp

FILE = Path(".labassist") / "clipboard.txt"


def copy(app: LabApp, text: str) -> Path:
    """Send a text to the terminal's clipboard and write it to a file; return that file, relative to the workspace.

    Raises InputError where the file cannot be written.
    """
    app.copy_to_clipboard(text)
    path = app.workspace.root / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(path)) from error
    return FILE
