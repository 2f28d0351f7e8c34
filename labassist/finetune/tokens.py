"""Samples as a model sees them: how many tokens, what of them is trained on, what a length limit would cut.

The tokens are those that TRL's SFTTrainer makes: the chat template over prompt and completion, an end token after
plain text. Only tokenizers are needed here, no torch.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labassist.data.rows import Sample
from labassist.errors import InputError

BINS = 12
BOOTSTRAP = 2000
NO_LIMIT = 1 << 40
LEFT, RIGHT = "⟦", "⟧"
"""What is trained on stands between these."""


@dataclass(frozen=True)
class Lengths:
    """How long the samples of a file are, in tokens."""

    each: list[int]
    trained: list[int]
    """Tokens of each that are trained on."""
    limit: int

    @property
    def over(self) -> int:
        """Samples that a limit would cut."""
        return sum(length > self.limit for length in self.each)

    def document(self) -> dict[str, Any]:
        """Return the lengths for machines; the histogram is [from, to, samples] a bin."""
        ordered = sorted(self.each)
        return {
            "samples": len(ordered),
            "limit": self.limit,
            "over": self.over,
            "tokens": sum(ordered),
            "trained_tokens": sum(self.trained),
            "min": ordered[0],
            "median": statistics.median(ordered),
            "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
            "max": ordered[-1],
            "histogram": histogram(ordered),
        }

    def line(self) -> str:
        """Return one line that a run's log keeps."""
        told = self.document()
        cut = f"; {self.over} longer than {self.limit} are cut" if self.over else ""
        return (
            f"{told['samples']} samples, {told['tokens']:,} tokens ({told['trained_tokens']:,} trained on), "
            f"median {told['median']:.0f}, longest {told['max']}{cut}"
        )


def encode(sample: Sample, tokenizer: Any) -> tuple[list[int], int]:
    """Return a sample's tokens, and how many of the first are given and not trained on."""
    if isinstance(sample.completion, list):
        assert isinstance(sample.prompt, list)
        given = _template(tokenizer, sample.prompt, add_generation_prompt=True)
        whole = _template(tokenizer, [*sample.prompt, *sample.completion])
        return whole, len(given)
    end = tokenizer.eos_token or ""
    text = sample.completion if sample.completion.endswith(end) else sample.completion + end
    if not isinstance(sample.prompt, str) or not sample.prompt:
        return list(tokenizer(text)["input_ids"]), 0
    given = list(tokenizer(sample.prompt)["input_ids"])
    return list(tokenizer(sample.prompt + text)["input_ids"]), len(given)


def _template(tokenizer: Any, messages: list[dict[str, str]], **more: Any) -> list[int]:
    told = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **more)
    return list(told["input_ids"])


def measure(samples: Sequence[Sample], tokenizer: Any, limit: int) -> Lengths:
    """Return the lengths of samples; a limit of 0 cuts nothing.

    Raises InputError where the limit leaves nothing to train on in any of them, and where all of them are over it.
    """
    limit = limit or NO_LIMIT
    if samples[0].conversational:
        need_template(tokenizer)
    each, trained, left = [], [], 0
    for sample in samples:
        tokens, given = encode(sample, tokenizer)
        each.append(len(tokens))
        trained.append(len(tokens) - given)
        left += given < min(len(tokens), limit)
    lengths = Lengths(each, trained, limit)
    if not left or (lengths.over == len(each) and samples[0].prompt):
        raise InputError(
            f"every one of the {len(each)} samples is longer than {limit} tokens (the shortest has {min(each)}): "
            "all of their answers would be cut",
            where="length",
            mend=f"take a limit of {max(each)} or more, or shorten the samples",
        )
    return lengths


def within(samples: Sequence[Sample], tokenizer: Any, limit: int) -> list[Sample]:
    """Return the samples that a limit does not cut. Raises InputError where there is none; see `measure`."""
    each = measure(samples, tokenizer, limit).each
    return [sample for sample, length in zip(samples, each, strict=True) if length <= limit]


def need_template(tokenizer: Any) -> None:
    """Raise InputError where a tokenizer cannot make text of a chat."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            "this model's tokenizer has no chat template, so that messages cannot be made text",
            where=str(getattr(tokenizer, "name_or_path", "tokenizer")),
            mend="take its instruct version, or data with prompt and completion as plain text",
        )


def shown(example: dict[str, Any], tokenizer: Any) -> str:
    """Return a prepared sample (`input_ids`, `labels`) as text, what is trained on between ⟦ and ⟧."""
    parts: list[str] = []
    before = False
    run: list[int] = []
    for token, label in [*zip(example["input_ids"], example["labels"], strict=True), (None, None)]:
        now = label is not None and label != -100
        if run and (now != before or token is None):
            text = tokenizer.decode(run)
            parts.append(f"{LEFT}{text}{RIGHT}" if before else text)
            run = []
        before = now
        if token is not None:
            run.append(token)
    return "trained on is what stands between ⟦ and ⟧:\n" + "".join(parts)


def sample_shown(sample: Sample, tokenizer: Any, limit: int) -> str:
    """Return the same of a sample that is not prepared yet, cut at the limit."""
    tokens, given = encode(sample, tokenizer)
    labels = [-100] * given + tokens[given:]
    return shown({"input_ids": tokens[:limit], "labels": labels[:limit]}, tokenizer)


def ends(sample: Sample, tokenizer: Any) -> bool:
    """Say whether the end of an answer is among what is trained on; else the model never learns to stop."""
    tokens, given = encode(sample, tokenizer)
    return tokenizer.eos_token_id in tokens[given:]


def histogram(lengths: Sequence[int]) -> list[list[int]]:
    """Return [from, to, count] a bin of equal width, empty ones included."""
    low, high = min(lengths), max(lengths)
    width = max(1, -(-(high - low + 1) // BINS))
    bins = [[start, start + width - 1, 0] for start in range(low, high + 1, width)]
    for length in lengths:
        bins[(length - low) // width][2] += 1
    return bins


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return where 95% of the means of resampled values lie: the percentile bootstrap."""
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(BOOTSTRAP))
    return means[int(0.025 * BOOTSTRAP)], means[int(0.975 * BOOTSTRAP) - 1]
