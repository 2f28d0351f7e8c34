"""What a replay that is not bitwise points to, beyond its first difference: a failure, settings, a resume."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from labassist.ledger import curves, verdict
from labassist.ledger.records import Verdict
from labassist.ledger.store import Ledger
from labassist.resume import signature
from labassist.runs.logs import last_line, tail

_MISSING = re.compile(
    r"No such file or directory: '([^']+)'|(?:^|[\s:'\"])([^\s:'\"]+)['\"]?: No such file or directory"
)


def failure(folder: Path, original: dict[str, Any], replayed: dict[str, Any]) -> list[str]:
    """Say that the replay itself failed, where the original did not: its status, its last line, the mend."""
    if replayed["state"] != "failed" or original["state"] == "failed":
        return []
    log = folder / "log.txt"
    last = last_line(log)
    found = [f"it failed in the replay: {replayed['reason']}" + (f"; its last line: {last}" if last else "")]
    missing = next((match for line in reversed(tail(log, 20)) if (match := _MISSING.search(line))), None)
    if missing:
        found.append(
            f"{missing[1] or missing[2]} is not in the replay's copy (does git ignore it?): track it, or have the "
            "script say that it reads it: path = record.read_order().input(NAME, PATH)"
        )
    return found


def other_settings(original: dict[str, Any], replayed: dict[str, Any]) -> list[str]:
    """Say which settings a command's trainer told otherwise this time."""
    heard = original.get("total_steps") and replayed.get("total_steps")
    if original["kind"] != "command" or not heard:
        return []
    changed = verdict.changed_settings(original.get("config", {}), replayed.get("config", {}))
    if not changed:
        return []
    return [
        f"the configuration differs: {changed}; the script read it from somewhere that was not recorded "
        "(an environment variable?): set it again"
    ]


def after_a_resume(
    ledger: Ledger, segments: list[dict[str, Any]], replayed: dict[str, Any], found: Verdict
) -> str:
    """Say what a resume did not bring back, where the replay, which has none, differs from its first or second step on."""
    first = found.first_difference or {}
    if found.verdict != "DIVERGED" or "step" not in first:
        return ""
    for later in segments[1:]:
        origin = later["resumed_from"]["step"]
        if origin < first["step"] <= origin + 2:
            unbroken = curves.joined(ledger, replayed["id"])
            read = signature.read(unbroken, curves.joined(ledger, segments[-1]["id"]), origin)
            if read.first and read.first["step"] == first["step"]:
                return f"the resume after step {origin}: {read.words}"
    return ""
