"""The memory of one training step of a plain loop: by formula, by a dry run, and on a GPU for real.

    labassist run 05-memory/step                 predicted twice, on any machine
    labassist run 05-memory/step --profile gpu   and measured

The dry run builds the model and makes two steps on tensors that have sizes and no contents, and counts what is
alive. Series of the one step, in GiB: formula, dry; weights, gradients, optimizer, activations, logits, workspace
(the formula's parts); on a GPU also real (the allocator's peak) and shown (by nvidia-smi).
"""

from __future__ import annotations

import subprocess
from typing import Any

from labassist import record
from labassist.errors import InputError
from labassist.planner import arch, dry, formula
from labassist.planner.plan import Plan

GIB = 1024**3
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")


def plan_of(c: dict[str, Any]) -> Plan:
    """Return the plan that the job file means: a plain PyTorch loop in bf16, all logits at once."""
    return Plan(
        arch.load(c["model"]),
        method=c["method"],
        seq=c["seq"],
        batch=c["batch"],
        checkpointing=c["checkpointing"],
        attention=c["attention"],
        optim=c["optim"],
        loss="full",
        trainer="loop",
    ).checked()


def real(plan: Plan) -> dict[str, float]:
    """Make three steps on the GPU with random weights; return the allocator's peak and what nvidia-smi shows."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    if not torch.cuda.is_available():
        raise InputError("there is no GPU here", where="device", mend="use --profile laptop")
    fields = dict(plan.model.config)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("cuda"):
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=plan.attention
        )
    if plan.method == "lora":
        targets = [matrix.name for matrix in plan.model.targeted(plan.lora_targets)]
        model = get_peft_model(
            model, LoraConfig(r=plan.lora_r, lora_dropout=plan.lora_dropout, target_modules=targets)
        )
    model.train()
    if plan.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        ids = torch.randint(3, config.vocab_size - 1, (plan.batch, plan.seq), device="cuda")
        out = model(input_ids=ids, labels=ids, use_cache=False)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    torch.cuda.synchronize()
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    shown = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    return {"real": torch.cuda.max_memory_allocated() / GIB, "shown": int(shown) / 1024}


def main() -> None:
    """Predict, measure where it can be, and put the numbers on record."""
    order = record.read_order("labs/05-memory/step.toml")
    plan = plan_of(order.config)
    peak = formula.peak(plan)
    recorder = record.start(total_steps=1, parameters=plan.trainable, order=order)
    values = {"formula": peak.total / GIB, "dry": dry.run(plan)["peak"] / GIB}
    # The dry run counts tensors; two workspaces of cuBLAS are there on a GPU besides.
    values["dry"] += formula.CUBLAS_BYTES / GIB
    if order.config["device"] == "cuda":
        values |= real(plan)
    recorder.record(1, **values, **{name: size / GIB for name, size in peak.parts.items()})
    recorder.finish(1)
    print(f"{plan.model.name}, {plan.method}, {plan.batch} x {plan.seq}, peak: {peak.moment}")
    for name, size in {**values, **{f"  {part}": size / GIB for part, size in peak.parts.items()}}.items():
        print(f"{name:14} {size:7.3f} GiB")


if __name__ == "__main__":
    main()
