"""The recorder: what a trainer tells about each step, made durable line by line.

A `record()` that has returned survives SIGKILL of the trainer: it is one `os.write` to a file opened for
appending. Neither torch nor numpy is imported here, so that any Python program can be recorded.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import platform
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from labassist.errors import CheckpointError, InputError
from labassist.ledger.canonical import encode_number
from labassist.record import protocol
from labassist.record.protocol import Order, Resume

Number = int | float

STOP_AHEAD = 8
"""Steps from a request to the stop of several ranks: they are never further apart than one, so all see it in time."""


def start(
    *,
    total_steps: int,
    tokens_per_step: int = 0,
    parameters: int = 0,
    measured: Sequence[str] = (),
    order: Order | None = None,
    **more: Any,
) -> Recorder:
    """Begin recording: write `hello` and listen for SIGTERM and SIGINT.

    Call it when the model is built and before the first step. `total_steps` are optimizer updates,
    `tokens_per_step` all tokens of one update over all ranks, `parameters` the trained ones. `measured`
    names series that a clock makes (`tokens_per_s`, `*_ms`; `*` for all): a replay does not compare them. `order` is what
    `read_order` gave, read here if the job has not; `more` is kept with the hello. Without LABASSIST_RUN_DIR
    nothing is recorded, and one line on stderr says so. Raises LedgerError for a bad order, InputError if the run folder
    already holds a curve.
    """
    order = order or protocol.read_order()
    recorder = Recorder(order, total_steps)
    if order.folder is None:
        print(
            "labassist: training unrecorded (start it with `labassist run` to keep a record)", file=sys.stderr
        )
        return recorder
    order.write_event(
        "hello",
        {
            "protocol": protocol.PROTOCOL,
            "pid": os.getpid(),
            "total_steps": total_steps,
            "tokens_per_step": tokens_per_step,
            "parameters": parameters,
            "resumed_step": recorder.step,
            **({"measured": list(measured)} if measured else {}),
            **_surroundings(),
            **more,
        },
    )
    return recorder


class Recorder:
    """One trainer's record. Made by `start`; `step` is the last step it was told about."""

    def __init__(self, order: Order, total_steps: int) -> None:
        self.order = order
        self.total_steps = total_steps
        self.step = order.resume.step if order.resume else 0
        self.nonfinite = ""
        """The first series that was not finite, as `loss at step 41`; empty while all are."""
        self.before_seal: list[Callable[[], None]] = []
        """Called before a checkpoint or the end: writers that lag behind put down what they hold."""
        self._began = time.monotonic()
        self._seen: dict[str, tuple[str, int]] = {}
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._file = self._open_curve() if order.recording else -1
        self._saver: Any = None
        self.asked = 0
        """The signal that asked for the end; 0 while none has."""
        self._agreed: int | None = None
        self._listen()

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, nested."""
        return self.order.config

    @property
    def mode(self) -> str:
        """`exact` or `fast`."""
        return self.order.mode

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.order.seed

    @property
    def threads(self) -> int:
        """Intra-op threads; 0 leaves the choice to torch."""
        return self.order.threads

    @property
    def resume(self) -> Path | None:
        """The checkpoint folder to go on from, or None at a start."""
        return self.order.resume.path if self.order.resume else None

    @property
    def stop_requested(self) -> bool:
        """Whether to save and finish now: a signal asked, or the order's last step is reached."""
        stop = self.stop_at
        return stop is not None and self.step >= stop

    @property
    def stop_at(self) -> int | None:
        """The step after which to save and finish, None while there is none: the order's, or one that was asked for."""
        stops = [stop for stop in (self.order.stop_after, self._asked_stop()) if stop is not None]
        return min(stops, default=None)

    def _asked_stop(self) -> int | None:
        """Return the step at which a request stops the run. Several ranks agree on one by a file that rank 0 writes."""
        if protocol.world_size() == 1 or self.order.folder is None:
            return self.step if self.asked else None
        if self._agreed is None:
            agreed = self.order.folder / "stop-at"
            if agreed.exists():
                self._agreed = int(agreed.read_text())
            elif self.asked and protocol.rank() == 0:
                partial = agreed.with_suffix(".tmp")
                partial.write_text(str(self.step + STOP_AHEAD))
                partial.replace(agreed)
        return self._agreed

    def record(self, step: int, **values: Number | str) -> None:
        """Append one line to the curve: host numbers, and digests as strings of 16 hex digits.

        `step` counts from 1. Steps of one series must rise; a repeated one, a value that is not a number,
        or a string in a series that is neither `batch` nor `*_digest` raises InputError. A full disk ends
        the program with one line and status 1, with all earlier lines whole.
        """
        self.record_at(self.clock(), step, values)

    def clock(self) -> float:
        """Return the seconds since the run began, as the curve's `t` has them."""
        return time.monotonic() - self._began

    def record_at(self, t: float, step: int, values: Mapping[str, Number | str]) -> None:
        """Append one line, as `record` does, of what was computed at `t` seconds: for whoever writes late."""
        parts = [f'{{"step": {step}, "t": {t:.3f}']
        seen = self._seen
        for name, value in values.items():
            key, last = seen.get(name) or self._new_series(name, value)
            if step <= last:
                raise InputError(
                    f"the series {name!r} was recorded at step {last} and now again at step {step}",
                    where="record()",
                    mend="record each series once a step, in rising order",
                )
            parts.append(key + (repr(value) if type(value) is int else self._text(name, value, step)))
            seen[name] = (key, step)
        if step > self.step:
            self.step = step
        if self._file >= 0:
            self._append(("".join(parts) + "}\n").encode())

    def input(self, name: str, path: str | Path, split: Mapping[str, Any] | None = None) -> Path:
        """Say that the trainer reads a data file, and return the path to open; see `Order.input`."""
        return self.order.input(name, path, split)

    def save(self, step: int, states: Mapping[str, Any]) -> None:
        """Take a checkpoint of `states` (and of every RNG); files are written in the background.

        A state is an object with `state_dict()`, a plain structure of tensors and Python values, or None
        where the job has no such thing (a scaler outside fp16). The names that a complete checkpoint has
        are model, optimizer, scheduler, scaler and data_position. Returns when all is copied to host
        memory; at most one save is in flight. Raises CheckpointError if this or an earlier save failed.
        Every rank must call it: the RNG of all of them is kept.
        """
        if not self.order.recording:
            return
        self._checkpoints().save(step, states, self.seal())

    def seal(self) -> dict[str, dict[str, Any]]:
        """Write what lags behind, and return the seal of the curve so far."""
        self._flush()
        return self._seal()

    def saved(self, event: dict[str, Any]) -> None:
        """Say that a checkpoint is whole, once the curve up to it is durable. Any thread may call it."""
        os.fsync(self._file)
        self.order.write_event("checkpoint", event, durable=True)

    def restore(self, states: Mapping[str, Any]) -> int:
        """Load the checkpoint of the order into `states` and the RNGs, and return its step (0: none).

        Each object gets `load_state_dict`; None is passed over. States named in the order's `drop` are
        left as they are, and a line says so. Raises CheckpointError for a torn or incomplete checkpoint.
        """
        resume = self.order.resume
        if resume is None:
            return 0
        from labassist.record import checkpoint

        kept = checkpoint.load(resume.path)
        for name in resume.drop:
            print(f"labassist: resuming without the state {name}, as ordered", file=sys.stderr)
        for name, owner in states.items():
            if owner is not None and name not in resume.drop:
                owner.load_state_dict(_state(kept, name, resume))
        if "rng" not in resume.drop:
            checkpoint.restore_rng(_state(kept, "rng", resume))
        return resume.step

    def wait(self) -> None:
        """Wait until no save is in flight. Raises CheckpointError if it failed."""
        if self._saver:
            self._saver.wait()

    def finish(self, step: int, why: str = "done") -> None:
        """Seal the curve and write `finish`. `why` is `done`, `stop` when stopped before the end, or why it failed."""
        self._flush()
        self.wait()
        if self._file >= 0:
            os.fsync(self._file)
        self.order.write_event("finish", {"step": step, "why": why, "curve": self._seal()}, durable=True)

    def _text(self, name: str, value: Any, step: int) -> str:
        if type(value) is str:
            return f'"{_checked_digest(name, value)}"'
        if not isinstance(value, int | float):
            raise InputError(
                f"the series {name!r} got a {type(value).__name__} at step {step}",
                where="record()",
                mend=f"give a host number: {name}=float(value)",
            )
        value = float(value) if isinstance(value, float) else int(value)
        if isinstance(value, float) and not math.isfinite(value):
            self.nonfinite = self.nonfinite or f"{name} at step {step}"
            return f'"{encode_number(value)}"'
        return repr(value)

    def _new_series(self, name: str, value: Any) -> tuple[str, int]:
        if name in ("step", "t"):
            raise InputError(
                f"a series cannot be called {name!r}", where="record()", mend="choose another name"
            )
        if (name == "batch" or name.endswith("_digest")) and type(value) is not str:
            raise InputError(f"the series {name!r} is a digest", where="record()", mend="use record.digest()")
        return f", {json.dumps(name)}: ", -1

    def _append(self, line: bytes) -> None:
        try:
            protocol.write_whole(self._file, line)
        except OSError as error:
            os.ftruncate(self._file, self._bytes)
            sys.exit(
                f"labassist: {self._path}: cannot write the curve: {error.strerror}; "
                "free some space, then `labassist resume` goes on from the last checkpoint"
            )
        self._hash.update(line)
        self._bytes += len(line)

    def _seal(self) -> dict[str, dict[str, Any]]:
        if self._file < 0:
            return {}
        return {self._path.name: {"bytes": self._bytes, "sha256": self._hash.hexdigest()}}

    def _open_curve(self) -> int:
        assert self.order.folder is not None
        self._path = self.order.folder / protocol.metrics_file(protocol.rank())
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if os.fstat(descriptor).st_size:
            os.close(descriptor)
            raise InputError(
                "this run already has a curve",
                where=str(self._path),
                mend="start a new run, or resume this one",
            )
        return descriptor

    def _checkpoints(self) -> Any:
        if self._saver is None:
            from labassist.record.checkpoint import Saver

            assert self.order.folder is not None
            self._saver = Saver(self.order.folder, self.order.run, self.saved)
        return self._saver

    def _flush(self) -> None:
        for flush in self.before_seal:
            flush()

    def _listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            earlier = signal.getsignal(number)
            if earlier != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.asked:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.asked = number


def digest(indices: Any) -> str:
    """Return the digest of a batch: 16 hex digits of SHA-256 over its numbers as little-endian int64.

    `indices` is a torch tensor, a numpy array, an `array('q')` or any iterable of ints; tensors on a GPU
    are fetched, so digest the indices where they are drawn.
    """
    if hasattr(indices, "data_ptr"):
        indices = indices.detach().cpu().long().contiguous()
        data = ctypes.string_at(indices.data_ptr(), indices.numel() * 8)
    elif hasattr(indices, "astype"):
        data = indices.astype("<i8").tobytes()
    else:
        numbers = indices if isinstance(indices, array) and indices.typecode == "q" else array("q", indices)
        data = numbers.tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def _checked_digest(name: str, value: str) -> str:
    if name != "batch" and not name.endswith("_digest"):
        raise InputError(
            f"the series {name!r} got the string {value[:20]!r}",
            where="record()",
            mend="give a number, or end the name of a digest in _digest",
        )
    if len(value) != 16 or value.strip("0123456789abcdef"):
        raise InputError(
            f"{value[:20]!r} is not a digest of 16 hex digits", where="record()", mend="use record.digest()"
        )
    return value


def _state(kept: dict[str, Any], name: str, resume: Resume) -> Any:
    if kept.get(name) is None:
        raise CheckpointError(
            f"the checkpoint holds no {name} state",
            where=str(resume.path),
            mend="resume from a complete checkpoint",
        )
    return kept[name]


def _surroundings() -> dict[str, Any]:
    """Return flags, versions and RNG digests as this process has them; torch only where it is loaded."""
    if "torch" not in sys.modules:
        return {"flags": {}, "versions": {"python": platform.python_version()}, "rng": {}}
    from labassist.record import determinism

    return {
        "flags": determinism.read_back(),
        "versions": determinism.versions(),
        "rng": determinism.rng_digests(),
    }
