"""PyTorch's distributed checkpoints (DCP), and torchtitan's: `.metadata` and `__<rank>_<n>.distcp`.

`.metadata` is written last, so it is the commit marker. It is a pickle of
torch.distributed.checkpoint.metadata.Metadata: what each name is, and in which bytes of which file each part
of it lies. Each part is a little file of torch.save of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labassist.resume import torchfile
from labassist.resume.description import Description, Moments, Weights
from labassist.resume.pickled import DTYPES, Global, Obj, Tensor
from labassist.resume.reading import Reader
from labassist.resume.torchfile import Torn

NAME = "dcp"
METADATA = ".metadata"
_PART = re.compile(r"__(\d+)_(\d+)\.distcp")
_BEGINNINGS = {
    "optimizer": ("optimizer", "optim"),
    "scheduler": ("lr_scheduler", "scheduler"),
    "scaler": ("scaler", "grad_scaler"),
    "rng": ("rng", "random_state"),
    "data_position": ("dataloader", "data_loader", "loader", "sampler"),
}


def detect(path: Path) -> bool:
    """Say whether this is a folder of DCP, complete or not."""
    return path.is_dir() and ((path / METADATA).is_file() or any(path.glob("__*_*.distcp")))


def read(path: Path, verify: bool) -> Description:
    """Return what a DCP folder holds."""
    found = Description(NAME, path)
    reader = Reader(found, verify)
    if not (path / METADATA).is_file():
        found.add(
            "never-completed", None, path / METADATA, why=".metadata, which is written last, is not there"
        )
        found.states = dict.fromkeys(found.states, "torn")
        return found
    names = read_folder(reader, path)
    for state in ("model", "optimizer", "scheduler"):
        if found.states[state] == "absent":
            found.add(f"{'weights' if state == 'model' else state}-missing", state)
    if any(name.startswith("train_state") for name in names):
        found.format = "torchtitan"
    if found.states["rng"] == "absent":
        found.limit("rng")
    if found.states["data_position"] == "absent":
        if found.format == "torchtitan":
            found.add("data-position-missing", "data_position")
        else:
            found.limit("data_position", why="only what the script gave it is stored")
    found.mark("scaler", "not_applicable")
    return found


def read_folder(reader: Reader, path: Path, only: str = "") -> set[str]:
    """Read a DCP folder into the reader's description and return its names; `only` is the state it is for."""
    found = reader.found
    loaded = reader.torch(path / METADATA, only or "model")
    metadata = loaded.value if loaded else None
    if not isinstance(metadata, Obj):
        if loaded:
            found.mark("model", "torn")
            found.add("file-torn", "model", path / METADATA, why="it holds no metadata")
        for state in found.states if not only else ():
            found.mark(state, "torn")
        return set()
    described = metadata.get("state_dict_metadata") or {}
    stored = metadata.get("storage_data") or {}
    states = {str(name): only or _state_of(str(name)) for name in described}
    for state in set(states.values()) - {""}:
        found.mark(state, "present")
    tensors = {str(name): tensor for name, item in described.items() if (tensor := _tensor(item))}
    if not only or only == "model":
        found.weights = Weights({name: t for name, t in tensors.items() if states[name] == "model"})
    _parts(reader, path, stored, states)
    _numbers(reader, path, stored, tensors)
    return set(states)


def _state_of(name: str) -> str:
    """Return the state that a name belongs to; nothing for the trainer's own counters."""
    first = name.partition(".")[0]
    for state, beginnings in _BEGINNINGS.items():
        if first in beginnings:
            return state
    return "" if first in ("train_state", "trainer_state", "step", "epoch") else "model"


def _tensor(item: Any) -> Tensor | None:
    if not isinstance(item, Obj) or item.name != "TensorStorageMetadata":
        return None
    size, properties = item.get("size"), item.get("properties")
    state = properties.state if isinstance(properties, Obj) else None
    values = state if isinstance(state, tuple) else tuple(state.values()) if isinstance(state, dict) else ()
    dtypes = [value.name for value in values if isinstance(value, Global) and value.name in DTYPES]
    return Tensor(DTYPES[dtypes[0]] if dtypes else "F32", size if isinstance(size, tuple) else ())


def _place(index: Any, info: Any) -> tuple[str, str, int, int] | None:
    """Return name, file, first byte and size of one stored part."""
    if not isinstance(index, Obj) or not isinstance(info, Obj):
        return None
    name, file = index.get("fqn"), info.get("relative_path")
    begin, size = info.get("offset"), info.get("length")
    if isinstance(name, str) and isinstance(file, str) and isinstance(begin, int) and isinstance(size, int):
        return name, file, begin, size
    return None


def _parts(reader: Reader, path: Path, stored: Mapping[Any, Any], states: dict[str, str]) -> None:
    """Look at every file that the metadata names: is it there, is it long enough, is each part whole."""
    found = reader.found
    files: dict[str, list[tuple[str, int, int]]] = {}
    for index, info in stored.items():
        place = _place(index, info)
        if place:
            files.setdefault(place[1], []).append((place[0], place[2], place[3]))
    ranks = [int(match[1]) for file in files if (match := _PART.fullmatch(file))]
    found.world_size = max(found.world_size or 1, max(ranks, default=0) + 1)
    for file, parts in sorted(files.items()):
        match = _PART.fullmatch(file)
        rank = int(match[1]) if match else None
        target = path / file
        touched = {states.get(name, "") for name, _, _ in parts} - {""}
        first = min(touched, default=None)
        if not target.resolve().is_relative_to(path.resolve()) or not target.is_file():
            found.add("rank-file-missing", first, target, rank)
        elif target.stat().st_size < max(begin + size for _, begin, size in parts):
            found.add("file-torn", first, target, rank, why="it is shorter than .metadata says")
        else:
            for name, begin, size in parts:
                _part(reader, target, rank, states.get(name) or None, name, (begin, size))
            continue
        for state in touched:
            found.mark(state, "torn")


def _part(
    reader: Reader, file: Path, rank: int | None, state: str | None, name: str, span: tuple[int, int]
) -> None:
    """Read one part's pickle, for what it would import, and with checksums where they are wanted."""
    try:
        loaded = torchfile.read(file, verify=reader.verify, begin=span[0], size=span[1])
    except Torn as error:
        reader.names(error.globals, file, state, rank)
        if state:
            reader.found.mark(state, "torn")
        if error.crc:
            reader.found.add("crc-mismatch", state, file, rank, member=name)
        else:
            reader.found.add("file-torn", state, file, rank, why=f"{name}: {error}")
        return
    reader.names(loaded.globals, file, state, rank)


def _numbers(reader: Reader, path: Path, stored: Mapping[Any, Any], tensors: dict[str, Tensor]) -> None:
    """Read the step counters: the trainer's, the schedule's and the optimizer's."""
    found = reader.found
    steps: list[float] = []
    weights: set[str] = set()
    size = 0
    for name, tensor in tensors.items():
        if name.startswith(("optimizer.state.", "optim.state.")):
            weights.add(name.split(".state.", 1)[1].rpartition(".")[0])
            size += tensor.bytes
    for index, info in stored.items():
        place = _place(index, info)
        if not place or not (path / place[1]).is_file():
            continue
        name, last = place[0], place[0].rpartition(".")[2]
        if last == "last_epoch" and name.startswith(("lr_scheduler", "scheduler")):
            found.scheduler_step = _int(_value(path, place))
        elif name == "train_state.step":
            found.step = _int(_value(path, place))
        elif last == "step" and name.startswith("optimizer.state."):
            value = _value(path, place)
            steps += [float(value)] if isinstance(value, int | float) else []
    if weights:
        found.moments = Moments(0, len(weights), steps, bytes=size)
    if found.step is None and (named := re.fullmatch(r"step-(\d+)", path.name)):
        found.step = int(named[1])


def _value(path: Path, place: tuple[str, str, int, int]) -> Any:
    """Return a stored number, be it a plain one or a tensor; None where it cannot be read."""
    try:
        loaded = torchfile.read(path / place[1], verify=False, begin=place[2], size=place[3])
        if isinstance(loaded.value, Tensor):
            numbers = loaded.numbers([loaded.value])
            return numbers[0] if numbers else None
    except Torn:
        return None  # the part is reported where every part is looked at
    return loaded.value


def _int(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None
