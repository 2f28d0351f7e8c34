"""What of one run is read only when somebody asks: its checkpoints, its family and its uncommitted change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinydb import where

from labassist.app.messages import RunDetail
from labassist.errors import LabError
from labassist.serving.chain import chain, is_server

if TYPE_CHECKING:
    from labassist.ledger.store import Ledger

PATCH_LINES = 4000
"""Most lines of a patch that are shown: nobody reads more on a terminal."""


def read_detail(ledger: Ledger, runs: list[dict[str, Any]], run_id: str) -> RunDetail:
    """Return it; `runs` are all that the ledger holds. What cannot be read is said in `problems`."""
    document = ledger.run(run_id) or {}
    problems: list[str] = []
    code = document.get("code", {})
    patch, extra = "", []
    try:
        if code.get("patch"):
            lines = ledger.objects.get(code["patch"]).decode("utf-8", "replace").splitlines()
            left = len(lines) - PATCH_LINES
            patch = "\n".join(lines[:PATCH_LINES] + ([f"({left:,} more lines)"] if left > 0 else []))
        if code.get("extra"):
            extra = list(ledger.objects.get_json(code["extra"]))
    except LabError as error:
        problems.append(str(error))
    checkpoints = [dict(kept) for kept in ledger.checkpoints.search(where("run") == run_id)]
    for kept in checkpoints:
        kept["folder"] = str(ledger.folder / kept["path"])
        kept["there"] = (ledger.folder / kept["path"]).exists()
    checkpoints.sort(key=lambda kept: kept["step"])
    return RunDetail(
        run_id,
        checkpoints,
        family(runs, run_id),
        [dict(run) for run in runs if run.get("replay_of") == run_id],
        patch,
        extra,
        problems,
        chain(ledger, document) if is_server(document) else (),
    )


def family(runs: list[dict[str, Any]], run_id: str) -> list[dict[str, Any]]:
    """Return the segments before a run, itself, and all that went on from it, oldest first."""
    by_id = {run["id"]: run for run in runs if "id" in run}
    found: list[dict[str, Any]] = []
    current = by_id.get(run_id)
    while current is not None and current not in found:
        found.insert(0, current)
        origin = current.get("resumed_from")
        current = by_id.get(origin["run"]) if origin else None
    names = {run_id}
    for run in runs:  # oldest first: a segment comes after the one that it went on from
        if (run.get("resumed_from") or {}).get("run") in names and run not in found:
            names.add(run["id"])
            found.append(run)
    return [dict(run) for run in found]
