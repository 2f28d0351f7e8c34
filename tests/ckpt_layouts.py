"""Checkpoints written by torch and safetensors after the key layout of each format, tiny and quick.

They stand in for the libraries in the fast tests. `ckpt_real` makes the same with the libraries themselves,
and a slow test compares what the check says about both.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ckpt_states import (
    ARGUMENTS,
    LORA,
    STEP,
    loader_state,
    optimizer_state,
    rng_state,
    save_arguments,
    save_with,
    scaler_state,
    scheduler_state,
    stub,
    trainer_state,
    weights,
    write_json,
)
from safetensors.torch import save_file


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


def deepspeed(
    root: Path, *, stage: int = 2, ranks: int = 2, precision: str = "bf16", batches: int = 0
) -> Path:
    """deepspeed/runtime/engine.py `save_checkpoint`; compared with the real files in a slow test."""
    write_tag(root, stage, ranks, precision, batches)
    (root / "latest").write_text(f"global_step{STEP}")
    (root / "zero_to_fp32.py").write_text("# a script that DeepSpeed leaves here\n")
    return root


def write_tag(root: Path, stage: int, ranks: int, precision: str = "bf16", batches: int = 0) -> Path:
    tag = root / f"global_step{STEP}"
    tag.mkdir(parents=True)
    tensors = weights()
    config = {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": stage},
        precision: {"enabled": True},
        "scheduler": {"type": "WarmupLR", "params": {}},
    }
    head = {
        "module": {name: t[:0] if stage == 3 else t for name, t in tensors.items()},
        "optimizer": None if stage else optimizer_state(tensors),
        "lr_scheduler": {"last_batch_iteration": STEP - 1},
        "data_sampler": None,
        "skipped_steps": 0,
        "global_steps": STEP,
        "global_samples": STEP * 4 + batches,
        "dp_world_size": ranks,
        "mp_world_size": 1,
        "ds_config": config,
        "ds_version": "0.19.8",
    }
    names = [f"zero_pp_rank_{rank}_mp_rank_00" for rank in range(ranks)]
    for name in names if stage == 3 else ["mp_rank_00"]:
        torch.save(head, tag / f"{name}_model_states.pt")
    scaler = stub("deepspeed.runtime.fp16.loss_scaler", "LossScaler", cur_scale=1.0, dynamic=False)
    inner = optimizer_state({"flat": torch.zeros(16)})
    held = {"zero_stage": stage, "loss_scaler": scaler, "partition_count": ranks if stage == 3 else [ranks]}
    held["optimizer_state_dict" if stage == 3 else "base_optimizer_state"] = inner
    for name in names if stage else []:
        kept = {"optimizer_state_dict": held, "ds_config": config, "ds_version": "0.19.8"}
        prefix = "bf16_" if precision == "bf16" else ""
        save_with(tag / f"{prefix}{name}_optim_states.pt", kept, scaler)
    return tag


def hf_deepspeed(root: Path) -> Path:
    """transformers with DeepSpeed: the tag inside the Trainer's folder, and no optimizer.pt."""
    folder = hf(root, ranks=2)
    for file in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
        (folder / file).unlink()
    write_tag(folder, 2, 2)
    (folder / "latest").write_text(f"global_step{STEP}")
    return folder


class Progress:
    """torchtitan's train_state, as DCP asks for it."""

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(STEP, dtype=torch.int32), "log_steps": [1, 2]}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError


def dcp(root: Path, *, without: tuple[str, ...] = ()) -> Path:
    """torchtitan's states, written by torch's own DCP."""
    import torch.distributed.checkpoint as checkpoint

    tensors = weights()
    moments = optimizer_state(tensors)["state"]
    flat = {
        f"state.{name}.{part}": value
        for name, state in zip(tensors, moments.values(), strict=True)
        for part, value in state.items()
    }
    states: dict[str, Any] = {
        **tensors,
        "optimizer": flat,
        "lr_scheduler": {key: value for key, value in scheduler_state().items() if key != "lr_lambdas"},
        "dataloader": {"dp_rank_0": loader_state()},
        "train_state": Progress().state_dict(),
    }
    for name in without:
        for key in [*tensors] if name == "model" else [name]:
            del states[key]
    folder = root / f"step-{STEP}"
    checkpoint.save(states, checkpoint_id=folder, no_dist=True)
    return folder


def lightning(root: Path, *, batches: int = 10, loader: bool = False, last: bool = False) -> Path:
    """lightning/pytorch/trainer/connectors/checkpoint_connector.py `dump_checkpoint`."""
    root.mkdir(parents=True, exist_ok=True)
    tensors = weights()
    count = {"ready": STEP, "completed": STEP}
    seen = {"ready": batches, "completed": batches - 1, "started": batches, "processed": batches}
    fit = {
        "state_dict": {"combined_loader": [loader_state()]} if loader else {},
        "epoch_loop.state_dict": {"_batches_that_stepped": STEP},
        "epoch_loop.batch_progress": {"total": seen, "current": seen, "is_last_batch": last},
        "epoch_loop.scheduler_progress": {"total": count, "current": count},
        "epoch_loop.automatic_optimization.optim_progress": {
            "optimizer": {"step": {"total": count, "current": count}}
        },
        "epoch_progress": {"total": {"ready": 1, "completed": 0, "started": 1, "processed": 0}},
    }
    kept = {
        "epoch": 0,
        "global_step": STEP,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": tensors,
        "loops": {"fit_loop": fit},
        "callbacks": {},
        "optimizer_states": [optimizer_state(tensors)],
        "lr_schedulers": [scheduler_state()],
    }
    torch.save(kept, root / f"epoch=0-step={STEP}.ckpt")
    return root / f"epoch=0-step={STEP}.ckpt"


def composer(root: Path) -> Path:
    """composer/core/state.py `state_dict` and composer/utils/checkpoint.py: each state under its class's name."""
    root.mkdir(parents=True, exist_ok=True)
    tensors = weights()
    inner = optimizer_state(tensors)
    named = {
        "state": dict(zip(tensors, inner["state"].values(), strict=True)),
        "param_groups": [{**inner["param_groups"][0], "params": list(tensors)}],
    }
    ranks = []
    for rank in range(2):
        held = rng_state(rank)
        ranks.append({"python": held["python"], "numpy": held["numpy"], "torch": held["cpu"]})
    state = {
        "model": tensors,
        "optimizers": {"AdamW": named},
        "schedulers": {"LambdaLR": scheduler_state()},
        "timestamp": {"Timestamp": {"epoch": 0, "batch": STEP, "sample": STEP * 4, "batch_in_epoch": STEP}},
        "rank_zero_seed": 17,
        "run_name": "run",
        "dataset_state": {"train": None, "eval": {}},
        "metadata": {"composer_env_info": {"composer_version": "0.32.1"}},
    }
    torch.save({"state": state, "rng": ranks}, root / f"ep0-ba{STEP}-rank0.pt")
    return root / f"ep0-ba{STEP}-rank0.pt"


def torchtune(root: Path) -> Path:
    """torchtune/training/checkpointing/_checkpointer.py: weights by epoch, one recipe state."""
    tensors = weights()
    home = root / "epoch_0"
    home.mkdir(parents=True)
    save_file(tensors, home / "model-00001-of-00001.safetensors", {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
    write_json(home / "model.safetensors.index.json", index)
    recipe = {"seed": 1, "epochs_run": 1, "total_epochs": 3, "max_steps_per_epoch": 5}
    (root / "recipe_state").mkdir()
    kept = {**recipe, "optimizer": optimizer_state(tensors), "dataloader": loader_state()}
    torch.save(kept, root / "recipe_state" / "recipe_state.pt")
    return root


def nanochat(root: Path, *, ranks: int = 2, step: int = STEP) -> Path:
    """nanochat/checkpoint_manager.py `save_checkpoint`."""
    root.mkdir(parents=True, exist_ok=True)
    tensors = weights({"transformer.wte.weight": (12, 4), "lm_head.weight": (12, 4)})
    torch.save(tensors, root / f"model_{step:06d}.pt")
    for rank in range(ranks):
        torch.save(optimizer_state(tensors, step), root / f"optim_{step:06d}_rank{rank}.pt")
    meta = {"step": step, "val_bpb": 1.5, "model_config": {"vocab_size": 12}, "device_batch_size": 4}
    write_json(root / f"meta_{step:06d}.json", meta | {"dataloader_state_dict": {"pq_idx": 0, "rg_idx": 3}})
    return root


def torchdata(root: Path, **more: Any) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    torch.save(loader_state(**more), root / "loader.pt")
    return root / "loader.pt"


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
    "dcp": dcp,
    "deepspeed-zero0": lambda root: deepspeed(root, stage=0),
    "deepspeed-zero1": lambda root: deepspeed(root, stage=1),
    "deepspeed-zero2": deepspeed,
    "deepspeed-zero3": lambda root: deepspeed(root, stage=3),
    "deepspeed-fp16": lambda root: deepspeed(root, precision="fp16"),
    "hf-deepspeed": hf_deepspeed,
    "lightning": lightning,
    "lightning-stateful": lambda root: lightning(root, loader=True),
    "composer": composer,
    "torchtune": torchtune,
    "nanochat": nanochat,
    "torchdata": torchdata,
}
