"""Checkpoints written by torch and safetensors after the key layout of each format, tiny and quick.

They stand in for the libraries in the fast tests. `ckpt_real` makes the same with the libraries themselves,
and a slow test compares what the check says about both.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

STEP = 5
SIZES = {"model.embed_tokens.weight": (12, 4), "model.layers.0.w.weight": (4, 4), "model.norm.weight": (4,)}


def weights(sizes: dict[str, tuple[int, ...]] | None = None, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in (sizes or SIZES).items()}


def optimizer_state(tensors: dict[str, torch.Tensor], steps: int = STEP) -> dict[str, Any]:
    """Return the state dict of a real AdamW after `steps` real steps."""
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in tensors.values()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return optimizer.state_dict()


def scheduler_state(steps: int = STEP) -> dict[str, Any]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: 1 / (1 + at))
    for _ in range(steps):
        optimizer.step()
        schedule.step()
    return schedule.state_dict()


def scaler_state() -> dict[str, Any]:
    return {
        "scale": 65536.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 3,
    }


def rng_state(rank: int = 0) -> dict[str, Any]:
    python = random.Random(rank).getstate()
    return {
        "python": python,
        "numpy": np.random.RandomState(rank).get_state(),
        "cpu": torch.Generator().manual_seed(rank).get_state(),
    }


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


class Arguments:
    """Stands in for TrainingArguments: what is read of it is the pickled attributes."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


Arguments.__module__, Arguments.__qualname__ = "transformers.training_args", "TrainingArguments"


def save_arguments(path: Path, **given: Any) -> None:
    """Pickle arguments under the class name that transformers has, without transformers."""
    import sys
    import types

    here = "transformers.training_args"
    before = {name: sys.modules.get(name) for name in ("transformers", here)}
    module = types.ModuleType(here)
    module.TrainingArguments = Arguments  # type: ignore[attr-defined]
    Arguments.__name__ = "TrainingArguments"
    sys.modules["transformers"], sys.modules[here] = types.ModuleType("transformers"), module
    try:
        torch.save(Arguments(**given), path)
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


ARGUMENTS = {
    "max_steps": -1,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "seed": 1,
    "fp16": False,
    "bf16": False,
    "save_only_model": False,
    "ignore_data_skip": False,
    "restore_callback_states_from_checkpoint": False,
}


def hf(
    root: Path, *, ranks: int = 1, fp16: bool = False, state: dict[str, Any] | None = None, **args: Any
) -> Path:
    """transformers/trainer.py `_save_checkpoint`: 40 samples, 10 updates an epoch, step 5 is in mid-epoch."""
    folder = root / f"checkpoint-{STEP}"
    folder.mkdir(parents=True)
    tensors = weights()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 12, "transformers_version": "5.24.0"}
    write_json(folder / "config.json", config)
    torch.save(optimizer_state(tensors), folder / "optimizer.pt")
    torch.save(scheduler_state(), folder / "scheduler.pt")
    if fp16:
        torch.save(scaler_state(), folder / "scaler.pt")
    for rank in range(ranks):
        name = "rng_state.pth" if ranks == 1 else f"rng_state_{rank}.pth"
        torch.save(rng_state(rank), folder / name)
    save_arguments(folder / "training_args.bin", **(ARGUMENTS | {"fp16": fp16} | args))
    write_json(folder / "trainer_state.json", trainer_state() | (state or {}))
    return folder


def trainer_state() -> dict[str, Any]:
    return {
        "epoch": 0.5,
        "global_step": STEP,
        "max_steps": 20,
        "num_train_epochs": 2,
        "train_batch_size": 2,
        "log_history": [{"loss": 2.5, "step": at + 1} for at in range(STEP)],
        "stateful_callbacks": {"TrainerControl": {"args": {}, "attributes": {}}},
    }


LORA = {
    "base_model.model.l.0.q.lora_A.weight": (2, 4),
    "base_model.model.l.0.q.lora_B.weight": (4, 2),
}


def hf_peft(
    root: Path, *, name: str = "", tensors: dict[str, torch.Tensor] | None = None, **args: Any
) -> Path:
    """The same with PEFT: an adapter in place of the model."""
    folder = hf(root, **args)
    for file in ("model.safetensors", "config.json"):
        (folder / file).unlink()
    kept = tensors or weights(LORA)
    home = folder / name
    home.mkdir(exist_ok=True)
    save_file(kept, home / "adapter_model.safetensors", {"format": "pt"})
    write_json(home / "adapter_config.json", {"peft_type": "LORA", "r": 2, "peft_version": "0.21.2"})
    torch.save(optimizer_state(kept), folder / "optimizer.pt")
    return folder


def hf_only_model(root: Path) -> Path:
    folder = hf(root, save_only_model=True)
    for file in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / file).unlink()
    return folder


def hf_sharded(root: Path) -> Path:
    """The same with the weights in two shards and an index."""
    folder = hf(root)
    tensors = weights()
    (folder / "model.safetensors").unlink()
    names = [f"model-0000{at}-of-00002.safetensors" for at in (1, 2)]
    first = next(iter(tensors))
    parts = [{first: tensors.pop(first)}, tensors]
    index: dict[str, Any] = {"metadata": {}, "weight_map": {}}
    for name, part in zip(names, parts, strict=True):
        save_file(part, folder / name, {"format": "pt"})
        index["weight_map"] |= dict.fromkeys(part, name)
    write_json(folder / "model.safetensors.index.json", index)
    return folder


def accelerate(root: Path, *, ranks: int = 1, fp16: bool = False) -> Path:
    """accelerate/checkpointing.py `save_accelerator_state`, with a stateful loader."""
    folder = root / "state"
    folder.mkdir(parents=True)
    tensors = weights()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    torch.save(optimizer_state(tensors), folder / "optimizer.bin")
    torch.save(scheduler_state(STEP * ranks), folder / "scheduler.bin")
    torch.save(loader_state(), folder / "dl_state_dict.bin")
    if fp16:
        torch.save(scaler_state(), folder / "scaler.pt")
    for rank in range(ranks):
        held = rng_state(rank)
        states = {"step": 0, "random_state": held["python"], "numpy_random_seed": held["numpy"]}
        torch.save(states | {"torch_manual_seed": held["cpu"]}, folder / f"random_states_{rank}.pkl")
    return folder


def loader_state(*, finished: bool = False, workers: int = 0) -> dict[str, Any]:
    """torchdata/stateful_dataloader: the keys with no workers, or with some."""
    state = {
        "_sampler_iter_state": None,
        "_sampler_iter_yielded": STEP,
        "_num_yielded": STEP,
        "_IterableDataset_len_called": None,
        "_shared_seed": None,
        "fetcher_state": None,
        "dataset_state": None,
        "_iterator_finished": finished,
    }
    if not workers:
        return state
    main = {"_num_workers": workers, "_sampler_iter_yielded": STEP, "_dataset_kind": 0}
    snapshots = {f"worker_{at}": {"worker_id": at, "fetcher_state": None} for at in range(workers)}
    return {
        "_snapshot": {
            "_snapshot_step": STEP,
            "_last_yielded_worker_id": 0,
            "_main_snapshot": main,
            "_worker_snapshots": snapshots,
        },
        "_steps_since_snapshot": 0,
        "_iterator_finished": finished,
    }


def nanogpt(root: Path, **more: Any) -> Path:
    """nanoGPT train.py: one dictionary."""
    root.mkdir(parents=True, exist_ok=True)
    tensors = weights({"_orig_mod.transformer.wte.weight": (12, 4), "_orig_mod.lm_head.weight": (12, 4)})
    config = {
        "max_iters": 20,
        "batch_size": 12,
        "gradient_accumulation_steps": 40,
        "dtype": "bfloat16",
    } | more
    kept = {
        "model": tensors,
        "optimizer": optimizer_state(tensors),
        "model_args": {"n_layer": 1, "vocab_size": 12},
        "iter_num": STEP,
        "best_val_loss": torch.tensor(2.5),
        "config": config,
    }
    torch.save(kept, root / "ckpt.pt")
    return root / "ckpt.pt"


def plain_pt(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    torch.save(weights(), root / "weights.pt")
    return root / "weights.pt"


def plain_legacy(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    torch.save(weights(), root / "weights.pth", _use_new_zipfile_serialization=False)
    return root / "weights.pth"


def plain_safetensors(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    save_file(weights(), root / "weights.safetensors")
    return root / "weights.safetensors"


class Owner:
    """Something with a state_dict, for our own recorder."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return self.value


def ours(root: Path) -> Path:
    """Our own format, made for real by the saver."""
    from labassist.record.checkpoint import Saver

    tensors = weights()
    states = {
        "model": tensors,
        "optimizer": optimizer_state(tensors),
        "scheduler": scheduler_state(),
        "scaler": scaler_state(),
        "data_position": {"epoch": 0, "drawn": 40},
    }
    saver = Saver(root, "test", lambda event: None)
    saver.save(STEP, states, {})
    saver.wait()
    return root / "checkpoints" / f"step-{STEP:08d}"


FORMATS: dict[str, Callable[[Path], Path]] = {
    "ours": ours,
    "hf": hf,
    "hf-fp16": lambda root: hf(root, fp16=True),
    "hf-2-ranks": lambda root: hf(root, ranks=2),
    "hf-sharded": hf_sharded,
    "hf-peft": hf_peft,
    "hf-only-model": hf_only_model,
    "accelerate": accelerate,
    "accelerate-2-ranks": lambda root: accelerate(root, ranks=2),
    "nanogpt": nanogpt,
    "plain-pt": plain_pt,
    "plain-legacy": plain_legacy,
    "plain-safetensors": plain_safetensors,
}
