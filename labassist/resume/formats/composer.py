"""MosaicML Composer's one file a rank or run: `state` (composer/core/state.py `state_dict`) and `rng` a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labassist.resume.description import Description, Weights
from labassist.resume.formats.plain import lone_file
from labassist.resume.reading import Reader, last_epoch, named_tensors
from labassist.resume.torchfile import Loaded, Torn

NAME = "composer"


def detect(path: Path) -> bool:
    """Say whether this is a checkpoint of Composer: known by its keys."""
    file = lone_file(path)
    if file is None or file.suffix not in (".pt", ".pth"):
        return False
    loaded = Reader(Description(NAME, path), verify=False).torch(file)
    state = loaded.value.get("state") if loaded and isinstance(loaded.value, dict) else None
    return isinstance(state, dict) and "timestamp" in state


def read(path: Path, verify: bool) -> Description:
    """Return what a Composer checkpoint holds."""
    found = Description(NAME, path)
    reader = Reader(found, verify)
    file = lone_file(path) or path
    loaded = reader.torch(file, "model")
    if loaded is None:
        found.states = dict.fromkeys(found.states, "torn")
        return found
    state = loaded.value.get("state", {})
    _progress(found, state)
    tensors = named_tensors(state.get("model"))
    if tensors:
        found.mark("model", "present")
        found.weights = Weights(tensors)
    else:
        found.add("weights-missing", "model", file)
    optimizer = _only(state.get("optimizers"))
    if optimizer:
        found.mark("optimizer", "present")
        found.moments = reader.moments(loaded, optimizer)
    else:
        found.add("optimizer-missing", "optimizer", file)
    scheduler = _only(state.get("schedulers"))
    if scheduler:
        found.mark("scheduler", "present")
        at = last_epoch(scheduler)
        found.scheduler_step = None if at == found.facts.get("epoch") else at
    else:
        found.add("scheduler-missing", "scheduler", file)
    if _only(state.get("scaler")):
        found.fp16 = True
        found.mark("scaler", "present")
    else:
        found.mark("scaler", "not_applicable")
    _rng(reader, loaded, file)
    _data(found, state, file)
    return found


def _only(value: Any) -> dict[str, Any] | None:
    """Return the state under a class's name: Composer keeps {class name: state}."""
    held = next(iter(value.values()), None) if isinstance(value, dict) else None
    return held if isinstance(held, dict) and held else None


def _progress(found: Description, state: dict[str, Any]) -> None:
    timestamp = _only(state.get("timestamp")) or state.get("timestamp") or {}
    batch, epoch = (
        timestamp.get(name) if isinstance(timestamp, dict) else None for name in ("batch", "epoch")
    )
    found.step = batch if isinstance(batch, int) else None
    found.facts["epoch"] = epoch
    metadata = state.get("metadata")
    info = metadata.get("composer_env_info") if isinstance(metadata, dict) else None
    if isinstance(info, dict):
        found.framework_version = f"composer {info.get('composer_version', '')}".strip()
    seed = state.get("rank_zero_seed")
    if isinstance(seed, int):
        found.facts["seed"] = seed


def _rng(reader: Reader, loaded: Loaded, file: Path) -> None:
    found = reader.found
    ranks = loaded.value.get("rng")
    if not isinstance(ranks, list) or not ranks:
        found.add("rng-missing", "rng", file)
        return
    found.mark("rng", "present")
    found.world_size = len(ranks)
    for rank, held in enumerate(ranks):
        if not held:
            found.add("rng-rank-missing", "rng", file, rank)
            continue
        try:
            found.rng[rank] = loaded.digest(held)
        except Torn as error:
            found.add("file-torn", "rng", file, rank, why=str(error))
        for part in ("python", "numpy", "torch"):
            if part not in held:
                found.add("rng-part-missing", "rng", file, rank, part=part)


def _data(found: Description, state: dict[str, Any], file: Path) -> None:
    """A stateful dataset keeps its position; else Composer counts the batches again (`derived`)."""
    dataset = state.get("dataset_state")
    if isinstance(dataset, dict) and dataset.get("train"):
        found.mark("data_position", "present")
    elif found.step is not None:
        found.mark("data_position", "derived")
    else:
        found.add("data-position-missing", "data_position", file)
