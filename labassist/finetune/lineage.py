"""What an adapter was trained on, kept beside it: which base, which data, which run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labassist.finetune.model_folder import Model
from labassist.record.protocol import Order, file_sha256

FILE = "labassist-lineage.json"
"""In a checkpoint, and in a merged model."""


def of_adapter(order: Order, base: Model, data: dict[str, Path]) -> dict[str, Any]:
    """Return what is kept with an adapter: the run, the base's name and digest, each data file's digest."""
    return {
        "run": order.run,
        "base": {"name": base.name, **base.facts()},
        "data": {name: file_sha256(path) for name, path in data.items()},
    }


def read(folder: Path) -> dict[str, Any]:
    """Return what is kept in a folder, empty where nothing is."""
    try:
        found = json.loads((folder / FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
