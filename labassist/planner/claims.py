"""The claims of the two articles, checked; those that arithmetic can settle are computed again by `--verify`."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from labassist.planner import formula, inference, time
from labassist.planner.arch import DATA, load
from labassist.planner.cards import find
from labassist.planner.memory import estimate
from labassist.planner.plan import Plan

GB = 1e9


@dataclass(frozen=True)
class Claim:
    """One claim: what was said, what is so, and how that was found."""

    id: str
    claim: str
    verdict: str
    corrected: str
    how: str
    command: str = ""
    expect: list[list[float]] = field(default_factory=list)
    """Bounds of each number that the check of the same id computes."""


def claims() -> list[Claim]:
    """Return the table, in its order."""
    rows = tomllib.loads((DATA / "claims.toml").read_text(encoding="utf-8"))
    return [Claim(id=name, **row) for name, row in rows.items()]


def verify() -> list[dict[str, Any]]:
    """Return, for each claim with a check, what it computes, the table's bounds, and whether they agree."""
    found = []
    for claim in claims():
        check = CHECKS.get(claim.id)
        if check is None:
            continue
        numbers = check()
        agree = len(numbers) == len(claim.expect) and all(
            low <= number <= high for number, (low, high) in zip(numbers, claim.expect, strict=True)
        )
        found.append({"id": claim.id, "computed": numbers, "expected": claim.expect, "agrees": agree})
    return found


def _weights(name: str, **settings: Any) -> float:
    """Gigabytes (1e9) of a model's weights."""
    return formula.weight_bytes(Plan(load(name), **{"method": "inference", **settings})) / GB


def _base_4bit(name: str) -> float:
    """Gigabytes (1e9) of a 4-bit base without adapters."""
    plan = Plan(load(name), method="qlora")
    return (formula.weight_bytes(plan) - 2 * plan.trainable) / GB


def _total(name: str, **settings: Any) -> float:
    """GiB as nvidia-smi would show."""
    return estimate(Plan(load(name), **settings).checked()).total_gib


def _awq_8b() -> float:
    """Gigabytes of an 8B in AWQ: 4 bits a weight, a 16-bit scale and a 4-bit zero for each 128; the rest 16-bit."""
    a = load("llama-3.1-8b")
    return (a.linear * (0.5 + 2.5 / 128) + 2 * (a.parameters - a.linear)) / GB


def _alpaca_hours() -> list[float]:
    """Hours of 52,002 examples of 256 tokens, three times, by QLoRA on one 4090 at MFU 0.5 and 0.2."""
    plan = Plan(load("llama-3.1-8b"), method="qlora", seq=256, batch=16)
    took = time.duration(plan, find("4090"), 52_002 * 256 * 3, mfu=(0.2, 0.5))
    return list(took.hours)


def _standard_error(share: float, n: int) -> float:
    return 100 * math.sqrt(share * (1 - share) / n)


THIRTEEN = 13.0
"""Billions of parameters, as the articles count them."""

CHECKS: dict[str, Callable[[], list[float]]] = {
    "weights-7b": lambda: [_weights("llama-2-7b"), _weights("qwen2.5-7b"), 24 - 18.6],
    "sum-13b": lambda: [26.4 * 4 + 4.3 + 1.8, 8 * THIRTEEN, 16 * THIRTEEN, 18 * THIRTEEN],
    "loader-vram": lambda: [4 * 2048 * 8 * 3 / 1e6],
    "six-to-twelve": lambda: [
        _total("qwen2.5-7b", method="full", optim="adamw_torch", seq=1024, batch=1) - 0.75,
        16 / 2,
        18 / 2,
        8 / 2,
    ],
    "qlora-7b": lambda: [
        _total("qwen2.5-7b", seq=2048, batch=2) - 0.75,
        _total("qwen2.5-7b", seq=2048, batch=2),
        _total("qwen2.5-7b", seq=2048, batch=2, loss="full"),
    ],
    "qlora-13b": lambda: [_total("llama-2-13b", seq=2048, batch=2)],
    "lora-8b": lambda: [
        _total("llama-3.1-8b", method="lora", seq=2048, batch=2),
        8 * load("llama-3.1-8b").parameters / GB,
        16 * load("llama-3.1-8b").parameters / GB,
    ],
    "swap-link": lambda: [24.1 / 32],
    "all-reduce-7b": lambda: [2 * load(name).parameters / GB for name in ("llama-2-7b", "qwen2.5-7b")],
    "alpaca-hours": _alpaca_hours,
    "accuracy-n": lambda: [_standard_error(0.61, 200), _standard_error(0.79, 200)],
    "optimizer-79": lambda: [2 * 2 * THIRTEEN, 2 * 4 * THIRTEEN, 26.4 * 3],
    "seven-a100": lambda: [16 * THIRTEEN / 4, 18 * THIRTEEN / 4],
    "four-bit-7b": lambda: [_base_4bit("qwen2.5-7b"), _base_4bit("llama-2-7b")],
    "inference-fits": lambda: [
        _weights("qwen2.5-7b"),
        _base_4bit("llama-2-13b"),
        inference.cache_bytes_a_token(Plan(load("llama-2-7b"), method="inference")) * 4096 / GB,
    ],
    "awq-p95": lambda: [
        _awq_8b(),
        1000 * _awq_8b() / find("4090").bandwidth,
        112 / (1000 * _awq_8b() / 1008),
    ],
}
"""Claim id -> the numbers of its correction, computed here and now."""
