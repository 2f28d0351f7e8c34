"""The whole `labassist fsck`: the store, then the run folders, their checkpoints and their locks."""

from __future__ import annotations

from pathlib import Path

from labassist.ledger.fsck import Fsck, check_store
from labassist.record.inspect import committed
from labassist.runs import life


def fsck(ledger: Path, *, repair: bool = False) -> Fsck:
    """Check the ledger folder; with `repair` mend what can be rebuilt. Raises LedgerError without a ledger.

    Nothing is opened for writing unless something is to be mended.
    """
    check = Fsck(ledger, repair)
    check_store(check)
    _check_folders(check)
    _check_checkpoints(check)
    return check


def _check_folders(check: Fsck) -> None:
    runs = check.folder / "runs"
    there = {path.name: path for path in sorted(runs.iterdir()) if path.is_dir()} if runs.is_dir() else {}
    check.checked["run folders"] = len(there)
    for name, path in there.items():
        if name in check.runs or life.held(path / "alive") or life.held(path / "supervised"):
            continue  # a start holds its locks before it is journalled
        if (path / "positions.jsonl").exists():
            message = (
                "the journal once had this run and has it no more: its tail was cut, or it is another one"
            )
            check.add("run-unknown", path, message)
        else:
            message = "no entry of the journal names it, as after a start that was killed"
            check.add("run-unknown", path, message, how="moved aside", mend=check.put_aside(path))
    for run_id, document in check.runs.items():
        path = check.folder / "runs" / run_id
        if run_id not in there:
            message = "the journal has this run and its folder is gone; restore it from a copy"
            check.add("run-folder-missing", path, message)
        elif document["state"] == "running" and not life.held(path / "alive"):
            message = "the ledger says running and nobody holds its lock"
            how = "any other labassist command on its machine closes it"
            check.add("run-unclosed", path, message, harmless=True, how=how)


def _check_checkpoints(check: Fsck) -> None:
    known = {(document["run"], document["step"]): document for document in check.checkpoints}
    for run_id, document in check.runs.items():
        folder = check.folder / "runs" / run_id
        place = folder / "checkpoints"
        if place.is_symlink() and not place.exists():
            message = f"its checkpoints lie at {place.readlink()}, which is not here"
            check.add("checkpoints-elsewhere", place, message)
        if life.held(folder / "alive") or not place.is_dir():
            continue
        whole = committed(folder)
        check.checked["checkpoints"] = check.checked.get("checkpoints", 0) + len(whole)
        kept = {path.name for path in whole.values()}
        for path in sorted(place.iterdir()):
            if path.name not in kept:
                message = "a checkpoint that was never completed: its writer died"
                how = "moved aside"
                check.add(
                    "checkpoint-half", path, message, harmless=True, how=how, mend=check.put_aside(path)
                )
        if document["state"] == "running":
            continue
        for step, path in whole.items():
            row = known.get((run_id, step))
            if row is None:
                message = "a whole checkpoint that the journal does not have"
                check.add("checkpoint-unknown", path, message, harmless=True)
            elif row.get("pruned"):
                message = "it was pruned and is still there: the prune was interrupted"
                how = "moved aside; `labassist prune` finishes it too"
                check.add("pruned-present", path, message, harmless=True, how=how, mend=check.put_aside(path))
