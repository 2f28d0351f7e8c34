"""What stands in a pickle that was read and not run: names, calls, and tensors whose bytes are still in the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from labassist.record import inspect

DTYPES = {**inspect.DTYPES, "complex128": "C128"}
"""torch's name of a data type -> ours; safetensors has none for the last."""
SIZES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "C64": 8,
    "C128": 16,
}
"""Bytes of one element, by data type."""


class Global(NamedTuple):
    """A name that the pickle would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Obj:
    """What a call or a class instance would have been. `state` is what BUILD gave it."""

    what: Any
    args: Any = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)
    pairs: dict[Any, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The class or function, without its module."""
        return self.what.name if isinstance(self.what, Global) else ""

    def get(self, key: str, default: Any = None) -> Any:
        """Return an attribute out of the state, be it a dict or a pair (dict, slots)."""
        for part in self.state if isinstance(self.state, tuple) else (self.state, self.pairs):
            if isinstance(part, dict) and key in part:
                return part[key]
        return default


class Storage(NamedTuple):
    """The bytes of one or more tensors: `elements` elements of `dtype`, kept under `key` in the file."""

    dtype: str
    key: str
    elements: int


class Tensor(NamedTuple):
    """A tensor that was not loaded. `offset` is its first element in the storage."""

    dtype: str
    shape: tuple[int, ...]
    storage: Storage | None = None
    offset: int = 0

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.numel * SIZES.get(self.dtype, 1)
