"""One case of bench/memory_truth.py: a few steps of a stock trainer, and what they took.

Imports what does not touch the GPU, waits for the case's file, trains, and writes `row-<rank>.json` beside it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import tempfile
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments
from transformers.initialization import no_init_weights

GIB = 1024**3
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "mixed": torch.float32}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "pad_token_id": 0,
        "n_embd": 64, "n_layer": 2, "n_head": 4}  # fmt: skip
RANK = int(os.environ.get("LOCAL_RANK", "0"))


def deepspeed_config(stage: int) -> dict[str, Any]:
    """Return a ZeRO configuration with DeepSpeed's own defaults."""
    auto = (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    )
    return {
        **dict.fromkeys(auto, "auto"),
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }


def arguments(case: dict[str, Any], device: str) -> TrainingArguments:
    """Return the trainer's arguments: TRL's where the loss is chunked, transformers' own where it is full."""
    values: dict[str, Any] = {
        "output_dir": tempfile.mkdtemp(prefix="memory-step-"),
        "per_device_train_batch_size": case["batch"],
        "gradient_accumulation_steps": case["accum"],
        "max_steps": case["steps"],
        "learning_rate": 2e-5,
        "logging_steps": 1000,
        "save_strategy": "no",
        "report_to": "none",
        "bf16": case["dtype"] != "fp32",
        "optim": case["optim"],
        "gradient_checkpointing": case["gc"],
        "disable_tqdm": True,
        "use_cpu": device == "cpu",
        "seed": 0,
    }
    strategy = case.get("strategy", "")
    if strategy.startswith("zero"):
        values["deepspeed"] = deepspeed_config(int(strategy[-1]))
    if strategy == "fsdp":
        values["fsdp"] = "full_shard auto_wrap"
        values["fsdp_config"] = {"version": 2, "activation_checkpointing": case["gc"]}
        values["gradient_checkpointing"] = False
    if case["loss"] == "full":
        return TrainingArguments(**values, remove_unused_columns=False)
    from trl import SFTConfig

    extra = {"max_length": case["seq"], "packing": False, "dataset_kwargs": {"skip_prepare_dataset": True}}
    return SFTConfig(**values, **extra)


def build(case: dict[str, Any], device: str, tiny: bool) -> Any:
    """Return the model with random weights, made where it will be; nothing is fetched."""
    from labassist.planner import arch

    fields = dict(arch.load(case["arch"]).config)
    if tiny:
        fields |= {name: value for name, value in TINY.items() if name in fields or not name.startswith("n_")}
        fields["hidden_size"] = fields.get("hidden_size", 64)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    four_bit = case["method"] == "qlora"
    zero = case.get("strategy", "").startswith("zero")
    with (
        torch.device("cpu" if zero or four_bit else device),
        no_init_weights() if four_bit else nullcontext(),
    ):
        model = AutoModelForCausalLM.from_config(
            config, dtype=DTYPES[case["dtype"]], attn_implementation=case["attn"]
        )
    model.config.use_cache = False
    if four_bit:
        quantise(model, device)
    if case.get("strategy") == "fsdp":
        # As a script under torchrun loads it: the wrapping moves each shard to its card.
        model = model.to("cpu")
    return model


def quantise(model: Any, device: str) -> None:
    """Make every linear layer but the head a 4-bit one, as `BitsAndBytesConfig` with double quantisation does.

    One layer's 16-bit weight is on the card at a time, as when a model is loaded: a whole 16-bit model there would
    leave splinters behind. The rest is moved there and filled at random.
    """
    import bitsandbytes as bnb

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if not isinstance(child, torch.nn.Linear) or name == "lm_head":
                continue
            made = bnb.nn.Linear4bit(
                child.in_features,
                child.out_features,
                bias=child.bias is not None,
                compute_dtype=torch.bfloat16,
                compress_statistics=True,
                quant_type="nf4",
                device="meta",
            )
            made.weight = bnb.nn.Params4bit(
                torch.empty_like(child.weight, device=device).normal_(std=0.02),
                requires_grad=False,
                compress_statistics=True,
                quant_type="nf4",
                module=made,
            ).to(device)
            made.bias = child.bias
            setattr(module, name, made)
            if device == "cuda":
                torch.cuda.empty_cache()
    for parameter in model.parameters():
        if not isinstance(parameter, bnb.nn.Params4bit):
            parameter.data = torch.empty_like(parameter.data, device=device).normal_(std=0.02)
    for buffer in model.buffers():
        buffer.data = buffer.data.to(device)
    model.is_loaded_in_4bit = True
    model.hf_device_map = {"": RANK if device == "cuda" else "cpu"}


def rows_of(case: dict[str, Any], vocabulary: int) -> datasets.Dataset:
    """Return random tokens; with padding, every second row is half as long."""
    count = case["batch"] * case["accum"] * case["gpus"] * (case["steps"] + 1)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(3, vocabulary - 1, (count, case["seq"]), generator=draw).tolist()
    if case["padded"]:
        ids = [row if number % 2 else row[: len(row) // 2] for number, row in enumerate(ids)]
    columns = {"input_ids": ids, **({"labels": ids} if case["loss"] == "full" else {})}
    return datasets.Dataset.from_dict(columns)


def adapter(case: dict[str, Any]) -> Any:
    """Return peft's configuration, or None for full fine-tuning."""
    if case["method"] == "full":
        return None
    from peft import LoraConfig

    targets = case["targets"]
    return LoraConfig(
        r=case["r"],
        lora_alpha=32,
        lora_dropout=case["lora_dropout"],
        target_modules=targets if targets == "all-linear" else targets.split(","),
        bias="none",
        task_type="CAUSAL_LM",
    )


def trainer(case: dict[str, Any], args: Any, model: Any, rows: datasets.Dataset) -> Trainer:
    """Return the stock trainer of the case."""
    if case["loss"] == "full":
        if case["method"] != "full":
            from peft import get_peft_model

            model = get_peft_model(model, adapter(case))
            if case["gc"]:
                model.enable_input_require_grads()
        return Trainer(model=model, args=args, train_dataset=rows)
    from tokenizers import Tokenizer, models
    from trl import SFTTrainer

    special = {"pad_token": "<pad>", "eos_token": "<eos>"}
    words = models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, "<unk>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), **special)
    return SFTTrainer(
        model=model,
        args=args,
        train_dataset=rows,
        processing_class=tokenizer,
        peft_config=adapter(case),
    )


class Watch(transformers.TrainerCallback):
    """Times each step with the GPU's work done, and parts the first step's peak from the later ones'."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.first_peak = self.first_reserved = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Take the time; after the first step, begin a new peak."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        if len(self.ends) == 1 and torch.cuda.is_available():
            self.first_peak = torch.cuda.max_memory_allocated()
            self.first_reserved = torch.cuda.max_memory_reserved()
            torch.cuda.reset_peak_memory_stats()


def used_gib() -> float:
    """Return what nvidia-smi shows as used on this process's card, 0 without one."""
    if not torch.cuda.is_available():
        return 0.0
    # By its UUID: nvidia-smi numbers all cards of the machine, CUDA those that CUDA_VISIBLE_DEVICES leaves.
    card = f"GPU-{torch.cuda.get_device_properties(RANK).uuid}"
    words = ["nvidia-smi", "-i", card, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0]) / 1024


def all_reduce_gb_s() -> float:
    """Return the rate of an all-reduce of 256 MiB: bytes that one GPU sends over seconds."""
    import torch.distributed as dist

    block = torch.ones(64 * 1024**2, device="cuda" if torch.cuda.is_available() else "cpu")
    times = []
    for _ in range(8):
        began = time.perf_counter()
        dist.all_reduce(block)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    sent = 2 * block.nbytes * (dist.get_world_size() - 1) / dist.get_world_size()
    return float(sent / sorted(times)[len(times) // 2] / 1e9)


def measure(case: dict[str, Any], device: str, tiny: bool) -> dict[str, Any]:
    """Run the case and return its row."""
    gpu = device == "cuda"
    if gpu:
        torch.cuda.set_device(RANK)
        if case["cap_gib"]:
            whole = torch.cuda.get_device_properties(RANK).total_memory
            torch.cuda.set_per_process_memory_fraction(case["cap_gib"] * GIB / whole)
    torch.manual_seed(0)
    watch = Watch()
    oom, made = False, None
    began = time.perf_counter()
    loaded = 0
    try:
        args = arguments(case, device)
        model = build(case, device, tiny)
        vocabulary = model.config.vocab_size
        gc.collect()
        if gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            loaded = torch.cuda.memory_allocated()
        made = trainer(case, args, model, rows_of(case, vocabulary))
        del model
        made.add_callback(watch)
        ready = time.perf_counter()
        made.train()
    except torch.OutOfMemoryError:
        oom = True
        ready = time.perf_counter()
    steps = [later - earlier for earlier, later in zip(watch.ends, watch.ends[1:], strict=False)]
    usual = sorted(steps[1:])
    step_s = usual[len(usual) // 2] if usual else None
    tokens = case["batch"] * case["seq"] * case["accum"]
    later = torch.cuda.max_memory_allocated() if gpu else 0
    reserved = max(watch.first_reserved, torch.cuda.max_memory_reserved() if gpu else 0)
    trained = made.model.parameters() if made else []
    row = {
        **case,
        "oom": oom,
        "loaded_gib": loaded / GIB,
        "peak_alloc_gib": max(watch.first_peak, later) / GIB,
        "peak_reserved_gib": reserved / GIB,
        "later_alloc_gib": later / GIB,
        "nvidia_smi_used_gib": used_gib() if gpu else 0.0,
        "step_s": step_s,
        "tok_s": tokens / step_s if step_s else None,
        "step_times": [round(one, 5) for one in steps],
        "prepare_s": ready - began,
        "trainable": sum(one.numel() for one in trained if one.requires_grad),
        "device": torch.cuda.get_device_name(RANK) if gpu else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **({"layer_by_layer": True} if case["method"] == "qlora" else {}),
        "trl": version("trl"),
        "peft": version("peft"),
    }
    if case["gpus"] > 1 and not oom:
        row["all_reduce_gb_s"] = all_reduce_gb_s()
    return row


def version(name: str) -> str:
    """Return a package's version, or nothing."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    while not options.case.exists():
        time.sleep(0.02)
    case = json.loads(options.case.read_text())
    if options.tiny:
        case |= {"seq": min(case["seq"], 32)}
    try:
        row = measure(case, options.device, options.tiny)
    except Exception:  # noqa: BLE001 - whatever went wrong is what the row says
        row = {**case, "error": traceback.format_exc()[-1500:]}
    options.case.with_name(f"row-{RANK}.json").write_text(json.dumps(row))


if __name__ == "__main__":
    main()
