"""The instant engine: the peak of one training step, by formula.

A step has four moments that can be its peak: the end of the forward, the head's backward, a block's backward, and
the optimizer's update. Each is a sum of tensors that are alive then; the largest moment is the peak.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from labassist.planner import shard
from labassist.planner.activations import block, compute_bytes, residual_bytes
from labassist.planner.plan import Plan

GIB = 1024**3
MIB = 1024**2

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes a 4-bit weight with double quantisation: half, one for each 64, four for each 16,384 (QLoRA, 2023)."""

TILE_TOKENS, TILE_ENTRIES = 4096, 32768
"""TRL 1.16 projects the head in tiles of this size (trl/kernels/chunked_logprob.py, trl/trainer/utils.py)."""

CUBLAS_BYTES = 64 * MIB
"""Two cuBLAS workspaces of 32 MiB, one for the forward's thread and one for the backward's (aten, CUDABlas.cpp:
the size on Hopper; 8.1 MiB elsewhere)."""


@dataclass(frozen=True)
class Peak:
    """Bytes alive at the peak, by part; the allocator's own view, without context and fragmentation."""

    moment: str
    """head, forward, block, last block, embedding or update; prefill for inference."""
    parts: dict[str, int] = field(default_factory=dict)
    transient: int = 0
    """Most bytes of activations and logits that any moment of the step holds."""

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(self.parts.values())


def weight_bytes(plan: Plan) -> int:
    """Return the bytes of the weights, adapters included (fp32; bf16 over a 4-bit base, as TRL casts them)."""
    a = plan.model
    each = 4 if plan.trains and plan.dtype == "mixed" else 4 if plan.dtype == "fp32" else 2
    if plan.method == "qlora":
        return int(a.linear * NF4_BYTES) + 2 * (a.parameters - a.linear) + 2 * plan.trainable
    return each * a.parameters + (4 * plan.trainable if plan.method == "lora" else 0)


def optimizer_bytes(plan: Plan) -> tuple[int, int]:
    """Return the bytes of the optimizer's state inside the allocator, and of paged state outside it."""
    kind = plan.optimizer
    if not kind.eight_bit and not kind.paged:
        return kind.moments * plan.trained_bytes * plan.trainable, 0
    inside = outside = 0
    for count, copies, wide in _tensors(plan):
        in_8_bit = kind.eight_bit and not wide
        size = sum(kind.buffers(count)) if in_8_bit else kind.moments * 4 * count
        paged = kind.moments * (1 if in_8_bit else 4) * count if kind.pages(count) else 0
        inside += copies * (size - paged)
        outside += copies * paged
    return inside, outside


def _tensors(plan: Plan) -> list[tuple[int, int, bool]]:
    """Return (numbers, how many, moments stay 32-bit) of the trained tensors; small ones together.

    transformers' Trainer tells bitsandbytes to keep the moments of embeddings in 32 bits (Trainer.create_optimizer).
    """
    a = plan.model
    if plan.adapted:
        pairs = a.targeted(plan.lora_targets)
        return [
            (plan.lora_r * side, a.layers, False)
            for matrix in pairs
            for side in (matrix.inputs, matrix.outputs)
        ]
    found = [(matrix.count, a.layers, False) for matrix in a.matrices]
    found.append((a.head, 1, plan.trainer == "trl"))
    if not a.tied:
        found.append((a.head, 1, False))
    rest = a.parameters - sum(count * copies for count, copies, _ in found)
    small = a.layers * a.norms + 1
    return [*found, (rest // small, small, False)]


def update_bytes(plan: Plan) -> int:
    """Return the temporaries of the optimizer's update.

    The foreach form of torch's AdamW makes one list as large as what it updates (the square roots of the second
    moment); the fused form and bitsandbytes' kernels make none.
    """
    kind = plan.optimizer
    return 0 if kind.in_place else plan.trained_bytes * plan.trainable


def peak(plan: Plan) -> Peak:
    """Return the moment of a training step on one GPU that holds the most bytes of tensors."""
    return max(moments(plan), key=lambda moment: moment.total)


def moments(plan: Plan) -> list[Peak]:
    """Return the moments of a training step on one GPU, shards counted as `plan.strategy` says."""
    one = block(plan)
    a, tokens = plan.model, plan.tokens
    static = {
        "weights": shard.weights(plan, weight_bytes(plan)),
        "optimizer": shard.optimizer(plan, optimizer_bytes(plan)[0]),
        "workspace": CUBLAS_BYTES + shard.buffers(plan),
    }
    gradients = shard.gradients(plan, plan.trained_bytes * plan.trainable)
    full = plan.method == "full"
    head_gradient = plan.trained_bytes * a.head if full else 0
    at_head = gradients if plan.keeps_gradients else 0
    copies = a.layers * one.copies
    kept = a.layers * (one.entry if plan.checkpointing else one.saved)
    if not plan.checkpointing:
        kept += copies
    # The final norm keeps its input in fp32; a trained one its normalised value too.
    kept += tokens * a.hidden * (4 + (residual_bytes(plan) if full else 0))
    loss = _loss(plan)
    unsharded = shard.unit(plan)
    found = [
        Peak(
            "head",
            {
                **static,
                "gradients": at_head,
                "activations": kept,
                "logits": loss.backward,
                "workspace": static["workspace"] + unsharded,
            },
        )
    ]
    if plan.dtype == "mixed" and plan.checkpointing and full:
        found.append(
            Peak(
                "forward",
                {**static, "gradients": at_head, "activations": kept + copies, "logits": loss.forward},
            )
        )
    working = (one.saved + one.copies if plan.checkpointing else 0) + one.backward
    first = {
        **static,
        "gradients": max(at_head, shard.gradients(plan, head_gradient)),
        "activations": kept + working,
        "logits": loss.left,
        "workspace": static["workspace"] + unsharded + (_largest_gradient(plan) if full else 0),
    }
    found.append(Peak("block", first))
    left = a.hidden * residual_bytes(plan) * tokens + (one.saved if not plan.checkpointing else 0)
    last = {
        **static,
        "gradients": gradients,
        "activations": left + working,
        "logits": loss.left,
        "workspace": static["workspace"] + unsharded,
    }
    found.append(Peak("last block", last))
    if full:
        # A tied embedding's own gradient is added to the head's in place, both alive.
        extra = head_gradient * ((1 if a.tied else 0) + (1 if plan.keeps_gradients else 0))
        found.append(Peak("embedding", {**static, "gradients": gradients + extra, "logits": loss.left}))
    update = shard.update(plan, update_bytes(plan))
    found.append(
        Peak(
            "update",
            {**static, "gradients": gradients, "workspace": static["workspace"] + update},
        )
    )
    transient = max(one.parts.get("activations", 0) + one.parts.get("logits", 0) for one in found)
    return [replace(one, transient=transient) for one in found]


@dataclass(frozen=True)
class Loss:
    """Bytes of the head and the loss: at the end of the forward, in its backward, and what stays after."""

    forward: int
    backward: int
    left: int


def _loss(plan: Plan) -> Loss:
    """Return what the loss takes.

    Full logits: the 16-bit logits, their fp32 copy and the log-softmax in the forward; in the backward the
    log-softmax and two fp32 gradients (12 bytes a logit, and 2 more where the caller still holds the logits, as a
    plain loop does). Chunked: the picked hidden states, their fp32 gradient, one tile, and for a trained head its
    fp32 gradient beside the cast one.
    """
    a, tokens, c = plan.model, plan.tokens, compute_bytes(plan)
    picked = tokens * a.hidden * c
    logits = tokens * a.vocabulary
    if plan.loss == "full":
        held = c * logits if plan.trainer == "loop" else 0
        # A soft cap on the logits keeps its tanh.
        held += c * logits if a.model_type == "gemma2" else 0
        cast = 2 * a.head if plan.dtype == "mixed" else 0
        forward = picked + cast + logits * (c + 8)
        return Loss(forward, picked + cast + held + 12 * logits, c * logits if plan.trainer == "loop" else 0)
    tile = min(tokens, TILE_TOKENS) * TILE_ENTRIES * c
    if plan.dtype == "mixed":
        tile += 2 * TILE_ENTRIES * a.hidden
    fp32 = tokens * a.hidden * 4 + (4 * a.head if plan.method == "full" else 0)
    cast = tokens * a.hidden * c + (plan.trained_bytes * a.head if plan.method == "full" else 0)
    return Loss(picked + tile, picked + 36 * tokens + fp32 + max(tile, cast), 0)


def _largest_gradient(plan: Plan) -> int:
    """Return the bytes of the largest weight's gradient in a block: a temporary before it is added or kept."""
    return plan.trained_bytes * max(matrix.count for matrix in plan.model.matrices)
