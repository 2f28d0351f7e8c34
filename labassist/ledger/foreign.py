"""Audit the checkpoints that another trainer keeps in a folder of its own, described by our manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labassist.errors import LedgerError
from labassist.ledger.objects import Objects
from labassist.record.inspect import FOREIGN_SUFFIX, folder_of, read_manifest


def is_foreign(checkpoint: dict[str, Any]) -> bool:
    """Say whether a checkpoint document names a manifest in place of a folder of ours."""
    return str(checkpoint["path"]).endswith(FOREIGN_SUFFIX)


def claims(ledger: Path, checkpoints: Iterable[dict[str, Any]], objects: Objects) -> dict[Path, str]:
    """Return for each foreign folder the run that wrote it last; `checkpoints` in the order of the journal."""
    owners = {}
    for checkpoint in filter(is_foreign, checkpoints):
        try:
            manifest = json.loads(objects.get(checkpoint["manifest"]))
        except (LedgerError, ValueError):
            continue  # the audit of objects names it
        owners[folder_of(ledger / checkpoint["path"], manifest)] = str(checkpoint["run"])
    return owners


def not_covered(place: Path, run: str, owners: dict[Path, str]) -> str:
    """Return why no promise holds any more for a foreign checkpoint's files, nothing where it does.

    Its trainer may delete the folder (`save_total_limit`), and a later run may write over it: neither is
    damage. Raises CheckpointError for a manifest that cannot be read.
    """
    manifest = read_manifest(place)
    folder = folder_of(place, manifest)
    if not folder.is_dir():
        return f"its folder {manifest['folder']} is gone"
    if owners.get(folder, run) != run:
        return f"run {owners[folder]} wrote over its folder {manifest['folder']}"
    return ""
