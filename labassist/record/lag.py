"""Recording values that are still being computed on a GPU, without waiting for it."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labassist.record.recorder import Recorder

LAG = 8
"""Steps that may be unwritten while a GPU works: so many can be lost by a kill, never one of a CPU run."""


class Pieces:
    """Tensors that a digest is made of, each copied or hashed when it is added: it may change after."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []

    def add(self, tensor: Any) -> None:
        """Take a tensor as it is now: on a GPU by a copy behind the running kernels, else by its digest."""
        if not tensor.is_cuda:
            self._pieces.append(_digest_of(tensor))
            return
        import torch

        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._pieces.append(pinned.copy_(tensor, non_blocking=True))

    def add_text(self, text: str) -> None:
        """Take something that is no tensor."""
        self._pieces.append(hashlib.sha256(text.encode()).hexdigest())

    def digest(self) -> str:
        """Return the digest, 16 hex digits; of several pieces that of their digests. The copies must be done."""
        digests = [one if isinstance(one, str) else _digest_of(one) for one in self._pieces]
        if len(digests) == 1:
            return digests[0][:16]
        return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def _digest_of(tensor: Any) -> str:
    global _digest
    if _digest is None:  # torch is loaded by now, and was not when this module was
        from labassist.record.tensors import digest_of

        _digest = digest_of
    return _digest(tensor)


_digest: Callable[[Any], str] | None = None


class Lagged:
    """Writes each step's values to the recorder `lag` steps later, when the GPU has long finished them.

    Values are 0-dim tensors, host numbers, digests or the Pieces of one. With no CUDA tensor among them they are written at once.
    Those on a GPU are gathered into one vector, copied to pinned memory behind the running kernels, and
    read when the copy's event has passed. Checkpoints and the end write everything first.
    """

    def __init__(self, recorder: Recorder, lag: int = LAG) -> None:
        self.recorder = recorder
        self.lag = lag
        self._waiting: deque[tuple[float, int, dict[str, Any], list[str], Any, Any]] = deque()
        recorder.before_seal.append(self.flush)

    def record(self, step: int, **values: Any) -> None:
        """Record `values` at `step`, now or `lag` steps later."""
        host, device, waits = {}, {}, False
        for name, value in values.items():
            if hasattr(value, "is_cuda"):
                device[name] = value
                waits = waits or value.is_cuda
            else:
                host[name] = value
        self.recorder.step = step
        # A step's time is when it was handed in: a flush would give all that it writes the same one.
        t = self.recorder.clock()
        if not waits:
            self._write(t, step, {**host, **{name: value.item() for name, value in device.items()}})
            return
        import torch

        vector = torch.stack([value.detach().double() for value in device.values()])
        pinned = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
        pinned.copy_(vector, non_blocking=True)
        cuda: Any = torch.cuda
        copied = cuda.Event()
        copied.record()
        self._waiting.append((t, step, host, list(device), pinned, copied))
        while len(self._waiting) > self.lag:
            self._write_oldest()

    def flush(self) -> None:
        """Wait for and write all that is held."""
        while self._waiting:
            self._write_oldest()

    def _write_oldest(self) -> None:
        t, step, host, names, pinned, copied = self._waiting.popleft()
        copied.synchronize()
        self._write(t, step, {**host, **dict(zip(names, pinned.tolist(), strict=True))})

    def _write(self, t: float, step: int, values: dict[str, Any]) -> None:
        known = {
            name: value.digest() if isinstance(value, Pieces) else value for name, value in values.items()
        }
        self.recorder.record_at(t, step, known)
