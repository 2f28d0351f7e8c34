"""A linear layer whose weight is nf4, with the memory of bitsandbytes' and none of its kernels.

Its classes stand in for bitsandbytes' own, so that peft wraps them with its 4-bit LoRA layer.
"""

from __future__ import annotations

from typing import Any

import bitsandbytes as bnb
import torch
from torch import nn


class _Product(torch.autograd.Function):
    """x times a 4-bit weight: the backward dequantises the weight to x's dtype for a moment, as MatMul4Bit."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, packed: torch.Tensor, shape: tuple[int, int]) -> Any:
        ctx.shape = shape
        ctx.save_for_backward(packed)
        return x.new_empty((*x.shape[:-1], shape[0]))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        weight = grad.new_empty(ctx.shape)
        return grad @ weight, None, None


class Linear4bit(bnb.nn.Linear4bit):  # type: ignore[misc]
    """Holds what a double-quantised nf4 weight holds: half a byte a number, one byte for 64, four for 16,384."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        count = linear.weight.numel()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = nn.Parameter(torch.empty((count // 2, 1), dtype=torch.uint8), requires_grad=False)
        self.absmax = torch.empty(-(-count // 64), dtype=torch.uint8)
        self.absmax_of_absmax = torch.empty(-(-count // (64 * 256)), dtype=torch.float32)
        self.codes = torch.empty(16 + 256 + 1, dtype=torch.float32)
        self.bias = linear.bias
        self.compute_dtype = torch.bfloat16
        self.weight.compress_statistics = True  # type: ignore[attr-defined]
        self.weight.quant_type = "nf4"  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product in the compute dtype, cast back to x's own dtype."""
        shape = (self.out_features, self.in_features)
        product: Any = _Product.apply
        out: torch.Tensor = product(x.to(self.compute_dtype), self.weight, shape)
        return out.to(x.dtype)


def quantise(model: nn.Module, skip: set[str]) -> None:
    """Replace every linear layer except those whose last name is in `skip` (the head stays 16-bit)."""
    for module in list(model.modules()):
        for child_name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child_name not in skip:
                setattr(module, child_name, Linear4bit(child))
    model.is_loaded_in_4bit = True  # type: ignore[assignment]
