"""A labassist command that waits before it does anything, so that what is shown meanwhile can be seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

WAITS = """\
import os, sys, time

deadline = time.monotonic() + 120
while {word!r} in sys.orig_argv and not os.path.exists({file!r}) and time.monotonic() < deadline:
    time.sleep(0.01)
"""


def hold(word: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hold each command that is started from here on with this word, while the file that is returned is not there."""
    file = folder / "go"
    place = folder / "held"
    place.mkdir()
    (place / "sitecustomize.py").write_text(WAITS.format(word=word, file=str(file)))
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{place}{os.pathsep}{before}" if before else str(place))
    return file
