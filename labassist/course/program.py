"""Runs a lab's script as `python SCRIPT …` would, and notes which files of the lab's folder it used.

Started by `Evidence.program` as a process of its own. What is noted decides when a verdict is stale.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

WRITES = frozenset("wax")


def main() -> int:
    """Run `NOTE FOLDER SCRIPT ARGS…`; the note is JSON `{"files": […], "error": "", "place": ""}`."""
    sys.dont_write_bytecode = True  # a lab's folder holds what its author and its learner put there
    note, folder, script, *rest = sys.argv[1:]
    opened: set[str] = set()

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str) and not WRITES.intersection(args[1] or ""):
            opened.add(args[0])

    sys.argv = [script, *rest]
    sys.path.insert(0, str(Path(script).parent))
    sys.addaudithook(heard)
    error = place = ""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit:
        raise
    except Exception as caught:  # noqa: BLE001 - whatever a learner's script raises is its answer
        error, place = described(caught, Path(folder))
        traceback.print_exc()
        return 1
    finally:
        imported = {
            str(module.__file__) for module in list(sys.modules.values()) if hasattr(module, "__file__")
        }
        files = _inside(Path(folder), opened | imported | {script})
        Path(note).write_text(json.dumps({"files": files, "error": error, "place": place}), encoding="utf-8")
    return 0


def described(caught: BaseException, folder: Path) -> tuple[str, str]:
    """Return an exception in one line, and `file.py:12` of the last line of `folder` on its way."""
    text = " ".join("".join(traceback.format_exception_only(caught)).strip().split("\n")[-1].split())
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(caught.__traceback__)]
    if isinstance(caught, SyntaxError) and caught.filename:
        places.append((caught.filename, caught.lineno))
    root = folder.resolve()
    for name, line in reversed(places):
        if Path(name).resolve().is_relative_to(root):
            return text, f"{Path(name).name}:{line}"
    return text, f"{Path(places[-1][0]).name}:{places[-1][1]}" if places else ""


def _inside(folder: Path, names: set[str]) -> list[str]:
    """Return which of these are files of the folder, relative to it."""
    root = folder.resolve()
    paths = {Path(name).resolve() for name in names}
    inside = [path.relative_to(root) for path in paths if path.is_relative_to(root) and path.is_file()]
    return sorted(str(path) for path in inside if "__pycache__" not in path.parts)


if __name__ == "__main__":
    sys.exit(main())
