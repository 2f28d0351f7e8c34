"""Faults of the stock stack in a first run, put right before the first step."""

from __future__ import annotations

from typing import Any


def keep_differentiable(model: Any) -> int:
    """Keep 4-bit layers on a CPU from being repacked by an evaluation; return how many there are.

    On a CPU with AVX512-BF16, bitsandbytes lays the weights of a layer out anew at its first forward in evaluation,
    for an inference kernel that has no backward. Training then goes on with that kernel: no gradient passes the layer
    any more, without an error, and a resumed run, which has not evaluated yet, trains on with gradients.
    """
    layers = [
        module
        for module in model.modules()
        if getattr(module, "support_avx512bf16_for_cpu", False) and module.weight.device.type == "cpu"
    ]
    for layer in layers:
        layer.support_avx512bf16_for_cpu = False
    return len(layers)
