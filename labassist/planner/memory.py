"""The answer to `plan memory`: parts that sum to what nvidia-smi would show, and whether a card holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labassist.planner import formula, inference, shard
from labassist.planner.activations import compute_bytes
from labassist.planner.cards import Card
from labassist.planner.formula import GIB, optimizer_bytes
from labassist.planner.plan import Plan

PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "workspace",
    "context",
    "fragmentation",
)

CONTEXT_GIB = 0.75
"""What CUDA takes outside PyTorch's allocator: nvidia-smi minus reserved was 0.749 GiB on an H200 and 0.69 on an
A6000 (driver context, kernels' code, cuBLAS handles)."""

DISTRIBUTED_GIB = 0.83
"""More for a process of a group: NCCL's channel buffers, as nvidia-smi minus reserved showed on two H200."""

DEEPSPEED_GIB = 0.19
"""More under DeepSpeed, in the same rows."""

MARGIN = 0.02
"""A plan fits where 2% more than its total would, so that an error of the estimate is not an out-of-memory."""

SLACK = {"checkpointing": 0.12, "full": 0.04, "adapter": 0.03, "logits": 0.2, "prefill": 0.2}
"""Shares of what a forward and backward hold that the caching allocator reserves and cannot use: with
checkpointing; without it, for full fine-tuning and for adapters; of full logits; of a prefill. Read off traces of 89 planned steps,
none of them a measured row, replayed through a simulation of the allocator (dryrun/allocator.py)."""

LATE_SLACK = {True: 0.2, False: 0.1}
"""The same where the peak comes after the backward, with and without checkpointing."""

SLACK_BYTES = 0.1 * GIB
"""The same for the segments of 2 and 20 MiB that small tensors share."""


@dataclass(frozen=True)
class Estimate:
    """One engine's answer, in bytes by part."""

    plan: Plan
    method: str
    """formula or dry-run."""
    moment: str
    """When in the step the peak is."""
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def total_gib(self) -> float:
        """What nvidia-smi would show."""
        return sum(self.parts.values()) / GIB

    def fits(self, card: Card) -> bool:
        """Say whether a card holds it, with a margin."""
        return self.total_gib * (1 + MARGIN) <= card.usable_gib

    def document(self, card: Card | None) -> dict[str, Any]:
        """Return the keys of CONTRACT's `plan memory`, without suggestions."""
        return {
            "fits": None if card is None else self.fits(card),
            "card": None if card is None else card.name,
            "card_gib": None if card is None else card.gib,
            "usable_gib": None if card is None else card.usable_gib,
            "total_gib": self.total_gib,
            "parts": {name: self.parts.get(name, 0) / GIB for name in PARTS},
            "method": self.method,
            "moment": self.moment,
        }


def estimate(plan: Plan) -> Estimate:
    """Return the formula's estimate of a checked plan."""
    moments = formula.moments(plan) if plan.trains else [inference.peak(plan)]
    # What is reserved decides, so that a moment with less in tensors and more in splinters can be the peak.
    moment = max(moments, key=lambda one: one.total + fragmentation(plan, one))
    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    parts |= {name: float(value) for name, value in moment.parts.items()}
    parts["context"] = context_bytes(plan)
    parts["fragmentation"] = fragmentation(plan, moment)
    return Estimate(plan, "formula", moment.moment, parts)


def context_bytes(plan: Plan) -> float:
    """Return what lies outside the allocator: the context, and optimizer states that are paged."""
    paged = optimizer_bytes(plan)[1] if plan.trains else 0
    group = 0.0
    if plan.gpus > 1:
        group = DISTRIBUTED_GIB + (DEEPSPEED_GIB if plan.strategy.startswith("zero") else 0)
    return (CONTEXT_GIB + group) * GIB + paged


def fragmentation(plan: Plan, moment: formula.Peak) -> float:
    """Return what the caching allocator reserves and cannot use at the peak; see SLACK.

    Where the peak comes after the backward (the last block, a tied embedding, the optimizer's update), the largest
    block of the step cannot be cut from the pieces that the optimizer's states and temporaries left, so it is
    reserved beside them: the fp32 gradient of the head, or half an fp32 copy of the logits. A tied embedding's own
    gradients are cut from the former.
    """
    if not plan.trains:
        return SLACK["prefill"] * moment.parts["activations"] + SLACK_BYTES
    apart = shard.unusable(plan, moment.transient) + SLACK_BYTES
    if plan.method == "full" and moment.moment in ("update", "embedding", "last block"):
        if plan.loss == "full":
            largest = 2 * plan.tokens * plan.model.vocabulary
        else:
            cut = moment.moment == "embedding" or (moment.moment == "last block" and plan.model.tied)
            # Where gradients are fp32 anyway, that of the head needs no cast and no second block.
            largest = 0 if cut or plan.trained_bytes == 4 else 4 * plan.model.head
        return largest + LATE_SLACK[plan.checkpointing] * moment.transient + apart
    logits = moment.parts.get("logits", 0) if plan.loss == "full" else 0
    rest = moment.transient - logits
    share = (
        SLACK["checkpointing"]
        if plan.checkpointing
        else SLACK["full" if plan.method == "full" else "adapter"]
    )
    if logits and plan.checkpointing and plan.method == "full":
        return share * max(0, rest) + _splinters(plan, moment) + apart
    return share * max(0, rest) + SLACK["logits"] * logits + apart


def _splinters(plan: Plan, moment: formula.Peak) -> float:
    """Return what full fine-tuning leaves unusable of full logits' blocks; checked on simulated steps alone.

    With checkpointing the blocks of the first forward's logits (one in 16 bits, three in fp32) are the only large
    free ones when gradients and then the optimizer's states are made. Those are cut from one block after the other,
    and every block that holds states is made anew in the second step; of the old one the rest is left. Where the
    blocks are used up, the update's temporaries lie beside them.
    """
    logits = plan.tokens * plan.model.vocabulary
    narrow, wide = compute_bytes(plan) * logits, 4 * logits
    gradients = plan.trained_bytes * plan.trainable
    states = moment.parts["optimizer"]
    cut = max(0, gradients + states - narrow)
    touched = min(narrow + 3 * wide, narrow + wide * -(-cut // wide))
    left = touched - min(states, max(0, touched - gradients))
    beside = formula.update_bytes(plan) if gradients + states > touched else 0
    return left + beside
