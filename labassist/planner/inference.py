"""Memory for answering: weights, the key-value cache, one prefill, and what vLLM takes whatever it needs."""

from __future__ import annotations

from dataclasses import dataclass

from labassist.planner.cards import Card
from labassist.planner.formula import CUBLAS_BYTES, GIB, Peak, weight_bytes
from labassist.planner.plan import Plan

VLLM_UTILISATION = 0.92
"""vLLM's default gpu_memory_utilization: the share of the whole card that it takes at its start."""

VLLM_OVERHEAD_GIB = 1.5
"""What vLLM needs beside weights and cache: context, CUDA graphs and the activations of its profiling run. An
estimate: serving on a GPU has not been measured here yet."""


def cache_bytes_a_token(plan: Plan) -> int:
    """Return the bytes of keys and values that one token of one sequence keeps: 2 x layers x kv x bytes."""
    a = plan.model
    return 2 * a.layers * a.kv * (4 if plan.dtype == "fp32" else 2)


def peak(plan: Plan) -> Peak:
    """Return the most that a prefill of `batch` sequences of `seq` tokens holds.

    The whole cache, one block's MLP (its factors and product, or the steps of GPT-2's activation, and four hidden
    states), and the logits of the last position of each sequence in 16 bits and fp32: transformers' `generate`
    computes no others.
    """
    a, tokens = plan.model, plan.tokens
    c = 4 if plan.dtype == "fp32" else 2
    mlp = tokens * c * ((3 if a.gated else 5) * a.ffn + 4 * a.hidden)
    if plan.attention == "eager":
        mlp = max(mlp, plan.batch * a.heads * plan.seq**2 * (2 * c + 4))
    logits = plan.batch * a.vocabulary * (c + 4)
    return Peak(
        "prefill",
        {
            "weights": weight_bytes(plan),
            "activations": tokens * cache_bytes_a_token(plan) + mlp,
            "logits": logits,
            "workspace": CUBLAS_BYTES // 2,
        },
    )


@dataclass(frozen=True)
class Serving:
    """What vLLM would make of a card. Sizes in GiB."""

    utilisation: float
    takes: float
    cache: float
    """Left for keys and values: negative where the weights alone are too much."""
    sequences: int
    """Whole sequences of the planned length that the cache holds at once."""


def serving(plan: Plan, card: Card) -> Serving:
    """Return how vLLM divides a card, which it fills to `VLLM_UTILISATION` whatever the model needs."""
    takes = VLLM_UTILISATION * card.usable_gib
    cache = takes - weight_bytes(plan) / GIB - VLLM_OVERHEAD_GIB
    one = cache_bytes_a_token(plan) * plan.seq / GIB
    return Serving(VLLM_UTILISATION, takes, cache, max(0, int(cache / one)))
