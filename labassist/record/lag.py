"""Recording values that are still being computed on a GPU, without waiting for it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labassist.record.recorder import Recorder

LAG = 8
"""Steps that may be unwritten while a GPU works: so many can be lost by a kill, never one of a CPU run."""


class Lagged:
    """Writes each step's values to the recorder `lag` steps later, when the GPU has long finished them.

    Values are 0-dim tensors or host numbers. With no CUDA tensor among them they are written at once.
    Those on a GPU are gathered into one vector, copied to pinned memory behind the running kernels, and
    read when the copy's event has passed. Checkpoints and the end write everything first.
    """

    def __init__(self, recorder: Recorder, lag: int = LAG) -> None:
        self.recorder = recorder
        self.lag = lag
        self._waiting: deque[tuple[int, dict[str, Any], list[str], Any, Any]] = deque()
        recorder.before_seal.append(self.flush)

    def record(self, step: int, **values: Any) -> None:
        """Record `values` at `step`, now or `lag` steps later."""
        host = {name: value for name, value in values.items() if not hasattr(value, "is_cuda")}
        device = {name: value.detach() for name, value in values.items() if name not in host}
        self.recorder.step = step
        if not any(value.is_cuda for value in device.values()):
            self.recorder.record(step, **host, **{name: value.item() for name, value in device.items()})
            return
        import torch

        vector = torch.stack([value.double() for value in device.values()])
        pinned = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
        pinned.copy_(vector, non_blocking=True)
        cuda: Any = torch.cuda
        copied = cuda.Event()
        copied.record()
        self._waiting.append((step, host, list(device), pinned, copied))
        while len(self._waiting) > self.lag:
            self._write_oldest()

    def flush(self) -> None:
        """Wait for and write all that is held."""
        while self._waiting:
            self._write_oldest()

    def _write_oldest(self) -> None:
        step, host, names, pinned, copied = self._waiting.popleft()
        copied.synchronize()
        self.recorder.record(step, **host, **dict(zip(names, pinned.tolist(), strict=True)))
