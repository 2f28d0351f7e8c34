"""Make a checkpoint with two processes: `torchrun --nproc-per-node 2 ckpt_two_ranks.py hf|hf-zero2|zero2|zero3|fsdp OUT`."""

import os
import sys
from pathlib import Path

import torch
from torch import distributed

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def hf(out):
    import ckpt_real

    ckpt_real.hf(out, per_device_train_batch_size=1)


def hf_zero2(out):
    import ckpt_real
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
    settings = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }
    ckpt_real.hf(out, per_device_train_batch_size=1, deepspeed=settings)


def zero(out, stage):
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    settings = {
        "train_batch_size": 4,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3}},
        "bf16": {"enabled": True},
    }
    engine, *_ = deepspeed.initialize(model=net(), config=settings)
    draw = torch.Generator().manual_seed(distributed.get_rank())
    for _ in range(3):
        loss = engine(torch.randn(2, 4, generator=draw).bfloat16()).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(str(out))


def fsdp(out):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_optimizer_state_dict,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo")
    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(3):
        model(torch.randn(2, 4)).pow(2).mean().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    states = {
        **get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=flat),
        "lr_scheduler": schedule.state_dict(),
        "dataloader": {f"dp_rank_{distributed.get_rank()}": {"_num_yielded": 3, "_iterator_finished": False}},
        "train_state": {"step": torch.tensor(3, dtype=torch.int32)},
    }
    dcp.save(states, checkpoint_id=out)


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))


def main():
    kind, out = sys.argv[1], Path(sys.argv[2])
    if kind.startswith("zero"):
        zero(out, int(kind[4:]))
    else:
        {"hf": hf, "hf-zero2": hf_zero2, "fsdp": fsdp}[kind](out)
    distributed.barrier()
    distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # trainers under torchrun have been seen to abort at the interpreter's end


if __name__ == "__main__":
    main()
