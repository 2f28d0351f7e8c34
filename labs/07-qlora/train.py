"""Fine-tune a language model with LoRA adapters, its weights in 4 bits: one script for a laptop and for a rented card.

    labassist run 07-qlora/sft --profile tiny       instructions and answers: it learns to answer in a form
    labassist run 07-qlora/cpt --profile tiny       plain text: it learns to go on with it

The training itself is TRL's SFTTrainer. What stands here is what one has to decide: which model, how many bits, which
adapters, what of a sample is trained on, and how we see afterwards that something was learned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tickets

from labassist import record
from labassist.data import rows
from labassist.finetune import card, lineage, load, models, tokens

# ---------------------------------------------------------------------------- what is trained on


def as_dataset(some: list[rows.Sample]) -> Any:
    """Return samples as TRL takes them: `prompt` and `completion`, of which the completion is trained on, or `text`."""
    from datasets import Dataset

    return Dataset.from_list([one.for_trl() for one in some])


# ---------------------------------------------------------------------------- the model and its adapters


def quantised(method: str) -> Any:
    """Return how the base is held: nf4 in blocks of 64, the blocks' scales quantised too, computing in bf16."""
    import torch
    from transformers import BitsAndBytesConfig

    if method == "lora":
        return None
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


def adapters(c: dict[str, Any]) -> Any:
    """Return the pairs of small matrices that are trained: W + alpha/r x B A, for each targeted W."""
    from peft import LoraConfig

    targets = c["targets"] if c["targets"] == "all-linear" else c["targets"].split(",")
    return LoraConfig(
        r=c["r"],
        lora_alpha=c["alpha"],
        lora_dropout=c["dropout"],
        target_modules=targets,
        task_type="CAUSAL_LM",
    )


LAYOUTS: dict[str, dict[str, Any]] = {
    # A row a sample, filled up to the longest of its batch: simple, and most of a short batch is padding.
    "padded": {},
    # Samples one after the other without padding, each seeing itself only.
    "padding-free": {"padding_free": True, "max_length": None},
    # Rows of exactly `length` tokens put together from whole samples, each seeing itself only.
    "packed": {"packing": True, "packing_strategy": "bfd"},
    # Rows cut from one long stream: dense, fast, and a sample sees the end of the one before it.
    "stream": {"packing": True, "packing_strategy": "wrapped"},
}


def arguments(order: record.Order, c: dict[str, Any], gpu: bool) -> Any:
    """Return TRL's settings. What is not set here is at its default: `labassist show` has them all."""
    from trl import SFTConfig

    o = c["optim"]
    settings = {
        "max_length": c["length"],
        "per_device_train_batch_size": c["batch"],
        # Without a backward there is room for more rows, but for their logits where memory is short.
        "per_device_eval_batch_size": c["batch"] if c["checkpointing"] else 4 * c["batch"],
        "gradient_accumulation_steps": c["accumulate"],
        "max_steps": c["steps"],
        "learning_rate": o["lr"],
        "lr_scheduler_type": o["schedule"],
        "warmup_steps": o["warmup"],
        "weight_decay": o["weight_decay"],
        "max_grad_norm": o["clip"],
        "optim": o["name"],
        "bf16": True,
        "use_cpu": not gpu,
        "gradient_checkpointing": c["checkpointing"],
        "seed": order.seed,
        "logging_steps": 10,
        "eval_strategy": "steps",
        "eval_steps": c["every"]["eval"],
        "save_strategy": "steps",
        "save_steps": c["every"]["checkpoint"],
        "save_total_limit": c["keep"],
        "report_to": "none",
        "disable_tqdm": True,
        **LAYOUTS[c["layout"]],
    }
    folder = order.folder / "trainer" if order.folder else Path("outputs/07-qlora")
    return SFTConfig(output_dir=str(folder), **settings)


# ---------------------------------------------------------------------------- what was learned


def answers(model: Any, tokenizer: Any, questions: list[str], at_most: int) -> list[str]:
    """Return what the model answers to each question, the likeliest token at a time."""
    import torch

    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        for text in questions
    ]
    batch = tokenizer(
        prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
    )
    batch = batch.to(model.device)
    with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16):
        written = model.generate(
            **batch, max_new_tokens=at_most, do_sample=False, pad_token_id=tokenizer.pad_token_id
        )
    return list(tokenizer.batch_decode(written[:, batch["input_ids"].shape[1] :], skip_special_tokens=True))


def examine(trainer: Any, tokenizer: Any, held: list[rows.Sample], at_most: int) -> dict[str, float]:
    """Score answers to held-out questions without the adapters and with them, the same questions both times.

    `format_gain_low` and `_high` bound 95% of the mean gain over resampled questions.
    """
    model = trainer.model
    model.eval()
    told = {}
    questions, meant = [one.question for one in held], [one.answer for one in held]
    with model.disable_adapter():
        told["base"] = answers(model, tokenizer, questions, at_most)
    told["tuned"] = answers(model, tokenizer, questions, at_most)
    scores = {
        side: [tickets.score(*pair) for pair in zip(some, meant, strict=True)] for side, some in told.items()
    }
    for side in ("base", "tuned"):
        print(f"{side} answers {questions[0]!r}:\n    {told[side][0]!r}", flush=True)
    found: dict[str, float] = {}
    for at, what in enumerate(("format", "right")):
        for side in ("base", "tuned"):
            found[f"{what}_{side}"] = sum(one[at] for one in scores[side]) / len(held)
    gains = [float(b[0] - a[0]) for a, b in zip(scores["base"], scores["tuned"], strict=True)]
    found["format_gain_low"], found["format_gain_high"] = tokens.interval(gains)
    print(
        f"{len(held)} held-out messages: format kept {found['format_base']:.0%} -> {found['format_tuned']:.0%} "
        f"(gain {found['format_gain_low']:.2f} to {found['format_gain_high']:.2f}), "
        f"right {found['right_base']:.0%} -> {found['right_tuned']:.0%}",
        flush=True,
    )
    return found


# ---------------------------------------------------------------------------- put together


def main() -> None:
    order = record.read_order("labs/07-qlora/sft.toml")
    c, m = order.config, order.config["model"]
    # Every line of a JSONL file is checked; a text's samples are its paragraphs. The run records the files. They come
    # first: what is wrong with them is said before anything heavy is imported.
    files = {name: order.input(name, c["data"][name]) for name in ("train", "heldout")}
    train, held = (rows.read(path) for path in files.values())
    held = held[: c["data"]["heldout_rows"] or None]
    # A model that must be made first (the embedded one, random weights) is made in a process of its own.
    base = models.of_order(order, m["name"], m["revision"], trust_remote_code=m["trust_remote_code"])
    kept = lineage.of_adapter(order, base, files)
    load.quiet()
    record.determinism.apply(order.mode, order.seed, order.threads)
    card.rehearse(c["card"])

    tokenizer = load.tokenizer(base, chat=train[0].conversational)
    if c["layout"] == "padding-free":
        train, held = (tokens.within(some, tokenizer, c["length"]) for some in (train, held))
    cut_at = 0 if c["layout"] == "stream" else c["length"]  # a stream is cut anywhere, and loses nothing
    print(tokens.measure(train, tokenizer, cut_at).line(), flush=True)
    model = load.model(base, quantised(m["method"]), trust_remote_code=m["trust_remote_code"])

    import torch
    from trl import SFTTrainer

    from labassist.finetune import callbacks

    class Trainer(SFTTrainer):
        """TRL's trainer; after its last evaluation the model is examined too."""

        def evaluation_loop(self, *args: Any, **more: Any) -> Any:
            done = super().evaluation_loop(*args, **more)
            if self.state.global_step >= self.state.max_steps and c["exam"]["questions"]:
                done.metrics.update(
                    examine(self, tokenizer, held[: c["exam"]["questions"]], c["exam"]["answer_tokens"])
                )
            return done

    trainer = Trainer(
        model=model,
        args=arguments(order, c, torch.cuda.is_available()),
        train_dataset=as_dataset(train),
        eval_dataset=as_dataset(held),
        processing_class=tokenizer,
        peft_config=adapters(c["lora"]),
        callbacks=[callbacks.Watch(c["price"] or order.price), callbacks.Kept(kept)],
    )
    print(tokens.shown(trainer.train_dataset[0], tokenizer), flush=True)
    record.attach(trainer)
    trainer.train()
    print(card.peak(), flush=True)


if __name__ == "__main__":
    main()
