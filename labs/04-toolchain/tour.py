"""One small model through every library of the toolchain, a number recorded at each stop.

labassist run 04-toolchain/tour --profile tiny
"""

from __future__ import annotations

from typing import Any

import torch

from labassist import record
from labassist.finetune import load, models

TEXTS = ("The capital of France is", "Water boils at a temperature of one hundred degrees", "Yes")
QUESTION, ANSWER = "What do you call a group of crows?", "A murder of crows."


def batch(tokenizer: Any, side: str, mask: bool) -> dict[str, torch.Tensor]:
    """Return the texts as one batch, shorter ones filled up on one side; without `mask` every place counts."""
    filled = tokenizer(list(TEXTS), return_tensors="pt", padding=True, padding_side=side)
    attention = filled["attention_mask"] if mask else torch.ones_like(filled["attention_mask"])
    return {"input_ids": filled["input_ids"], "attention_mask": attention}


@torch.no_grad()
def apart(model: Any, tokenizer: Any, side: str, mask: bool) -> float:
    """Return how far the logits at each text's last token are from those of the text alone, at most."""
    filled = batch(tokenizer, side, mask)
    together = model(**filled).logits
    most = 0.0
    for row, text in enumerate(TEXTS):
        alone = model(**tokenizer(text, return_tensors="pt")).logits[0]
        at = len(alone) - 1 if side == "right" else -1
        most = max(most, float((together[row, at] - alone[-1]).abs().max()))
    return most


@torch.no_grad()
def written(model: Any, tokenizer: Any, side: str, tokens: int) -> list[str]:
    """Return what the model writes after each text, in one batch."""
    filled = batch(tokenizer, side, mask=True)
    done = model.generate(
        **filled, max_new_tokens=tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id
    )
    return list(tokenizer.batch_decode(done[:, filled["input_ids"].shape[1] :], skip_special_tokens=True))


def main() -> None:
    order = record.read_order("labs/04-toolchain/tour.toml")
    c = order.config
    base = models.of_order(order, c["model"]["name"], c["model"]["revision"])
    record.determinism.apply(order.mode, order.seed, order.threads)
    load.quiet()
    recorder = record.start(order=order, total_steps=1)
    found: dict[str, float] = {}

    # transformers: text to tokens and back
    tokenizer = load.tokenizer(base, chat=True)
    for text in TEXTS:
        tokens = tokenizer(text)["input_ids"]
        print(f"{len(tokens)} tokens: {[tokenizer.decode(token) for token in tokens]}")
        assert tokenizer.decode(tokens) == text
    found["tokens"] = len(tokenizer(TEXTS[0])["input_ids"])

    # a batch: rows of one length, and a mask that says what is filling
    model = load.model(base).float().eval()
    for side in ("right", "left"):
        for mask in (True, False):
            name = f"{side}_{'masked' if mask else 'unmasked'}"
            found[name] = apart(model, tokenizer, side, mask)
            print(f"{name:<16} logits at the last token are {found[name]:.2g} from those of the text alone")
    alone = [
        tokenizer.decode(
            model.generate(**one, max_new_tokens=c["new_tokens"], do_sample=False)[
                0, one["input_ids"].shape[1] :
            ],
            skip_special_tokens=True,
        )
        for one in (tokenizer(text, return_tensors="pt") for text in TEXTS)
    ]
    for side in ("right", "left"):
        told = written(model, tokenizer, side, c["new_tokens"])
        found[f"{side}_differs"] = sum(a != b for a, b in zip(told, alone, strict=True))
        for text, answer in zip(TEXTS, told, strict=True):
            print(f"filled {side}: {text!r} -> {answer!r}")

    # bitsandbytes: the same weights in four bits
    from transformers import BitsAndBytesConfig

    four = load.model(
        base,
        BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        ),
    )  # fmt: skip
    found["mb_16"] = sum(weight.numel() * 2 for weight in model.parameters()) / 1e6
    found["mb_4"] = four.get_memory_footprint() / 1e6
    print(
        f"16 bits {found['mb_16']:.0f} MB, 4 bits {found['mb_4']:.0f} MB: embeddings and norms stay as they are"
    )

    # peft: adapters beside the frozen weights, and one step of training
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(order.seed)
    config = LoraConfig(r=c["lora"]["r"], lora_alpha=2 * c["lora"]["r"], target_modules="all-linear")
    tuned = get_peft_model(four, config)
    trained = [weight for weight in tuned.parameters() if weight.requires_grad]
    found["trained"] = sum(weight.numel() for weight in trained)
    print(f"{found['trained']:,.0f} numbers are trained")
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    sample = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)
    given = len(
        tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=True)["input_ids"]
    )
    labels = sample["input_ids"].clone()
    labels[:, :given] = -100  # the question is given, not learned
    tuned.train()
    optimizer = torch.optim.AdamW(trained, lr=c["lora"]["lr"])
    for name in ("loss_before", "loss_after"):
        with torch.autocast("cpu", torch.bfloat16):
            loss = tuned(**sample, labels=labels).loss
        found[name] = float(loss.detach())
        if name == "loss_before":
            loss.backward()
            optimizer.step()
    print(f"one step on one sample: loss {found['loss_before']:.3f} -> {found['loss_after']:.3f}")

    recorder.record(1, **found)
    recorder.finish(1)


if __name__ == "__main__":
    main()
