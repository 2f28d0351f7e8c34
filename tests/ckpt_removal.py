"""Take one state out of a checkpoint of any format, as a lost file or a lost key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Remover = Callable[[Path], None]


def files(*patterns: str) -> Remover:
    """Delete the files that match."""

    def remove(folder: Path) -> None:
        gone = [file for pattern in patterns for file in folder.glob(pattern)]
        assert gone, patterns
        for file in gone:
            file.unlink()

    return remove


def keys(*names: str) -> Remover:
    """Take keys out of a file of torch.save."""

    def remove(file: Path) -> None:
        value = torch.load(file, weights_only=False)
        for name in names:
            at: Any = value
            *outer, last = name.split("/")
            for part in outer:
                at = at[part]
            del at[last]
        torch.save(value, file)

    return remove


def our_state(state: str) -> Remover:
    """Take a state out of our own format as somebody would who mends the manifest and COMMIT too."""

    def remove(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        skeletons = json.loads((folder / "state.json").read_bytes())
        del manifest["states"][state], skeletons["states"][state]
        if f"{state}.safetensors" in manifest["files"]:
            del manifest["files"][f"{state}.safetensors"]
            (folder / f"{state}.safetensors").unlink()
        data = json.dumps(skeletons).encode()
        (folder / "state.json").write_bytes(data)
        if "state.json" in manifest["files"]:
            manifest["files"]["state.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        data = json.dumps(manifest).encode()
        (folder / "manifest.json").write_bytes(data)
        (folder / "COMMIT").write_text(hashlib.sha256(data).hexdigest())

    return remove


_HF = {
    "model": files("model*.safetensors", "*.index.json"),
    "optimizer": files("optimizer.pt"),
    "scheduler": files("scheduler.pt"),
    "rng": files("rng_state*.pth"),
    "data_position": files("trainer_state.json"),
}
_ACCELERATE = {
    "model": files("model.safetensors"),
    "optimizer": files("optimizer.bin"),
    "scheduler": files("scheduler.bin"),
    "rng": files("random_states_*.pkl"),
    "data_position": files("dl_state_dict.bin"),
}
REMOVERS: dict[str, dict[str, Remover]] = {
    "ours": {
        state: our_state(state)
        for state in ("model", "optimizer", "scheduler", "scaler", "rng", "data_position")
    },
    "hf": {**_HF, "model": files("model.safetensors")},
    "hf-fp16": {**_HF, "model": files("model.safetensors"), "scaler": files("scaler.pt")},
    "hf-2-ranks": {**_HF, "model": files("model.safetensors")},
    "hf-sharded": _HF,
    "hf-peft": {**_HF, "model": files("adapter_model.safetensors")},
    "hf-only-model": {"model": files("model.safetensors"), "data_position": files("trainer_state.json")},
    "accelerate": _ACCELERATE,
    "accelerate-2-ranks": _ACCELERATE,
    "nanogpt": {"model": keys("model"), "optimizer": keys("optimizer"), "scheduler": keys("iter_num")},
}
"""Format -> state -> how to take it out, for every state that the format stores."""
