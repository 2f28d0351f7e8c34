"""States of a trainer as tensors plus a JSON skeleton, and back, without pickle.

The skeleton is JSON in which the things that JSON lacks are one-key objects:

    {"$tensor": "model/wte.weight"}    a tensor, kept in model.safetensors as wte.weight
    {"$tuple": [...]}                  a tuple
    {"$dict": [[key, value], ...]}     a dict with a key that is no string, or one that begins with $
    {"$bytes": "<base64>"}             bytes
    {"$float": "nan:7ff8000000000000"} a float that is not finite ("inf", "-inf"; NaN with its bits)

A tensor that appears twice (tied weights) is stored once and loaded as one tensor. Subclasses of dict and
tuple come back as plain ones.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from labassist.errors import CheckpointError
from labassist.ledger.canonical import decode_number, encode_number
from labassist.record.inspect import DTYPES, TENSORS_SUFFIX, read_header, tensor_hash

_DTYPES = {text: getattr(torch, name) for name, text in DTYPES.items()}
_TO_TEXT = {dtype: text for text, dtype in _DTYPES.items()}

_SMALL = 1 << 16
"""Bytes up to which a copy is quicker than a view."""


class Snapshot(NamedTuple):
    """States copied to host memory: a skeleton a state, and each state's tensors by name."""

    skeletons: dict[str, Any]
    tensors: dict[str, dict[str, torch.Tensor]]


class Written(NamedTuple):
    """What writing one safetensors file gave."""

    bytes: int
    sha256: str
    digests: dict[str, str]


def snapshot(states: Mapping[str, Any]) -> Snapshot:
    """Copy states to host memory, so that training may go on changing them.

    A value is anything built of dict, list, tuple, str, int, float, bool, bytes, None and dense tensors.
    Raises CheckpointError naming the place of anything else.
    """
    packer = _Packer()
    skeletons = {}
    for name, value in states.items():
        packer.tensors[name] = {}
        skeletons[name] = packer.pack(value, name, ())
    return Snapshot(skeletons, {name: kept for name, kept in packer.tensors.items() if kept})


class _Packer:
    def __init__(self) -> None:
        self.tensors: dict[str, dict[str, torch.Tensor]] = {}
        self._known: dict[tuple[Any, ...], str] = {}
        self._alive: list[torch.Tensor] = []

    def pack(self, value: Any, state: str, place: tuple[str, ...]) -> Any:
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"$float": encode_number(float(value))}
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._tensor(value, state, place)}
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, list | tuple):
            items = [self.pack(item, state, (*place, str(at))) for at, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        if isinstance(value, dict):
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: self.pack(item, state, (*place, key)) for key, item in value.items()}
            return {
                "$dict": [
                    [self.pack(key, state, place), self.pack(item, state, (*place, str(key)))]
                    for key, item in value.items()
                ]
            }
        raise CheckpointError(
            f"a {type(value).__name__} cannot be kept in a checkpoint",
            where="/".join((state, *place)),
            mend="give plain Python values and tensors",
        )

    def _tensor(self, tensor: torch.Tensor, state: str, place: tuple[str, ...]) -> str:
        if tensor.layout != torch.strided or tensor.dtype not in _TO_TEXT or tensor.device.type == "meta":
            raise CheckpointError(
                f"a {tensor.layout} tensor of {tensor.dtype} on {tensor.device} cannot be kept in a checkpoint",
                where="/".join((state, *place)),
                mend="keep a dense tensor",
            )
        same = (
            tensor.device,
            tensor.data_ptr() or id(tensor),
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
        )
        if same not in self._known:
            stem = name = ".".join(place) or "value"
            again = 1
            while name in self.tensors[state]:
                again += 1
                name = f"{stem}~{again}"
            self.tensors[state][name] = _to_host(tensor)
            self._known[same] = f"{state}/{name}"
            self._alive.append(tensor)  # its address must not be given to another tensor meanwhile
        return self._known[same]


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.to("cpu", copy=True, memory_format=torch.contiguous_format)


def unpack(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the value of a skeleton. `tensors` is keyed by full name, as `model/wte.weight`."""
    if isinstance(skeleton, list):
        return [unpack(item, tensors) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if len(skeleton) == 1:
        [(mark, held)] = skeleton.items()
        if mark == "$tensor":
            return tensors[held]
        if mark == "$tuple":
            return tuple(unpack(item, tensors) for item in held)
        if mark == "$dict":
            return {unpack(key, tensors): unpack(item, tensors) for key, item in held}
        if mark == "$bytes":
            return base64.b64decode(held)
        if mark == "$float":
            return decode_number(held)
    return {key: unpack(item, tensors) for key, item in skeleton.items()}


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> Written:
    """Write contiguous host tensors as a safetensors file, fsync it, and return its size and digests.

    File and tensor digests are computed while the bytes pass. Larger element sizes come first, so that
    every tensor lies aligned. Raises OSError.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in ordered:
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _TO_TEXT[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    whole, digests = hashlib.sha256(head), {}
    with path.open("wb") as file:
        file.write(head)
        for name, tensor in ordered:
            data = _bytes_of(tensor)
            file.write(data)
            whole.update(data)
            running = tensor_hash(_TO_TEXT[tensor.dtype], tuple(tensor.shape))
            running.update(data)
            digests[name] = running.hexdigest()
        file.flush()
        os.fsync(file.fileno())
    return Written(len(head) + offset, whole.hexdigest(), digests)


def digest_of(tensor: torch.Tensor) -> str:
    """Return the digest of a tensor in host memory, as manifests have it. Raises CheckpointError."""
    plain = tensor
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.layout != torch.strided or plain.dtype not in _TO_TEXT:
        raise CheckpointError(f"a {plain.layout} tensor of {plain.dtype} has no digest")
    running = tensor_hash(_TO_TEXT[plain.dtype], tuple(plain.shape))
    size = plain.numel() * plain.element_size()
    running.update(ctypes.string_at(plain.data_ptr(), size) if size < _SMALL else _bytes_of(plain))
    return running.hexdigest()


def read(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, on the CPU. Raises CheckpointError for a cut file."""
    found = {}
    entries = read_header(path)
    with path.open("rb") as file:
        for entry in entries:
            if entry.dtype not in _DTYPES:
                raise CheckpointError(
                    f"the tensor {entry.name} has the unknown dtype {entry.dtype}", where=str(path)
                )
            tensor = torch.empty(entry.shape, dtype=_DTYPES[entry.dtype])
            if tensor.numel() * tensor.element_size() != entry.end - entry.begin:
                raise CheckpointError(f"the size of the tensor {entry.name} does not fit", where=str(path))
            file.seek(entry.begin)
            file.readinto(_bytes_of(tensor))
            found[entry.name] = tensor
    return found


def read_all(folder: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of a checkpoint folder by its full name, as `model/wte.weight`."""
    return {
        f"{file.name.removesuffix(TENSORS_SUFFIX)}/{name}": tensor
        for file in sorted(folder.glob(f"*{TENSORS_SUFFIX}"))
        for name, tensor in read(file).items()
    }


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous host tensor; valid while the tensor lives."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")
