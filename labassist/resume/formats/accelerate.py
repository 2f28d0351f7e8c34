"""Accelerate's `save_state` (accelerate/checkpointing.py), one folder, each further object numbered.

The scheduler that Accelerate prepares is stepped once a process, so its counter may be a multiple.
"""

from __future__ import annotations

import re
from pathlib import Path

from labassist.resume.description import Description
from labassist.resume.formats import dcp
from labassist.resume.reading import Reader, last_epoch

NAME = "accelerate"
_RNG = re.compile(r"random_states_(\d+)\.pkl")
_STEMS = ("model", "pytorch_model")


def detect(path: Path) -> bool:
    """Say whether this is a folder of `Accelerator.save_state`."""
    if not path.is_dir():
        return False
    marks = ("optimizer.bin", "scheduler.bin", "sampler.bin", "dl_state_dict.bin")
    return any((path / name).is_file() for name in marks) or any(path.glob("random_states_*.pkl"))


def read(path: Path, verify: bool) -> Description:
    """Return what `save_state` wrote."""
    found = Description(NAME, path, scheduler_ranks=True, loose_counts=True)
    reader = Reader(found, verify)
    found.weights = reader.weights(path, _STEMS)
    for more in sorted([*path.glob("model_[0-9].safetensors"), *path.glob("pytorch_model_[0-9].bin")]):
        if more.suffix == ".safetensors":
            reader.safetensors(more)
        else:
            reader.torch(more, "model")
    for state, pattern in (("model", "pytorch_model_fsdp*"), ("optimizer", "optimizer_*")):
        for folder in sorted(path.glob(pattern)):
            if dcp.detect(folder):
                dcp.read_folder(reader, folder, state)
    if found.states["model"] == "absent":
        found.add("weights-missing", "model")
    _optimizer_and_scheduler(reader)
    _rng(reader)
    _data(reader)
    if (path / "scaler.pt").is_file():
        found.fp16 = True
        if reader.torch(path / "scaler.pt", "scaler"):
            found.mark("scaler", "present")
    else:
        found.mark("scaler", "not_applicable")
    for custom in sorted(path.glob("custom_checkpoint_*.pkl")):
        reader.torch(custom)
    reader.small_json(path, skip=[index.name for index in path.glob("*.index.json")])
    return found


def _optimizer_and_scheduler(reader: Reader) -> None:
    found, path = reader.found, reader.found.path
    for stem in ("optimizer", "scheduler"):
        first = path / f"{stem}.bin"
        files = [file for file in (first, *sorted(path.glob(f"{stem}_[0-9].bin"))) if file.is_file()]
        if first not in files and found.states[stem] == "absent":
            found.add(f"{stem}-missing", stem, first)
        for file in files:
            loaded = reader.torch(file, stem)
            if loaded is None:
                continue
            if stem == "optimizer":
                held = reader.optimizer(file, loaded)
                found.moments = held if file == first else found.moments
                continue
            found.mark(stem, "present")
            if file == first:
                found.scheduler_step = last_epoch(loaded.value)


def _rng(reader: Reader) -> None:
    found, path = reader.found, reader.found.path
    ranks = {int(match[1]): file for file in path.iterdir() if (match := _RNG.fullmatch(file.name))}
    if not ranks:
        found.add("rng-missing", "rng", path / "random_states_0.pkl")
        return
    found.world_size = max(ranks) + 1
    for rank in range(found.world_size):
        if rank not in ranks:
            found.add("rng-rank-missing", "rng", path / f"random_states_{rank}.pkl", rank)
    for rank, file in sorted(ranks.items()):
        loaded = reader.torch(file, "rng", rank)
        if loaded is None:
            continue
        held = dict(loaded.value) if isinstance(loaded.value, dict) else {}
        step = held.pop("step", None)
        loaded.value = held
        reader.rng(file, rank, loaded)
        if isinstance(step, int) and step:
            found.facts["micro_step"] = step
        for part in ("random_state", "numpy_random_seed", "torch_manual_seed"):
            if part not in held:
                found.add("rng-part-missing", "rng", file, rank, part=part)


def _data(reader: Reader) -> None:
    found, path = reader.found, reader.found.path
    loader, sampler = path / "dl_state_dict.bin", path / "sampler.bin"
    if loader.is_file():
        loaded = reader.torch(loader, "data_position")
        if loaded is None:
            return
        found.mark("data_position", "present")
        if isinstance(loaded.value, dict):
            stateful(found, loaded.value, loader)
        if (found.world_size or 1) > 1:
            found.add("loader-no-rank", "data_position", loader, count=found.world_size)
    elif sampler.is_file():
        if reader.torch(sampler, "data_position"):
            found.mark("data_position", "present")
    else:
        found.limit("data_position", why="without use_stateful_dataloader the script skips batches itself")


def stateful(found: Description, value: dict[str, object], path: Path) -> None:
    """Note what the state of a torchdata StatefulDataLoader tells: its workers, and the samples it has given.

    Without workers the keys lie at the top, with them in the main process's snapshot. A state taken after the
    last batch, but before the end was noticed, gives an empty epoch: the count is compared with a plan's
    dataset_length.
    """
    snapshot = value.get("_snapshot")
    main = snapshot.get("_main_snapshot") if isinstance(snapshot, dict) else None
    held = main if isinstance(main, dict) else value
    workers = held.get("_num_workers")
    if isinstance(workers, int) and workers:
        found.add("loader-workers", "data_position", path, count=workers)
    sampler = held.get("_sampler_iter_state")
    yielded = sampler.get("samples_yielded") if isinstance(sampler, dict) else None
    if isinstance(yielded, int) and value.get("_iterator_finished") is not True:
        found.facts["yielded"] = yielded


def is_stateful(value: object) -> bool:
    """Say whether a value is the state of a torchdata StatefulDataLoader."""
    return isinstance(value, dict) and bool(value.keys() & {"_snapshot", "_num_yielded"})
