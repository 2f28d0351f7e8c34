"""A stock TRL script with the one line: QLoRA of a model of a real architecture with random weights.

python qlora.py make 1.5b FOLDER        write the base model, once
python qlora.py train 1.5b FOLDER       train adapters on random tokens
python qlora.py pair 7b FOLDER OUT      the same, the line taken out of half of the steps
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import statistics
import sys
import time
from pathlib import Path

import torch
import transformers
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models
from trl import SFTConfig, SFTTrainer

from labassist import record

QWEN = {"num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True}
ARCHITECTURES = {
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 512, "tie_word_embeddings": False},
    "1.5b": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
             "num_attention_heads": 12, **QWEN},
    "7b": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
           "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
}  # fmt: skip
ARCHITECTURES["fp16"] = ARCHITECTURES["tiny"]
SHAPES = {"fp16": (2, 24), "tiny": (2, 24), "1.5b": (4, 512), "7b": (4, 512)}
"""Sequences a step, and tokens in each."""
WARM_UP = 8
PAIR_LENGTH = 2048
"""Tokens in a sequence where throughput is measured: enough to keep the GPU busy."""


class Kill(transformers.TrainerCallback):
    """A machine that goes away in the middle of a run."""

    def on_step_end(self, _args, state, _control, **_):
        """Go away after the update that KILL_AT names."""
        if state.global_step == int(os.environ.get("KILL_AT", "0")):
            os.kill(os.getpid(), signal.SIGKILL)


class Pairs(transformers.TrainerCallback):
    """Takes the line out of a trainer for half of its steps, and times each with the GPU's work done.

    So all of the line's own time counts, though in training most of it passes while the GPU works.
    """

    def __init__(self, recording, trainer) -> None:
        self.recording = recording
        self.trainer = trainer
        self.began = 0.0
        self.seconds: dict[str, list[float]] = {"with": [], "without": []}
        self.wrapped = {
            name: (getattr(type(trainer), name).__get__(trainer), getattr(trainer, name))
            for name in ("get_batch_samples", "training_step", "_get_grad_norm")
        }

    def on_step_end(self, _args, state, _control, **_):
        """Take the step's time, and put the line in or out for the next one."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        step, now = state.global_step, time.perf_counter()
        if step > WARM_UP:
            self.seconds["without" if self.recording._over else "with"].append(now - self.began)
        # with, without, without, with: a drift of the clocks falls on both alike.
        off = step % 4 in (1, 2)
        self.recording._over = off
        for name, (plain, recorded) in self.wrapped.items():
            setattr(self.trainer, name, plain if off else recorded)
        self.began = time.perf_counter()

    def ratio(self) -> dict[str, object]:
        """Return throughput with the line over that without: the median of pairs of neighbouring steps.

        `low` and `high` bound 95% of the medians of resampled pairs.
        """
        pairs = [b / a for a, b in zip(self.seconds["with"], self.seconds["without"], strict=False)]
        draw = random.Random(0)
        again = sorted(statistics.median(draw.choices(pairs, k=len(pairs))) for _ in range(2000))
        return {
            "ratio": statistics.median(pairs),
            "low": again[50],
            "high": again[1950],
            "pairs": len(pairs),
            "step_s": {side: statistics.median(times) for side, times in self.seconds.items()},
        }


def make(name: str, folder: Path) -> None:
    """Write a base model with random weights."""
    config = transformers.Qwen2Config(
        **ARCHITECTURES[name], max_position_embeddings=4096, dtype=torch.bfloat16
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.AutoModelForCausalLM.from_config(config)
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder, max_shard_size="5GB")


def trainer(name: str, folder: Path, steps: int, length: int) -> SFTTrainer:
    """Return a trainer over the base model in `folder`, with the one line."""
    four = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )
    gpu = torch.cuda.is_available()
    whole = name == "fp16"  # all weights trained, with a gradient scaler
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        quantization_config=None if whole else four,
        dtype=torch.float32 if whole else torch.bfloat16,
        device_map={"": 0} if gpu else None,
        attn_implementation="sdpa",
    )
    gc.collect()
    special = {"pad_token": "<pad>", "eos_token": "<eos>"}
    words = models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, "<unk>")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), **special)
    batch = SHAPES[name][0]
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(3, 500, (batch * (steps + 8), length), generator=draw).tolist()
    arguments = SFTConfig(
        output_dir=f"out-{name}",
        per_device_train_batch_size=batch,
        max_steps=steps,
        max_length=length,
        learning_rate=2e-4,
        logging_steps=20,
        save_strategy="steps",
        save_steps=5 if steps < 20 else 10**6,
        report_to="none",
        bf16=not whole,
        fp16=whole,
        optim="adamw_torch_fused" if whole else "paged_adamw_8bit",
        gradient_checkpointing=True,
        dataset_kwargs={"skip_prepare_dataset": True},
        use_cpu=not gpu,
        disable_tqdm=True,
    )
    adapter = LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": rows, "labels": rows}),
        processing_class=tokenizer,
        peft_config=None if whole else adapter,
        callbacks=[record.LedgerCallback(), Kill()],
    )


def main() -> None:
    what, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if what == "make":
        make(name, folder)
        return
    if what == "train":
        trainer(name, folder, 12, SHAPES[name][1]).train()
    elif what == "pair":
        made = trainer(name, folder, 100, SHAPES[name][1] if name == "tiny" else PAIR_LENGTH)
        [line] = [one for one in made.callback_handler.callbacks if isinstance(one, record.LedgerCallback)]
        pairs = Pairs(line._recording, made)
        made.add_callback(pairs)
        made.train()
        Path(sys.argv[4]).write_text(json.dumps({"model": name, **pairs.ratio()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
