"""Attention with the memory of CUDA's flash kernel: no scores, no mask, keys and values not repeated.

On the CPU, and on fake tensors everywhere, transformers makes an explicit mask and repeats keys and values for
grouped queries; on CUDA, where the batch holds no padding, it does neither.
"""

from __future__ import annotations

from typing import Any

import torch

NAME = "labassist"


class _Flash(torch.autograd.Function):
    """Query (B, H, S, d), key and value (B, K, S, d) -> output (B, H, S, d).

    The forward keeps its inputs, the output and the log-sum-exp in fp32. The backward takes an fp32 accumulator
    of dq, the row sums, and for grouped queries one dk and dv a query head before they are summed
    (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd).
    """

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        batch, heads, length, size = query.shape
        out = query.new_empty((batch, length, heads, size)).transpose(1, 2)
        log_sum = query.new_empty((batch, heads, length), dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, log_sum)
        return out

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        query, key, value, _out, log_sum = ctx.saved_tensors
        accumulator = torch.empty_like(query, dtype=torch.float32)
        row_sums = torch.empty_like(log_sum)
        of_query, of_key, of_value = (torch.empty_like(one) for one in (query, key, value))
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            wide = [torch.empty_like(query), torch.empty_like(query)]
            del wide
        del accumulator, row_sums
        return of_query, of_key, of_value


def flash(
    module: torch.nn.Module,  # noqa: ARG001 - the interface's
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,  # noqa: ARG001
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' attention interface: return (B, S, H, d) and no weights."""
    if torch.is_autocast_enabled("cpu"):
        # Scaled dot-product attention is on autocast's list.
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    apply: Any = _Flash.apply
    out: torch.Tensor = apply(query, key, value)
    return out.transpose(1, 2).contiguous(), None


def register() -> None:
    """Make the implementation known to transformers under NAME."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, flash)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)
