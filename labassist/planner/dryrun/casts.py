"""What CUDA's autocast computes in fp32 and the CPU's does not (ATen/autocast_mode.h): powers and layer norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.overrides import TorchFunctionMode

WIDE = {torch.pow, torch.Tensor.pow, torch.Tensor.__pow__, F.layer_norm}


class CudaCasts(TorchFunctionMode):
    """While autocast is on, gives these functions fp32 copies of 16-bit tensors."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the function, its tensors cast where CUDA would cast them."""
        if func in WIDE and torch.is_autocast_enabled("cpu"):
            args = [_wide(one) for one in args]
            kwargs = {name: _wide(one) for name, one in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
