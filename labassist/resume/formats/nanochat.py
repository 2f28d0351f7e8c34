"""nanochat (nanochat/checkpoint_manager.py): `model_<step>.pt`, `optim_<step>_rank<r>.pt`, `meta_<step>.json`.

Many steps share one folder, so a checkpoint is named by its model file.
"""

from __future__ import annotations

import re
from pathlib import Path

from labassist.resume.description import Description, Weights
from labassist.resume.reading import Reader, named_tensors

NAME = "nanochat"
_FILE = re.compile(r"(?:model|meta|optim)_(\d{6})(?:_rank(\d+))?\.(?:pt|json)")


def steps(folder: Path) -> dict[str, Path]:
    """Return digits of the step -> the model file's path, for every step that a folder has files of."""
    found = {match[1] for file in folder.iterdir() if (match := _FILE.fullmatch(file.name))}
    whole = {
        step for step in found if any(folder.glob(f"meta_{step}.json")) or any(folder.glob(f"optim_{step}_*"))
    }
    return {step: folder / f"model_{step}.pt" for step in sorted(whole)}


def detect(path: Path) -> bool:
    """Say whether this is a step's model file, or a folder with a single step."""
    if path.is_dir():
        return len(steps(path)) == 1
    match = _FILE.fullmatch(path.name)
    return match is not None and path.name.startswith("model_") and match[1] in steps(path.parent)


def read(path: Path, verify: bool) -> Description:
    """Return what nanochat kept of one step. The rate is computed from the step."""
    folder = path if path.is_dir() else path.parent
    held = steps(folder)
    match = _FILE.fullmatch(path.name)
    digits = match[1] if match and path != folder else next(iter(held))
    found = Description(NAME, path, own_prefixes=("_orig_mod.",))
    reader = Reader(found, verify)
    model = held.get(digits, path)
    if model.is_file():
        loaded = reader.torch(model, "model")
        if loaded:
            found.mark("model", "present")
            found.weights = Weights(named_tensors(loaded.value))
    else:
        found.add("weights-missing", "model", model.name)
    _meta(reader, folder / f"meta_{digits}.json", int(digits))
    _optimizer(reader, folder, digits)
    found.mark("scaler", "not_applicable")
    found.limit("rng")
    return found


def _meta(reader: Reader, file: Path, digits: int) -> None:
    found = reader.found
    if not file.is_file():
        found.add(
            "file-missing", "scheduler", file.name, why="it says the step that the rate is computed from"
        )
        found.add("data-position-missing", "data_position", file.name)
        return
    meta = reader.json_table(file, "data_position")
    if meta is None:
        found.mark("scheduler", "torn")
        return
    step = meta.get("step")
    if isinstance(step, int):
        found.step = step
        found.mark("scheduler", "derived")
        if step != digits:
            found.mark("scheduler", "inconsistent")
            found.add("step-mismatch-name", "scheduler", file.name, named=digits, step=step)
    else:
        found.add("scheduler-missing", "scheduler", file.name)
    if isinstance(meta.get("dataloader_state_dict"), dict):
        found.mark("data_position", "present")
        found.add("loader-buffer", "data_position", file.name)
    else:
        found.limit("data_position")
    batch = meta.get("device_batch_size")
    if isinstance(batch, int):
        found.facts["per_device_train_batch_size"] = batch


def _optimizer(reader: Reader, folder: Path, digits: str) -> None:
    found = reader.found
    ranks = {
        int(match[2]): file
        for file in folder.glob(f"optim_{digits}_rank*.pt")
        if (match := _FILE.fullmatch(file.name)) and match[2]
    }
    if not ranks:
        found.add("optimizer-missing", "optimizer", f"optim_{digits}_rank0.pt")
        return
    found.world_size = max(ranks) + 1
    for rank in range(found.world_size):
        if rank not in ranks:
            found.mark("optimizer", "torn")
            found.add("rank-file-missing", "optimizer", f"optim_{digits}_rank{rank}.pt", rank)
    for rank, file in sorted(ranks.items()):
        loaded = reader.torch(file, "optimizer", rank)
        if loaded is None:
            continue
        found.mark("optimizer", "present")
        reader.origin("optimizer", rank, loaded.root.rpartition("_rank")[2], loaded.root != file.stem)
        if rank == 0 and found.world_size == 1:
            # Newer versions keep one state dict, older ones a list: AdamW's, then Muon's.
            found.moments = reader.moments(loaded, loaded.value)
