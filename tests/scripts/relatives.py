"""Interrupt and resume many kinds of training in one process, stock and with the line; print what differs.

For each variant: train 8 steps with a checkpoint at 4, then go on from it twice, as the stock trainer does
and with `record.attach`. A variant's answer says, for each side, at which resumed step (1 is the first) the
loss first differs (0: never) and whether the final weights are equal.
"""

import json
import random
import shutil
import sys
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from tokenizers import Tokenizer, models
from torch.utils.data import IterableDataset
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

from labassist import record
from labassist.record import trainer_start

HERE = Path.cwd()
STEPS, AT = 8, 4
COMMON = {
    "per_device_train_batch_size": 2, "max_steps": STEPS, "save_steps": AT, "learning_rate": 5e-3,
    "logging_steps": 20, "report_to": "none", "use_cpu": True, "disable_tqdm": True,
}  # fmt: skip


def config(tied=False):
    return Qwen2Config(
        vocab_size=128, hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied, attention_dropout=0.1,
    )  # fmt: skip


def rows():
    draw = torch.Generator().manual_seed(5)
    return torch.randint(3, 128, (40, 16), generator=draw).tolist()


def in_four_bits():
    folder = HERE / "base"
    if not folder.exists():
        Qwen2ForCausalLM(config()).to(torch.bfloat16).save_pretrained(folder)
    four = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=four, dtype=torch.bfloat16)


def qlora(output, kbit=False, optim="adamw_8bit", **adapter):
    model = in_four_bits()
    if kbit:
        model = prepare_model_for_kbit_training(model)
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    lora = {"r": 32, "lora_dropout": 0.0, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | adapter
    arguments = SFTConfig(
        output_dir=output, bf16=True, optim=optim, max_length=16,
        dataset_kwargs={"skip_prepare_dataset": True}, **COMMON,
    )  # fmt: skip
    return SFTTrainer(
        model=model, args=arguments, processing_class=tokenizer, peft_config=LoraConfig(**lora),
        train_dataset=Dataset.from_dict({"input_ids": rows(), "labels": rows()}),
    )  # fmt: skip


def collate(batch):
    ids = torch.tensor([row["input_ids"] for row in batch])
    return {"input_ids": ids, "labels": ids.clone()}


def augment(batch):
    made = collate(batch)
    ids = made["input_ids"]
    ids[torch.rand(ids.shape) < 0.2] = random.randrange(3, 128)
    return made


class Stream(IterableDataset):
    def __iter__(self):
        for row in rows():
            yield {"input_ids": [random.randrange(3, 128), *row[1:]]}


class Ema(TrainerCallback):
    """A moving average of the weights that pulls on them: state that no checkpoint of a Trainer holds."""

    mean = None

    def on_step_end(self, args, state, control, model=None, **kwargs):
        weight = next(model.parameters()).data
        self.mean = weight.clone() if self.mean is None else 0.9 * self.mean + 0.1 * weight
        weight.copy_(0.5 * weight + 0.5 * self.mean)


def full(output, tied=False, dtype=None, data=None, collator=collate, callbacks=(), peft=None, **more):
    model = Qwen2ForCausalLM(config(tied))
    if dtype:
        model = model.to(dtype)
    if peft:
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **peft))
    given = data() if data else [{"input_ids": row} for row in rows()]
    return Trainer(
        model, TrainingArguments(output_dir=output, **COMMON, **more), data_collator=collator,
        train_dataset=given, callbacks=[one() for one in callbacks],
    )  # fmt: skip


VARIANTS = {
    "nf4 adapters": lambda out: qlora(out),
    "nf4 adapters, fp32 norms (kbit)": lambda out: qlora(out, kbit=True),
    "nf4 adapters, head trained whole": lambda out: qlora(out, modules_to_save=["lm_head"]),
    "nf4 DoRA": lambda out: qlora(out, use_dora=True),
    "nf4 adapters, paged 8-bit": lambda out: qlora(out, optim="paged_adamw_8bit"),
    "adapters of a bf16 base": lambda out: full(out, dtype=torch.bfloat16, peft={"r": 8}),
    "tied head, trained whole": lambda out: full(
        out, tied=True, peft={"r": 8, "modules_to_save": ["lm_head"]}
    ),
    "all weights": lambda out: full(out),
    "all weights, tied": lambda out: full(out, tied=True),
    "all weights in bf16": lambda out: full(out, dtype=torch.bfloat16),
    "all weights, bf16 autocast": lambda out: full(out, bf16=True),
    "random augmentation": lambda out: full(out, collator=augment),
    "random augmentation, accumulation": lambda out: full(
        out, collator=augment, gradient_accumulation_steps=2
    ),
    "random augmentation in workers": lambda out: full(out, collator=augment, dataloader_num_workers=1),
    "random iterable dataset": lambda out: full(out, data=Stream),
    "moving average in a callback": lambda out: full(out, callbacks=[Ema]),
}


def run(make, resume=None, line=False, seed=7):
    set_seed(seed)
    trainer = make(str(HERE / "out"))
    if line:
        trainer_start._taken.clear()  # one process attaches many times here
        record.attach(trainer)
    losses = []
    step = trainer.training_step

    def told(*args, **kwargs):
        loss = step(*args, **kwargs)
        losses.append(float(loss).hex())
        return loss

    trainer.training_step = told
    trainer.train(resume_from_checkpoint=resume)
    weights = [value.detach().clone() for value in trainer.model.parameters() if value.requires_grad]
    return losses, weights


def compare(whole, rest):
    steps = len(rest[0]) // (STEPS - AT)
    pairs = zip(whole[0][-len(rest[0]) :], rest[0], strict=True)
    first = next((at // steps + 1 for at, (a, b) in enumerate(pairs) if a != b), 0)
    same = all(
        a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        for a, b in zip(whole[1], rest[1], strict=True)
    )
    return {"first": first, "weights": same}


def main():
    torch.set_num_threads(1)
    found = {}
    for name in sys.argv[1:] or VARIANTS:
        shutil.rmtree("out", ignore_errors=True)
        whole = run(VARIANTS[name], line=True)
        stock = run(VARIANTS[name], f"out/checkpoint-{AT}")
        with_line = run(VARIANTS[name], f"out/checkpoint-{AT}", line=True)
        found[name] = {"stock": compare(whole, stock), "line": compare(whole, with_line)}
        print(name, found[name], file=sys.stderr, flush=True)
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    main()
