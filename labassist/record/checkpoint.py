"""Full-state checkpoints, written atomically in the background and loaded only when whole.

The training thread copies every state to host memory and takes the RNG states; a thread writes the files
into `step-….tmp`, fsyncs them, writes the manifest and COMMIT, and renames the folder. So a folder without
`.tmp` that holds COMMIT is whole, whatever was killed when. A `.tmp` folder left behind is harmless.
torch is imported on use: `inspect` and `tensor_digests` work without it.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labassist.errors import CheckpointError
from labassist.record import protocol
from labassist.record.durable import sync_folder, write_file
from labassist.record.inspect import (
    COMMIT,
    FORMAT,
    MANIFEST,
    STATE,
    TENSORS_SUFFIX,
    VERSION,
    inspect,
    tensor_digests,
)

__all__ = ["Saver", "capture_rng", "inspect", "load", "restore_rng", "tensor_digests"]


class Saver:
    """Writes the checkpoints of one run. `on_saved` gets each `checkpoint` event, on the saver's thread."""

    def __init__(self, run_dir: Path, run: str, on_saved: Callable[[dict[str, Any]], None]) -> None:
        self.folder = run_dir / protocol.CHECKPOINTS
        self.run = run
        self.on_saved = on_saved
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._last = -1

    def save(self, step: int, states: Mapping[str, Any], seal: dict[str, Any]) -> None:
        """Copy `states` and the RNGs, and write them in the background.

        `seal` is the seal of the curve up to this step. A second save at the same step does nothing. At
        most one save is in flight: the next one waits. Raises CheckpointError if the earlier one failed.
        """
        self.wait()
        if step == self._last:
            return
        from labassist.record import tensors

        values = {name: _value(owner) for name, owner in states.items() if owner is not None}
        rng = gather_rng()
        self._last = step
        if protocol.rank() != 0:
            return
        taken = tensors.snapshot({**values, "rng": rng})
        presence = {name: "not_applicable" if owner is None else "present" for name, owner in states.items()}
        event = {"step": step, "curve": seal, "rng": rng_digest(rng)}
        arguments = (event, taken, {**presence, "rng": "present"})
        self._thread = threading.Thread(target=self._write, args=arguments, name=f"save-{step}")
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is in flight. Raises CheckpointError if the save failed."""
        if self._thread:
            self._thread.join()
            self._thread = None
        if self._error:
            error, self._error = self._error, None
            if isinstance(error, OSError):
                raise CheckpointError(
                    f"the checkpoint could not be written: {error.strerror}",
                    where=str(error.filename or self.folder),
                    mend="free some space, then resume from the last checkpoint",
                ) from error
            raise error

    def _write(self, event: dict[str, Any], taken: Any, presence: dict[str, str]) -> None:
        final = self.folder / protocol.checkpoint_name(event["step"])
        partial = final.with_name(final.name + ".tmp")
        try:
            manifest = self._write_files(partial, event["step"], taken, presence)
            partial.rename(final)
            sync_folder(self.folder)
            self.on_saved({**event, "path": f"{protocol.CHECKPOINTS}/{final.name}", **manifest})
        except BaseException as error:  # noqa: BLE001 - raised again on the training thread
            self._error = error
            shutil.rmtree(partial, ignore_errors=True)

    def _write_files(self, folder: Path, step: int, taken: Any, presence: dict[str, str]) -> dict[str, Any]:
        from labassist.record import tensors

        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        files: dict[str, dict[str, Any]] = {}
        digests: dict[str, str] = {}
        for state, kept in taken.tensors.items():
            name = state + TENSORS_SUFFIX
            written = tensors.write(folder / name, kept)
            files[name] = {"bytes": written.bytes, "sha256": written.sha256}
            digests |= {f"{state}/{tensor}": digest for tensor, digest in written.digests.items()}
        files[STATE] = _write_json(folder / STATE, {"version": VERSION, "states": taken.skeletons})
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "run": self.run,
            "step": step,
            "world_size": protocol.world_size(),
            "states": presence,
            "files": files,
            "tensors": digests,
        }
        sealed = _write_json(folder / MANIFEST, manifest)
        write_file(folder / COMMIT, sealed["sha256"].encode())
        sync_folder(folder)
        total = sum(file["bytes"] for file in files.values())
        return {"manifest": sealed["sha256"], "bytes": total, "tensors": len(digests)}


def load(path: str | Path, *, verify: bool = True) -> dict[str, Any]:
    """Return the states of a checkpoint by name; tensors are on the CPU, `not_applicable` states are None.

    `verify` checks every file against the manifest first. Raises CheckpointError naming file and tensor.
    """
    from labassist.record import tensors

    folder = Path(path)
    manifest = inspect(folder) if verify else json.loads((folder / MANIFEST).read_bytes())
    kept = tensors.read_all(folder)
    skeletons = json.loads((folder / STATE).read_bytes())["states"]
    states = {name: tensors.unpack(skeleton, kept) for name, skeleton in skeletons.items()}
    return dict.fromkeys(manifest["states"]) | states


def capture_rng() -> dict[str, Any]:
    """Return the state of every generator of this process: python, numpy if loaded, torch, each GPU."""
    import torch

    cuda: Any = torch.cuda
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = (kind, [int(key) for key in keys], *rest)
    if cuda.is_available() and cuda.is_initialized():
        state["cuda"] = cuda.get_rng_state_all()
    return state


def restore_rng(state: Mapping[str, Any]) -> None:
    """Set this rank's generators to the `rng` state of a checkpoint.

    Raises CheckpointError when the checkpoint has no RNG for this rank or for a GPU of this process.
    """
    ranks, rank = state["ranks"], protocol.rank()
    if rank >= len(ranks):
        raise CheckpointError(
            f"the checkpoint holds the RNG of {len(ranks)} ranks, this is rank {rank}",
            mend=f"resume with {len(ranks)} processes",
        )
    if protocol.world_size() != len(ranks):
        print(
            f"labassist: saved by {len(ranks)} processes, resumed by {protocol.world_size()}: not the same run",
            file=sys.stderr,
        )
    set_rng(ranks[rank])


def set_rng(own: Mapping[str, Any]) -> None:
    """Set the generators of this process to what `capture_rng` gave. Raises CheckpointError."""
    import torch

    random.setstate(own["python"])
    torch.set_rng_state(own["torch"])
    if "numpy" in own:
        import numpy

        kind, keys, *rest = own["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))
    if "cuda" in own and torch.cuda.is_available():
        if len(own["cuda"]) != torch.cuda.device_count():
            raise CheckpointError(
                f"the checkpoint holds the RNG of {len(own['cuda'])} GPUs, here are {torch.cuda.device_count()}",
                mend="show the process as many GPUs (CUDA_VISIBLE_DEVICES)",
            )
        torch.cuda.set_rng_state_all(own["cuda"])


def rng_digests(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest (16 hex digits) of each generator that `capture_rng` gave, a GPU's as `cuda:0`."""
    parts = {name: part for name, part in state.items() if name != "cuda"}
    parts |= {f"cuda:{at}": part for at, part in enumerate(state.get("cuda", ()))}
    return {
        name: hashlib.sha256(
            bytes(part.tolist()) if hasattr(part, "tolist") else repr(part).encode()
        ).hexdigest()[:16]
        for name, part in sorted(parts.items())
    }


def rng_digest(state: Mapping[str, Any]) -> str:
    """Return one digest (16 hex digits) of the generators of all ranks."""
    text = json.dumps([rng_digests(rank) for rank in state["ranks"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def gather_rng() -> dict[str, Any]:
    """Return the generators of every rank as a checkpoint's `rng` state; only rank 0 gets them. All must call it."""
    own = capture_rng()
    if protocol.world_size() == 1:
        return {"ranks": [own]}
    from torch import distributed

    ranks: list[Any] | None = [None] * protocol.world_size() if protocol.rank() == 0 else None
    distributed.gather_object(own, ranks)
    return {"ranks": ranks or []}


def _value(owner: Any) -> Any:
    return owner.state_dict() if hasattr(owner, "state_dict") else owner


def _write_json(path: Path, value: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(value, allow_nan=False).encode() + b"\n"
    write_file(path, data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
