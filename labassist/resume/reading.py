"""Read the files of a checkpoint; what cannot be read becomes a finding and marks its state as torn."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from labassist.errors import CheckpointError
from labassist.record.inspect import read_header
from labassist.resume import torchfile
from labassist.resume.allow import trust
from labassist.resume.codes import Severity
from labassist.resume.description import Description, Moments, Weights
from labassist.resume.pickled import SIZES, Global, Obj, Tensor
from labassist.resume.torchfile import Loaded, Torn

MAX_JSON_BYTES = 64 << 20
NARROW = ("F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
"""Data types that safetensors knows and a torch checkpoint has no name for here."""


class Reader:
    """Reads for one description. With `verify` the checksums that files have are compared."""

    def __init__(self, description: Description, verify: bool) -> None:
        self.found = description
        self.verify = verify
        self._reported: set[tuple[Path, Global]] = set()

    def json(self, path: Path, state: str | None = None) -> Any:
        """Return a JSON file's value, None (with a finding) where it is torn."""
        if self._empty(path, state):
            return None
        try:
            if path.stat().st_size > MAX_JSON_BYTES:
                raise ValueError("it is too large")
            # As the frameworks read it: in UTF-8, without a byte-order mark.
            return json.loads(path.read_bytes().decode())
        except (ValueError, RecursionError) as error:
            self._torn(state)
            self.found.add("json-torn", state, path, why=_short(error))
        except OSError as error:
            self._unreadable(error, path, state)
        return None

    def json_table(self, path: Path, state: str | None = None) -> dict[str, Any] | None:
        """Return a JSON object, None (with a finding) where the file holds no object."""
        before = len(self.found.findings)
        value = self.json(path, state)
        if isinstance(value, dict):
            return value
        if len(self.found.findings) == before:
            self._torn(state)
            self.found.add("json-torn", state, path, why="it holds no object")
        return None

    def torch(self, path: Path, state: str | None = None, rank: int | None = None) -> Loaded | None:
        """Return what a file of torch.save holds, None (with a finding) where it is torn."""
        if self._empty(path, state, rank):
            return None
        try:
            loaded = torchfile.read(path, verify=self.verify)
        except Torn as error:
            self._torn(state)
            self.names(error.globals, path, state, rank)
            if error.crc:
                self.found.add("crc-mismatch", state, path, rank, member=error.member)
            else:
                why = f"{error} ({error.member})" if error.member else str(error)
                self.found.add("file-torn", state, path, rank, why=why)
            return None
        except OSError as error:
            self._unreadable(error, path, state, rank)
            return None
        self.names(loaded.globals, path, state, rank)
        return loaded

    def safetensors(self, path: Path, state: str = "model") -> dict[str, Tensor] | None:
        """Return the tensors that a safetensors file's header names, None (with a finding) where it is torn."""
        if self._empty(path, state):
            return None
        try:
            entries = read_header(path)
            for at, entry in enumerate(entries):
                if entry.dtype not in SIZES and entry.dtype not in NARROW:
                    raise CheckpointError(f"the tensor {entry.name} is of no known data type: {entry.dtype}")
                tensor = Tensor(entry.dtype, entry.shape)
                size = tensor.bytes if entry.dtype in SIZES else entry.end - entry.begin
                if entry.end - entry.begin != size:
                    raise CheckpointError(f"the size of the tensor {entry.name} does not fit its shape")
                if at and entry.begin != entries[at - 1].end:
                    raise CheckpointError(f"the tensor {entry.name} overlaps another, or leaves a gap")
        except CheckpointError as error:
            if isinstance(error.__cause__, OSError):
                self._unreadable(error.__cause__, path, state)
                return None
            self._torn(state)
            self.found.add("file-torn", state, path, why=error.what)
            return None
        return {entry.name: Tensor(entry.dtype, entry.shape) for entry in entries}

    def weights(self, folder: Path, stems: Iterable[str], *, adapter: bool = False) -> Weights | None:
        """Return the model's tensors from `<stem>.safetensors`, `<stem>.bin`, or an index and its shards."""
        for stem in stems:
            for suffix in (".safetensors", ".bin"):
                single, index = folder / f"{stem}{suffix}", folder / f"{stem}{suffix}.index.json"
                if index.is_file():
                    return self._sharded(index, adapter)
                if single.is_file():
                    tensors = self._tensors(single)
                    if tensors is None:
                        return None
                    self.found.mark("model", "present")
                    return Weights(tensors, adapter)
        return None

    def _tensors(self, path: Path) -> dict[str, Tensor] | None:
        if path.suffix == ".safetensors":
            return self.safetensors(path)
        loaded = self.torch(path, "model")
        return None if loaded is None else named_tensors(loaded.value)

    def _sharded(self, index: Path, adapter: bool) -> Weights | None:
        table = self.json_table(index, "model")
        if table is None:
            return None
        mapping = table.get("weight_map")
        if not isinstance(mapping, dict):
            self._torn("model")
            self.found.add("json-torn", "model", index, why="it has no weight_map")
            return None
        tensors: dict[str, Tensor] = {}
        for shard in sorted({str(name) for name in mapping.values()}):
            promised = {name for name, file in mapping.items() if file == shard}
            path = index.parent / shard
            if not path.is_file():
                self._torn("model")
                self.found.add("shard-missing", "model", index, shard=shard)
                continue
            held = self._tensors(path)
            if held is None:
                continue
            if held.keys() != promised:
                name = min(held.keys() ^ promised)
                side = "the index" if name in held else shard
                self.found.mark("model", "inconsistent")
                self.found.add("shard-unlisted", "model", path, why=f"{side} lacks {name}")
            tensors |= held
        self.found.mark("model", "present")
        return Weights(tensors, adapter)

    def moments(self, loaded: Loaded, value: Any) -> Moments | None:
        """Return the summary of `optimizer.state_dict()`, None where the value is none or its steps are torn."""
        try:
            return moments(loaded, value)
        except Torn as error:
            self._torn("optimizer")
            self.found.add("file-torn", "optimizer", loaded.place.path, why=str(error))
            return None

    def optimizer(self, path: Path, loaded: Loaded) -> Moments | None:
        """Note the optimizer of a file that holds nothing else; what no optimizer could load is torn."""
        value = loaded.value
        parts = (value.get("state"), value.get("param_groups")) if isinstance(value, dict) else ()
        if parts and isinstance(parts[0], dict) and isinstance(parts[1], list):
            self.found.mark("optimizer", "present")
            return self.moments(loaded, value)
        self._torn("optimizer")
        self.found.add("file-torn", "optimizer", path, why="it lacks an optimizer's state and param_groups")
        return None

    def rng(self, path: Path, rank: int, loaded: Loaded) -> None:
        """Note the digest of a rank's generators, and under which rank's name the file was written."""
        self.found.mark("rng", "present")
        try:
            self.found.rng[rank] = loaded.digest(loaded.value)
        except Torn as error:
            self._torn("rng")
            self.found.add("file-torn", "rng", path, rank, why=str(error))
        self.origin("rng", rank, loaded.root.rpartition("_")[2], loaded.root != path.stem)
        if any(name.module.startswith("numpy.core.") for name in loaded.globals):
            self.found.add("rng-numpy1", "rng", path, rank, severity=_numpy1_severity())

    def origin(self, state: str, rank: int, written: str, renamed: bool) -> None:
        """Note under which rank's name a rank's file was written, where it bears another name now."""
        if renamed and written.isdigit():
            self.found.origins.setdefault(state, {})[rank] = int(written)

    def small_json(self, folder: Path, skip: Iterable[str] = ()) -> None:
        """Look at every other JSON file of a folder: an empty or cut one is a finding."""
        for path in sorted(folder.glob("*.json")):
            if path.name not in skip and path.is_file():
                self.json(path)

    def _empty(self, path: Path, state: str | None, rank: int | None = None) -> bool:
        try:
            if path.stat().st_size:
                return False
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self._torn(state)
                self.found.add("file-missing", state, path, rank, why=error.strerror)
            else:
                self._unreadable(error, path, state, rank)
            return True
        self._torn(state)
        self.found.add("file-empty", state, path, rank)
        return True

    def _unreadable(self, error: OSError, path: Path, state: str | None, rank: int | None = None) -> None:
        self._torn(state)
        self.found.add("file-unreadable", state, path, rank, why=error.strerror or str(error))

    def _torn(self, state: str | None) -> None:
        if state:
            self.found.mark(state, "torn")

    def names(self, names: Iterable[Global], path: Path, state: str | None, rank: int | None) -> None:
        """Report what a pickle would import beyond what checkpoints need, each name once a file."""
        for name in sorted(names):
            word = trust(name)
            if word != "known" and (path, name) not in self._reported:
                self._reported.add((path, name))
                if state and word == "hostile":
                    self.found.mark(state, "inconsistent")
                self.found.add(f"pickle-{word}", state, path, rank, name=str(name))


def named_tensors(value: Any, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of a state dict by their dotted names."""
    if isinstance(value, Obj):
        value = value.pairs or value.state
    found: dict[str, Tensor] = {}
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, Tensor):
                found[f"{prefix}{key}"] = item
            elif isinstance(item, Mapping):
                found |= named_tensors(item, f"{prefix}{key}.")
    return found


def moments(loaded: Loaded, value: Any) -> Moments | None:
    """Return the summary of `optimizer.state_dict()`, None where the value is none. Raises Torn."""
    if not isinstance(value, dict) or not isinstance(value.get("param_groups"), list):
        return None
    state = value.get("state")
    entries = state if isinstance(state, dict) else {}
    groups = [group for group in value["param_groups"] if isinstance(group, dict)]
    named = [group.get("params") for group in groups]
    found = Moments(sum(len(names) for names in named if isinstance(names, list)), len(entries))
    found.lacking, found.emptied = _lacking(entries, groups)
    counters: list[Tensor] = []
    for entry in entries.values():
        if not isinstance(entry, dict):
            continue
        shapes = set()
        for name, item in entry.items():
            if isinstance(item, Tensor):
                found.bytes += item.bytes
                if name in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
                    shapes.add(item.shape)
                found.eight_bit |= name in ("state1", "state2") and item.dtype == "U8"
            if name == "step":
                if isinstance(item, Tensor):
                    counters.append(item)
                elif isinstance(item, int | float):
                    found.steps.append(float(item))
        if len(shapes) == 1:
            found.shapes.update(shapes)
    found.steps += loaded.numbers(counters)
    return found


def _lacking(entries: dict[Any, Any], groups: list[dict[str, Any]]) -> tuple[int, bool]:
    """Return how many weights of Adam's kind have no moments, and whether an optimizer that keeps some holds none."""
    having = {
        key
        for key, entry in entries.items()
        if isinstance(entry, dict)
        and any(isinstance(entry[name], Tensor) for name in entry if name != "step")
    }
    lacking, stateful = 0, False
    for group in groups:
        momentum = group.get("momentum")
        stateful |= "betas" in group or (isinstance(momentum, int | float) and momentum > 0)
        names = group.get("params")
        if "betas" in group and isinstance(names, list):
            lacking += sum(1 for name in names if isinstance(name, int | str) and name not in having)
    return lacking, stateful and not having


def last_epoch(value: Any) -> int | None:
    """Return the step that a scheduler's state dict is at, None where it says none."""
    step = value.get("last_epoch") if isinstance(value, dict) else None
    return step if isinstance(step, int) else None


def _numpy1_severity() -> Severity:
    """A numpy 1 here reads its own pickles; any other, or none, is a warning."""
    try:
        return "info" if metadata.version("numpy").startswith("1.") else "warning"
    except metadata.PackageNotFoundError:
        return "warning"


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:120]
