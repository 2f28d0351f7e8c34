"""The part of `data lint` that needs a model's tokenizer: lengths in tokens, and one sample as it is trained on."""

from __future__ import annotations

from typing import Any

from labassist.data.rows import Sample
from labassist.errors import InputError
from labassist.finetune import load, tokens
from labassist.finetune.model_folder import Model


def token_facts(samples: list[Sample], base: Model, limit: int, at: int) -> dict[str, Any]:
    """Return `model`, `tokens`, `shown` and warnings of samples as `base` sees them; `at` is the sample's line.

    Raises InputError where the tokenizer has no chat template, where every sample is over the limit, and where no
    sample stands at that line.
    """
    tokenizer = load.tokenizer(base, chat=samples[0].conversational)
    lengths = tokens.measure(samples, tokenizer, limit)
    chosen = next((one for one in samples if not at or one.line == at), None)
    if chosen is None:
        raise InputError("no sample stands there", where=f"--line {at}", mend="give the line of a sample")
    told = []
    if not tokens.ends(chosen, tokenizer):
        told.append(
            f"the end token {tokenizer.eos_token!r} is not among what is trained on: the model would never learn to stop"
        )
    if tokenizer.pad_token_id == tokenizer.eos_token_id:
        told.append(
            f"{tokenizer.eos_token!r} pads and ends: fine with TRL, which leaves padding out by its place; a collator "
            "that leaves it out by its value would leave out the end as well"
        )
    return {
        "model": base.name,
        "tokens": lengths.document(),
        "shown": tokens.sample_shown(chosen, tokenizer, limit),
        "warnings": told,
    }
