"""The states of a small training at step 5, as libraries keep them, and how they are written without these libraries."""

from __future__ import annotations

import json
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

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


class Stub:
    """Stands in for a class of a library that is not here: what a checkpoint keeps is its name and attributes."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


def stub(module: str, name: str, **given: Any) -> Any:
    return type(name, (Stub,), {"__module__": module, "__qualname__": name})(**given)


def save_with(path: Path, value: Any, *stubs: Any) -> None:
    """Save a value with stubs in it, each pickled under the name of the class that it stands for."""
    before = dict(sys.modules)
    for one in stubs:
        kind = type(one)
        parts = kind.__module__.split(".")
        for at in range(len(parts)):
            sys.modules[".".join(parts[: at + 1])] = types.ModuleType(".".join(parts[: at + 1]))
    for one in stubs:
        setattr(sys.modules[type(one).__module__], type(one).__name__, type(one))
    try:
        torch.save(value, path)
    finally:
        for name in sys.modules.keys() - before.keys():
            del sys.modules[name]
        sys.modules.update(before)


def save_arguments(path: Path, **given: Any) -> None:
    """Pickle arguments under the class name that transformers has, without transformers."""
    arguments = stub("transformers.training_args", "TrainingArguments", **given)
    save_with(path, arguments, arguments)


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


def loader_state(*, finished: bool = False, workers: int = 0) -> dict[str, Any]:
    """torchdata/stateful_dataloader: the keys with no workers, or with some."""
    state = {
        "_sampler_iter_state": {"samples_yielded": STEP * 2},
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
    main = {"_num_workers": workers, "_sampler_iter_state": {"samples_yielded": STEP * 2}}
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


LORA = {
    "base_model.model.l.0.q.lora_A.weight": (2, 4),
    "base_model.model.l.0.q.lora_B.weight": (4, 2),
}
