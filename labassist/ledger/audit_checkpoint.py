"""Audit one checkpoint: is it what was journalled, to the last byte, and if it was dropped, is its word kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labassist.errors import CheckpointError, LedgerError
from labassist.ledger import foreign
from labassist.ledger.audit_answer import Audit
from labassist.ledger.objects import Objects
from labassist.ledger.problems import Problem
from labassist.ledger.records import why_gone
from labassist.record.inspect import folder_of, inspect, manifest_file
from labassist.record.protocol import file_sha256


def check_checkpoint(
    found: Audit,
    folder: Path,
    objects: Objects,
    checkpoint: dict[str, Any],
    owners: dict[Path, str],
    seen: set[Path],
) -> None:
    """Add to `found` what is wrong with a checkpoint, and to `seen` its files.

    `owners` has for each folder of another trainer the run that wrote it last.
    """
    path = folder / checkpoint["path"]
    run_id = checkpoint["run"]
    name = checkpoint["path"]
    if why_gone(checkpoint):
        _check_dropped(found, path, objects, checkpoint)
        return
    found.count("checkpoints")
    seen.update(file for file in (path, *path.rglob("*")) if file.is_file())
    if not path.exists():
        found.problems.append(Problem("checkpoint-missing", "the checkpoint's folder is gone", run_id, name))
        return
    try:
        promised = json.loads(objects.get(checkpoint["manifest"]))
    except (LedgerError, ValueError):
        promised = {}  # the object itself is named by the check of objects
    for file in sorted(path.iterdir()) if path.is_dir() else ():
        if file.name not in ("manifest.json", "COMMIT") and file.name not in promised.get("files", {}):
            found.problems.append(
                Problem(
                    "checkpoint-extra", "was not in the checkpoint", run_id, str(file.relative_to(folder))
                )
            )
    manifest = manifest_file(path)
    digest = readable_sha256(manifest)
    if digest and digest != checkpoint["manifest"]:
        found.problems.append(
            Problem(
                "manifest-altered", "is not the one journalled", run_id, str(manifest.relative_to(folder))
            )
        )
        return
    try:
        if foreign.is_foreign(checkpoint):
            why = foreign.not_covered(path, run_id, owners)
            if why:
                found.not_covered.append(f"{name} ({why})")
                return
        whole = inspect(path)
        # Another trainer may keep its checkpoints inside the ledger's folder, as a lab's job does.
        home, root = folder_of(path, whole).resolve(), folder.resolve()
        if home.is_relative_to(root):
            seen.update(folder / home.relative_to(root) / file for file in whole["files"])
    except CheckpointError as error:
        place = Path(error.where)
        inside = str(place.relative_to(folder)) if place.is_relative_to(folder) else name
        if "COMMIT" in error.what:
            inside = f"{name}/COMMIT"
        tensor = next((key for key in promised.get("tensors", {}) if f"tensor {key} " in error.what), "")
        found.problems.append(Problem("checkpoint-altered", error.what, run_id, inside, tensor))


def _check_dropped(found: Audit, path: Path, objects: Objects, checkpoint: dict[str, Any]) -> None:
    """Check what stays of a checkpoint that is not kept: the hashes, and no folder."""
    name, run_id = checkpoint["path"], checkpoint["run"]
    found.count("pruned checkpoints" if checkpoint.get("pruned") else "checkpoints left elsewhere")
    if not objects.has(checkpoint["manifest"]):
        message = "the hashes of a checkpoint that is not kept are gone"
        found.problems.append(Problem("object-missing", message, run_id, f"objects/{checkpoint['manifest']}"))
    if path.exists():
        message = "it was pruned and is still there; `labassist prune` finishes what was interrupted"
        found.problems.append(Problem("pruned-present", message, run_id, name))


def readable_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, empty where it cannot be read."""
    try:
        return file_sha256(path)
    except OSError:
        return ""
