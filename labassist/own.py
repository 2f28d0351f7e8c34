"""Starting modules of this package as processes, and the last word of one that ended."""

from __future__ import annotations

import sys
from pathlib import Path

_START = "import sys; sys.path.append(sys.argv.pop(1)); from {} import main; sys.exit(main())"


def start(module: str, *words: str) -> list[str]:
    """Return the argv that calls `main()` of a module with `words` in `sys.argv`, whatever the working directory.

    -P keeps the working directory off the path, so that nothing of the user's stands in for a module of ours; our
    own folder goes last, so that it is used only where labassist is not importable anyway (a checkout run in place).
    """
    return [sys.executable, "-P", "-c", _START.format(module), str(Path(__file__).parents[1]), *words]


def last_line(text: str) -> str:
    """Return the last line of an output that says something, empty where none does."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
