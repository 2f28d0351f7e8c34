"""Describe the checkpoints that a Hugging Face Trainer writes, so that they can be verified and compared.

The Trainer keeps its folder `checkpoint-<N>` where its script wants it. Beside the run's own files a
manifest says what it holds: every file's SHA-256 and every tensor's digest, computed by a thread while
training goes on. The manifest comes last and in one piece: where it is, the checkpoint was whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from labassist.errors import CheckpointError
from labassist.ledger.canonical import dumps, encode_number
from labassist.record import protocol
from labassist.record.durable import replace_file, sync_folder
from labassist.record.inspect import (
    FOREIGN,
    FOREIGN_SUFFIX,
    TENSORS_SUFFIX,
    VERSION,
    file_digests,
    state_name,
    workspace_of,
)

_PICKLED = (".pt", ".pth", ".bin")


class Sealer:
    """Seals the checkpoints of one run, one at a time. `on_sealed` gets each event, on the thread."""

    def __init__(self, run_folder: Path, run: str, on_sealed: Callable[[dict[str, Any]], None]) -> None:
        self.run_folder = run_folder
        self.run = run
        self.on_sealed = on_sealed
        self._thread: threading.Thread | None = None

    def seal(self, step: int, folder: Path, event: dict[str, Any]) -> None:
        """Begin to seal the checkpoint in `folder`; `event` holds what the training thread knows of it."""
        self.wait()
        self._thread = threading.Thread(target=self._seal, args=(step, folder, event), name=f"seal-{step}")
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is in flight: the Trainer may delete its checkpoints after that."""
        if self._thread:
            self._thread.join()
            self._thread = None

    def _seal(self, step: int, folder: Path, event: dict[str, Any]) -> None:
        try:
            manifest = self._manifest(step, folder)
            name = protocol.checkpoint_name(step) + FOREIGN_SUFFIX
            data = json.dumps(manifest, allow_nan=False).encode() + b"\n"
            place = self.run_folder / protocol.CHECKPOINTS
            place.mkdir(exist_ok=True)
            replace_file(place / name, data)
        except (OSError, CheckpointError) as error:
            # Training goes on: what is lost is the promise about this checkpoint, and this line says so.
            print(f"labassist: checkpoint {folder} is not sealed: {error}", file=sys.stderr)
            return
        self.on_sealed(
            {
                **event,
                "step": step,
                "path": f"{protocol.CHECKPOINTS}/{name}",
                "manifest": hashlib.sha256(data).hexdigest(),
                "bytes": sum(file["bytes"] for file in manifest["files"].values()),
                "tensors": len(manifest["tensors"]),
            }
        )

    def _manifest(self, step: int, folder: Path) -> dict[str, Any]:
        folder = folder.resolve()
        workspace = workspace_of(self.run_folder)
        inside = folder.is_relative_to(workspace)
        files: dict[str, dict[str, Any]] = {}
        tensors: dict[str, str] = {}
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = path.relative_to(folder)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())  # the Trainer leaves that to the system
            files[name.as_posix()] = {"bytes": path.stat().st_size, "sha256": digest}
            for tensor, value in _digests(path):
                tensors[f"{state_name(name)}/{tensor}"] = value
        sync_folder(folder)
        sync_folder(folder.parent)
        return {
            "format": FOREIGN,
            "version": VERSION,
            "run": self.run,
            "step": step,
            "world_size": protocol.world_size(),
            "folder": folder.relative_to(workspace).as_posix() if inside else str(folder),
            "states": _states(set(files)),
            "files": files,
            "tensors": tensors,
        }


def _states(files: set[str]) -> dict[str, str]:
    """Return which of the six states the files hold; the data position follows from the step."""
    # FSDP's parts lie in folders `optimizer_0` and `pytorch_model_fsdp_0`, DeepSpeed's in `global_step<N>`.
    names = {part for name in files for part in name.split("/")}

    def one(absent: str, *beginnings: str) -> str:
        return "present" if any(name.startswith(beginnings) for name in names) else absent

    return {
        "model": one("absent", "model", "adapter_model", "pytorch_model"),
        "optimizer": one("absent", "optimizer.", "optimizer_", "global_step"),
        "scheduler": one("absent", "scheduler.", "global_step"),
        "scaler": one("not_applicable", "scaler."),
        "rng": one("absent", "rng_state"),
        "data_position": "derived" if "trainer_state.json" in names else "absent",
    }


def _digests(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and digest of each tensor in a file, and one digest of all its plain values."""
    if path.suffix == TENSORS_SUFFIX:
        yield from file_digests(path)
    elif path.suffix in _PICKLED:
        from labassist.record import tensors

        plain: dict[str, Any] = {}
        held = _load(path)
        for name, value in () if held is None else _leaves(held, ""):
            if hasattr(value, "data_ptr"):
                yield name, tensors.digest_of(value)
            else:
                plain[name] = encode_number(value) if isinstance(value, float) else value
        if plain:
            yield "values", hashlib.sha256(dumps(plain)).hexdigest()


def _load(path: Path) -> Any:
    """Return what a file of torch.save holds, nothing where it needs more than tensors and plain values."""
    import torch
    from transformers.trainer_pt_utils import safe_globals

    try:
        with safe_globals():
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError):
        # Arguments of the run, say: the file is hashed like every other, and has no tensors to name.
        return None


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and plain values of a nested state by their dotted names."""
    if hasattr(value, "tobytes"):  # a numpy array
        yield name, hashlib.sha256(value.tobytes()).hexdigest()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(hasattr(one, "data_ptr") for one in value):
        for at, item in enumerate(value):
            yield from _leaves(item, f"{name}.{at}")
    elif isinstance(value, list | tuple):
        yield name, hashlib.sha256(repr(value).encode()).hexdigest()
    elif value is None or hasattr(value, "data_ptr") or isinstance(value, bool | int | float | str):
        yield name, value
    else:
        yield name, repr(value)
