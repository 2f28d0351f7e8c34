"""Take one state out of a checkpoint of any format, as a lost file or a lost key."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ckpt_layouts
import torch

from labassist.resume import torchfile

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


def inside(file: str, *names: str) -> Remover:
    """The same in a file of a folder."""
    return lambda folder: keys(*names)(folder / file)


def in_heads(name: str) -> Remover:
    """Empty a key of DeepSpeed's model files, as it is without such a thing."""

    def remove(folder: Path) -> None:
        for file in folder.glob("*/*model_states.pt"):
            value = torch.load(file, weights_only=False)
            torch.save({**value, name: None}, file)

    return remove


def in_parts(name: str) -> Remover:
    """Take a key out of DeepSpeed's optimizer files."""

    def remove(folder: Path) -> None:
        for file in folder.glob("*/*optim_states.pt"):
            value = torchfile.read(file).value  # its classes are not here to load it with
            held = value["optimizer_state_dict"]
            del held[name]
            inner = {"state": {0: {"step": 5}}, "param_groups": [{"params": [0]}]}
            kept = {key: held[key] for key in ("zero_stage", "partition_count")} | {
                "base_optimizer_state": inner
            }
            torch.save({**value, "optimizer_state_dict": kept}, file)

    return remove


def again(state: str, name: str) -> Remover:
    """Write a DCP folder once more without a state."""

    def remove(folder: Path) -> None:
        shutil.rmtree(folder)
        ckpt_layouts.dcp(folder.parent, without=(name,))

    return remove


_DEEPSPEED_HEAD = {"scheduler": in_heads("lr_scheduler")}
_DEEPSPEED = {
    "model": files("*/*model_states.pt"),
    "optimizer": files("*/*optim_states.pt"),
    **_DEEPSPEED_HEAD,
}
_LIGHTNING = {
    "model": keys("state_dict"),
    "optimizer": keys("optimizer_states"),
    "scheduler": keys("lr_schedulers"),
}
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
    "dcp": {
        state: again(state, name)
        for state, name in {
            "model": "model",
            "optimizer": "optimizer",
            "scheduler": "lr_scheduler",
            "data_position": "dataloader",
        }.items()
    },
    "deepspeed-zero0": {
        "model": files("*/*model_states.pt"),
        **_DEEPSPEED_HEAD,
        "optimizer": in_heads("optimizer"),
    },
    "deepspeed-zero1": _DEEPSPEED,
    "deepspeed-zero2": _DEEPSPEED,
    "deepspeed-zero3": _DEEPSPEED,
    "deepspeed-fp16": {**_DEEPSPEED, "scaler": in_parts("loss_scaler")},
    "hf-deepspeed": {
        **_DEEPSPEED,
        "rng": files("rng_state*.pth"),
        "data_position": files("trainer_state.json"),
    },
    "lightning": _LIGHTNING,
    "lightning-stateful": {**_LIGHTNING, "data_position": keys("loops/fit_loop/state_dict/combined_loader")},
    "composer": {
        "model": keys("state/model"),
        "optimizer": keys("state/optimizers"),
        "scheduler": keys("state/schedulers"),
        "rng": keys("rng"),
        "data_position": keys("state/timestamp/Timestamp"),
    },
    "torchtune": {
        "model": files("epoch_0/model*.safetensors", "epoch_0/*.index.json"),
        "optimizer": inside("recipe_state/recipe_state.pt", "optimizer"),
        "scheduler": inside("recipe_state/recipe_state.pt", "epochs_run"),
        "data_position": files("recipe_state/recipe_state.pt"),
    },
    "nanochat": {
        "model": files("model_*.pt"),
        "optimizer": files("optim_*.pt"),
        "scheduler": files("meta_*.json"),
        "data_position": files("meta_*.json"),
    },
}
"""Format -> state -> how to take it out, for every state that the format stores."""
