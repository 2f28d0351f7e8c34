"""How long a training takes: FLOPs over what a card really does, a range until real steps calibrate it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labassist.errors import InputError
from labassist.planner.cards import Card
from labassist.planner.plan import Plan

LINK_SHARE = 0.8
"""What a collective reaches of a link's theoretical rate; NCCL's own tests show 70 to 90%."""

WARM_UP = 5
"""First steps that a calibration leaves out: kernels are chosen and caches filled in them."""

LEAST_STEPS = 10
"""Fewest steps that can calibrate, after the warm-up."""


def flops_a_token(plan: Plan) -> float:
    """Return the floating-point operations of a training step for one token.

    A forward is 2 a weight that multiplies (the blocks and the head; an embedding only looks up) and, for causal
    attention over s tokens, 2 x layers x q x s. A backward is twice that for full fine-tuning (6ND: Kaplan et al.,
    2020), once for LoRA, which needs no gradient of the frozen weights (4ND); checkpointing adds a forward (8, 6).
    """
    a = plan.model
    forward = 2 * (a.linear + a.head) + 2 * a.layers * a.q * plan.seq
    passes = 3 if plan.method == "full" else 2
    return float(forward * (passes + (1 if plan.checkpointing else 0)))


MFU = (0.3, 0.55)
"""Share of a card's dense peak that the matrix products of a busy card reach: 0.41 to 0.43 was measured with stock
TRL on an H200 at 4,096 tokens a forward of a 7B; published runs on A100s say 0.3 to 0.55."""

HOST_S = (20e-6, 60e-6)
"""Seconds that Python and the launch of one operator take. A step is never faster than its operators are launched:
on the H200 a 7B QLoRA step took 0.425 s at 1,024 tokens and 0.44 at 4,096. It is the host's figure, not the card's."""

BLOCK_OPERATORS, PAIR_OPERATORS = 40, 10
"""Operators of one block's forward, and of one LoRA pair's, as the dry run's trace counts them, rounded."""

UPDATE_BYTES = {"foreach": 45, "fused": 18}
"""Bytes a trained parameter that AdamW in bf16 moves: the fused kernel reads weight, gradient and moments and
writes three of them; the foreach form passes over them several times."""


def host_seconds(plan: Plan) -> tuple[float, float]:
    """Return the least seconds of one forward and backward that the host's launches allow, as a range."""
    pairs = len(plan.model.targeted(plan.lora_targets)) if plan.adapted else 0
    passes = 4 if plan.checkpointing else 3
    operators = plan.model.layers * passes * (BLOCK_OPERATORS + PAIR_OPERATORS * pairs)
    return operators * HOST_S[0], operators * HOST_S[1]


def update_seconds(plan: Plan, card: Card) -> float:
    """Return the seconds of the optimizer's update, which waits for memory: 0 where the bandwidth is not known."""
    if not card.bandwidth:
        return 0.0
    each = UPDATE_BYTES["fused" if plan.optimizer.in_place else "foreach"] * plan.trained_bytes / 2
    return each * plan.trainable / (card.bandwidth * 1e9)


@dataclass(frozen=True)
class Communication:
    """What one GPU sends over its link in one optimizer step."""

    bytes: float
    seconds: float
    share_exposed: float
    """Of a step, where nothing overlaps."""
    share_overlapped: float
    """Where all of the backward hides it."""


def communication(plan: Plan, gb_s: float, compute_s: float) -> Communication:
    """Return the traffic of a step whose computing takes `compute_s` seconds, over a link of `gb_s` GB/s.

    An all-reduce moves 2 x gradients x (N - 1) / N a GPU once an optimizer step (ZeRO-1 and 2 the same); ZeRO-3
    and FSDP gather the weights twice and scatter the gradients once for every forward.
    """
    ring = (plan.gpus - 1) / plan.gpus
    gradients = plan.trained_bytes * plan.trainable
    if plan.strategy in ("zero3", "fsdp"):
        weights = 2 * plan.model.parameters
        sent = plan.accumulate * ring * (2 * weights + gradients)
    else:
        sent = 2 * gradients * ring
    seconds = sent / (gb_s * 1e9 * LINK_SHARE) if plan.gpus > 1 else 0.0
    hidden = compute_s * 2 / 3
    exposed = max(0.0, seconds - hidden)
    return Communication(
        sent if plan.gpus > 1 else 0.0,
        seconds,
        seconds / (seconds + compute_s),
        exposed / (exposed + compute_s),
    )


@dataclass(frozen=True)
class Calibration:
    """What the first real steps of a run say."""

    steps: int
    step_s: float
    """Median seconds a step."""
    spread: float
    """Interquartile range over the median."""
    tokens_per_s: float
    """0 where the run did not say how many tokens a step has."""


def calibrate(times: Mapping[int, Any], tokens_a_step: int, *, steps: int = 20) -> Calibration:
    """Return the pace of a run from step -> seconds since its start, using `steps` steps after the warm-up.

    Raises InputError where there are too few, or no time passed.
    """
    ordered = [(step, float(times[step])) for step in sorted(times) if step > 0]
    gaps = [
        (later - earlier) / (b - a)
        for (a, earlier), (b, later) in itertools.pairwise(ordered)
        if later >= earlier
    ][WARM_UP : WARM_UP + steps]
    if len(gaps) < LEAST_STEPS:
        raise InputError(
            f"has {len(gaps)} steps after the first {WARM_UP}; a calibration needs {LEAST_STEPS}",
            where="--run",
            mend="let it run on, or leave --run out",
        )
    median = statistics.median(gaps)
    if median <= 0:
        raise InputError("has steps without time between them", where="--run", mend="name another run")
    quarters = statistics.quantiles(gaps, n=4)
    return Calibration(len(gaps), median, (quarters[2] - quarters[0]) / median, tokens_a_step / median)


@dataclass(frozen=True)
class Duration:
    """How long, as a range. Seconds and hours; `mfu` is None where a run was the measure."""

    tokens: float
    steps: float
    flops: float
    step_s: tuple[float, float]
    hours: tuple[float, float]
    mfu: tuple[float, float] | None
    communication: Communication


def duration(
    plan: Plan,
    card: Card,
    tokens: float,
    *,
    gb_s: float = 0.0,
    mfu: tuple[float, float] | None = None,
    tokens_per_s: float = 0.0,
) -> Duration:
    """Return how long `tokens` take.

    A step takes its products at an MFU of `MFU`, or as long as the host launches it, and its update. With `mfu` the
    products alone count. With `tokens_per_s` (of one GPU, measured) it is a range of 10% about it. Raises InputError on a card whose arithmetic is not in the table, where it is needed.
    """
    a_step = plan.tokens * plan.accumulate
    each = flops_a_token(plan)
    if tokens_per_s:
        quick, slow = a_step / (tokens_per_s * 1.1), a_step / (tokens_per_s / 1.1)
        share = None
    else:
        if not card.tflops:
            raise InputError(
                f"the arithmetic of {card.name} is not in the table",
                where="--card",
                mend="name the card (4090, A100 80GB, H200), or calibrate with --run",
            )
        share = mfu or MFU
        compute = [plan.tokens * each / (card.tflops * 1e12 * one) for one in (share[1], share[0])]
        floor = (0.0, 0.0) if mfu else host_seconds(plan)
        update = update_seconds(plan, card) if not mfu else 0.0
        quick = plan.accumulate * max(compute[0], floor[0]) + update
        slow = plan.accumulate * max(compute[1], floor[1]) + update
    traffic = communication(plan, gb_s or 1.0, quick)
    steps = max(1.0, tokens / (a_step * plan.gpus))
    step_s = (quick + max(0.0, traffic.seconds - quick * 2 / 3), slow + traffic.seconds)
    hours = (steps * step_s[0] / 3600, steps * step_s[1] / 3600)
    return Duration(tokens, steps, each * tokens, step_s, hours, share, traffic)
