"""PyTorch's CUDA caching allocator, simulated on a trace of allocations: what it reserves from the driver.

Follows the default settings of c10/cuda/CUDACachingAllocator.cpp (no expandable segments): requests up to 1 MiB
live in 2 MiB segments, those under 10 MiB in 20 MiB segments, larger ones in segments of their own, rounded up to
2 MiB; the best fitting free block is taken and split when more than 512 bytes (small) or 1 MiB (large) remain;
freed neighbours merge; a segment is given back only when the device is full.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

MIB = 1024**2
SMALL = MIB
SMALL_SEGMENT, MIDDLE_SEGMENT, MIDDLE_BELOW, LARGE_ROUND = 2 * MIB, 20 * MIB, 10 * MIB, 2 * MIB


def reserved(events: list[tuple[int, int]], built: int) -> int:
    """Return what is reserved after a trace of (tensor number, bytes), negative where it is freed.

    Of the first `built` events, which make the model, only what is still alive counts: a trainer loads weights
    one by one and empties the cache.
    """
    alive: dict[int, int] = {}
    for number, size in events[:built]:
        if size > 0:
            alive[number] = size
        else:
            alive.pop(number, None)
    allocator = Allocator()
    allocator.run(alive.items())
    allocator.run(events[built:])
    return allocator.reserved


class _Block:
    __slots__ = ("after", "before", "free", "order", "size")

    def __init__(self, size: int, order: int) -> None:
        self.size = size
        self.order = order
        self.free = True
        self.before: _Block | None = None
        self.after: _Block | None = None


class Allocator:
    """`reserved` and `allocated` are bytes. Nothing is given back, so what is reserved is the most that was."""

    def __init__(self) -> None:
        self.reserved = 0
        self.allocated = 0
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._blocks: dict[int, _Block] = {}
        self._taken: dict[int, tuple[_Block, bool]] = {}
        self._orders = 0

    def run(self, events: Iterable[tuple[int, int]]) -> None:
        """Replay (tensor number, bytes) events; negative bytes free the tensor."""
        for number, size in events:
            if size > 0:
                self.take(number, size)
            else:
                self.give(number)

    def take(self, number: int, size: int) -> None:
        """Allocate `size` bytes (a multiple of 512) for a tensor."""
        small = size <= SMALL
        pool = self._free[small]
        at = bisect_left(pool, (size, -1))
        block = self._blocks[pool.pop(at)[1]] if at < len(pool) else self._segment(size, small)
        rest = block.size - size
        if rest >= 512 if small else rest > MIB:
            self._split(block, size, small)
        block.free = False
        self.allocated += block.size
        self._taken[number] = (block, small)

    def give(self, number: int) -> None:
        """Free a tensor's block and merge it with free neighbours."""
        block, small = self._taken.pop(number)
        self.allocated -= block.size
        block.free = True
        for other in (block.before, block.after):
            if other is not None and other.free:
                pool = self._free[small]
                pool.pop(bisect_left(pool, (other.size, other.order)))
                self._merge(block, other)
        insort(self._free[small], (block.size, block.order))

    def _segment(self, size: int, small: bool) -> _Block:
        if small:
            whole = SMALL_SEGMENT
        elif size < MIDDLE_BELOW:
            whole = MIDDLE_SEGMENT
        else:
            whole = -(-size // LARGE_ROUND) * LARGE_ROUND
        self.reserved += whole
        return self._block(whole)

    def _block(self, size: int) -> _Block:
        self._orders += 1
        block = _Block(size, self._orders)
        self._blocks[block.order] = block
        return block

    def _split(self, block: _Block, size: int, small: bool) -> None:
        rest = self._block(block.size - size)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        block.size = size
        insort(self._free[small], (rest.size, rest.order))

    def _merge(self, block: _Block, other: _Block) -> None:
        if other is block.before:
            block.before = other.before
            if other.before is not None:
                other.before.after = block
        else:
            block.after = other.after
            if other.after is not None:
                other.after.before = block
        block.size += other.size
        del self._blocks[other.order]
