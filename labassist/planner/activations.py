"""Bytes that a forward keeps for its backward, block by block.

Everything here was derived from what autograd saves in transformers' modelling code (RMSNorm, rotary embedding,
gated MLP, attention interface), peft's LoRA layers and PyTorch's kernels, and checked tensor by tensor against
the dry run; nothing is fitted. Symbols: T tokens, h hidden, q and kv widths of queries and keys, f FFN width,
c bytes of a number in the compute dtype (2 in bf16 and under autocast), r bytes of one in the residual stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from labassist.planner.arch import Matrix
from labassist.planner.plan import Plan


@dataclass(frozen=True)
class Block:
    """One transformer block, in bytes for the whole batch of one GPU."""

    saved: int
    """Kept from its forward to its backward."""
    entry: int
    """Its input alone: what checkpointing keeps."""
    backward: int
    """Most that its backward holds beside what was saved."""
    copies: int
    """16-bit copies of its weights that autocast made and the backward needs."""


def compute_bytes(plan: Plan) -> int:
    """Return the bytes of a number in the forward's products: 4 in fp32, else 2."""
    return 4 if plan.dtype == "fp32" else 2


def residual_bytes(plan: Plan) -> int:
    """Return the bytes of a number in the residual stream: that of the weights' dtype."""
    return 2 if plan.dtype == "bf16" else 4


def block(plan: Plan) -> Block:
    """Return what one block keeps and needs."""
    a, tokens = plan.model, plan.tokens
    c, r = compute_bytes(plan), residual_bytes(plan)
    saved = tokens * (_norms(plan) + _inputs(plan) + _mlp(plan)) + _attention(plan)
    copies = 2 * sum(matrix.count for matrix in a.matrices) if plan.dtype == "mixed" else 0
    if plan.method == "lora" and plan.autocast:
        copies += 2 * sum(count for _, count in a.adapters(plan.lora_r, plan.lora_targets))
    # The MLP's backward starts it: the gradients of the output, of the product and of its two factors, when the
    # input of the last projection is gone already. A 4-bit weight is dequantised before, one at a time.
    # GPT-2's product and factors are fp32 under CUDA's autocast.
    factors = 3 * c if a.gated else 3 * 4 if plan.autocast else 2 * c
    backward = tokens * (a.hidden * r + factors * a.ffn - _last_input(plan))
    if plan.method == "lora" and plan.autocast and a.matrices[-1] in a.targeted(plan.lora_targets):
        # The pair of the last projection: the product, its fp32 copy and that after dropout.
        backward = max(backward, tokens * a.ffn * (c + 4 + (4 if plan.lora_dropout else 0)))
    if plan.method == "qlora":
        largest = max(matrix.count for matrix in a.matrices)
        backward = max(backward, tokens * (a.hidden + a.ffn) * c + 2 * largest)
    if plan.attention == "eager":
        # Softmax's backward, when the MLP is done: its fp32 output, the fp32 gradient and the result; the cast
        # that was kept beside the output is gone.
        square = plan.batch * a.heads * plan.seq**2
        backward = max(backward, square * (8 - (c if c == 2 else 0)) - tokens * _mlp(plan))
    return Block(saved=saved, entry=tokens * a.hidden * r, backward=backward, copies=copies)


def _norms(plan: Plan) -> int:
    """Bytes a token that the norms keep: their input in fp32, and for a trained weight the normalised value."""
    a = plan.model
    c, r = compute_bytes(plan), residual_bytes(plan)
    trained = plan.method == "full"
    if a.model_type == "gpt2":
        # CUDA's autocast computes layer_norm in fp32.
        return a.norms * a.hidden * (4 if plan.autocast else r)
    normalised = 0
    if trained:
        # Gemma multiplies in fp32 before it casts back.
        normalised = 4 if a.model_type.startswith("gemma") else r
    total = a.norms * a.hidden * (4 + normalised)
    if a.qk_norm:
        normalised = 0 if not trained else 4 if a.model_type.startswith("gemma") else c
        total += (a.q + a.kv) * (4 + normalised)
    return total


def _inputs(plan: Plan) -> int:
    """Bytes a token of the inputs that the weights' gradients need, apart from the MLP's own product.

    Full fine-tuning keeps each projection's input: once where several share it, once each where autocast casts
    it for each. A LoRA pair keeps its own copy (peft casts the input to the adapter's fp32, autocast casts it
    back), what comes out of A, and with dropout a one-byte mask; outside autocast the copy is fp32. Over a 4-bit
    base nothing is cast: without dropout the pairs of one input share it.
    """
    a, c = plan.model, compute_bytes(plan)
    if plan.method == "full":
        casts = 5 if plan.dtype == "mixed" and a.model_type not in ("phi3", "gpt2") else 2
        return casts * a.hidden * c
    total = 0
    shared: set[int] = set()
    for matrix in a.targeted(plan.lora_targets):
        total += _pair(plan, matrix, shared)
    return total


def _pair(plan: Plan, matrix: Matrix, shared: set[int]) -> int:
    """Bytes a token that one LoRA pair keeps; `shared` are the inputs that another pair has kept already."""
    n, c, rank = matrix.inputs, compute_bytes(plan), plan.lora_r
    mask = n if plan.lora_dropout else 0
    if plan.method == "lora" and not plan.autocast:
        return mask + 4 * (n + rank)
    if plan.method == "lora" or plan.lora_dropout:
        return mask + c * (n + rank)
    own = 0 if n in shared or matrix.name == "o_proj" else c * n
    shared.add(n)
    return own + c * rank


def _last_input(plan: Plan) -> int:
    """Bytes a token of what the MLP's last projection keeps: gone when its factors' gradients are made."""
    a = plan.model
    if plan.method == "full":
        return a.ffn * compute_bytes(plan)
    last = a.matrices[-1]
    return _pair(plan, last, set()) if last in a.targeted(plan.lora_targets) else 0


def _mlp(plan: Plan) -> int:
    """Bytes a token of the MLP: gate, its activation, up, and for a trained down projection their product.

    GPT-2's activation is spelled out in Python and keeps four values, three of them in fp32 where CUDA's autocast
    computes its power so; the input of its second projection is one more. Its residual dropouts keep two masks.
    """
    a, c = plan.model, compute_bytes(plan)
    product = 1 if plan.method == "full" else 0
    if a.model_type == "gpt2":
        kept = 3 * 4 + c if plan.autocast else 4 * c
        return (kept + product * c) * a.ffn + 2 * a.hidden
    return (3 + product) * a.ffn * c


def _attention(plan: Plan) -> int:
    """Bytes of attention: queries, keys, values and output; with flash kernels the row sums in fp32.

    An explicit mask (padding in the batch) makes transformers repeat keys and values for every query head and
    keeps a batch x s x s mask a block. Eager attention keeps the softmax in fp32 and its cast, heads x s x s; a soft
    cap on the scores (Gemma 2) its tanh too.
    """
    a, c, tokens = plan.model, compute_bytes(plan), plan.tokens
    square = plan.batch * plan.seq**2
    wide = plan.padded or plan.attention == "eager"
    keys = a.q if wide else a.kv
    total = tokens * c * (2 * a.q + 2 * keys)
    if a.model_type == "phi3" and not wide:
        # The values are a view of the fused projection, which stays whole.
        total += tokens * c * (a.q + a.kv)
    if plan.attention == "eager":
        return total + a.heads * square * (4 + c + (c if a.model_type == "gemma2" else 0))
    total += 4 * tokens * a.heads
    if plan.padded:
        total += square * c
    return total
