"""The loss of TRL 1.16's SFT trainer: its head projects tiles of the vocabulary and never holds all logits.

Allocates what `trl.kernels.chunked_logprob` allocates on CUDA (its own path on the CPU makes other temporaries):
a tile of at most 4,096 tokens by 32,768 entries in the compute dtype, and in the backward fp32 gradients of the
hidden states and of a trainable head.
"""

from __future__ import annotations

from typing import Any

import torch

TOKENS = 4096
ENTRIES = 32768


class ChunkedLoss(torch.autograd.Function):
    """Per-token log-probabilities of hidden (N, h) under a head (V, h); values are never computed."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> Any:
        """Return (N,) fp32; keeps the factors and two statistics a token."""
        count = hidden.shape[0]
        compute = _compute_dtype(hidden)
        statistics = [hidden.new_zeros(count, dtype=torch.float32) for _ in range(7)]
        tile = hidden.new_empty((min(count, TOKENS), min(ENTRIES, weight.shape[0])), dtype=compute)
        part = _part(hidden, weight, compute)
        del part, tile
        log_z = statistics[0] + torch.log(statistics[1])
        entropy = log_z - statistics[2] / statistics[1]
        ctx.save_for_backward(hidden, weight, log_z, entropy)
        ctx.compute = compute
        return statistics[6] - log_z

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Return the gradients of hidden, and of a weight that is trained, in their dtypes."""
        hidden, weight, _log_z, _entropy = ctx.saved_tensors
        of_hidden = torch.zeros(hidden.shape, dtype=torch.float32)
        of_weight = torch.zeros(weight.shape, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        tile = hidden.new_empty((min(len(hidden), TOKENS), min(ENTRIES, weight.shape[0])), dtype=ctx.compute)
        part = _part(hidden, weight, ctx.compute)
        del part, tile
        return of_hidden.to(hidden.dtype), None if of_weight is None else of_weight.to(weight.dtype)


def _compute_dtype(hidden: torch.Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def _part(hidden: torch.Tensor, weight: torch.Tensor, compute: torch.dtype) -> tuple[Any, Any]:
    """Return one tile's factors: copies where the dtype is another one."""
    return hidden[:TOKENS].to(compute), weight[:ENTRIES].to(compute)
