"""What CUDA's autocast computes in fp32 and the CPU's does not (ATen/autocast_mode.h): powers and layer norms."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F  # noqa: N812 - its usual name


@contextlib.contextmanager
def cuda_casts() -> Iterator[None]:
    """While autocast is on, give these functions fp32 copies of 16-bit tensors, in checkpointed blocks too.

    (A TorchFunctionMode would be out of force while a backward computes blocks again.)
    """
    powers = mock.patch.object(torch, "pow", _wide(torch.pow))
    norms = mock.patch.object(F, "layer_norm", _wide(F.layer_norm))
    with powers, norms:
        yield


def _wide(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            args = tuple(_cast(one) for one in args)
            kwargs = {name: _cast(one) for name, one in kwargs.items()}
        return function(*args, **kwargs)

    return run


def _cast(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
