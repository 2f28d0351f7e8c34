"""Counts the bytes of live tensors as CUDA's caching allocator would, while a step runs on fake tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ALIGNMENT = 512
"""The allocator rounds every request up to this many bytes (kMinBlockSize, c10/cuda/CUDACachingAllocator)."""

Event = tuple[int, int]
"""(storage number, bytes): allocated where the bytes are positive, freed where they are negative."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, follows every storage that an operator returns until it is freed.

    `now` and `peak` are bytes; `events` is the whole trace, for the allocator's simulation. Memory that a
    kernel takes and gives back by itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self.events: list[Event] = []
        self._live: dict[int, weakref.ref[Any]] = {}
        self._count = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and look at the storages of what it returns."""
        if func is torch.ops.aten.add.Tensor and _sums_gradients(args):
            return args[0]
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.take(leaf)
        return result

    def take(self, tensor: torch.Tensor) -> None:
        """Count the tensor's storage, unless it is counted already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        size = -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
        if not size:
            return
        self._count += 1
        number = self._count

        def gone(_: Any) -> None:
            del self._live[key]
            self.now -= size
            self.events.append((number, -size))

        self._live[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)
        self.events.append((number, size))


def _sums_gradients(args: Any) -> bool:
    """Say whether autograd adds the second gradient of a shared weight to the first.

    It does so in place where nobody else holds the first, which it cannot see of a tensor that a mode looks at.
    """
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
        return False
    first, second = args[0], args[1]
    both = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    return both and first.dim() == 2 and first.shape == second.shape
