"""Determinism as a mode that is set, and read back from torch rather than believed.

`exact`: two runs of the same code, data and environment on the same kind of machine give the same bits.
`fast`: the same seeds and threads, whatever kernels are quickest; two runs are then alike, not equal.
torch is imported on use.
"""

from __future__ import annotations

import os
import platform
import random
import sys
from typing import Any

from labassist.errors import InputError
from labassist.record.environment import CUBLAS_WORKSPACE, environment_for

__all__ = ["apply", "environment_for", "read_back", "rng_digests", "versions"]


def apply(mode: str, seed: int | None, threads: int) -> None:
    """Seed every generator (None: leave them as they are), fix the thread counts and, in `exact`, choose deterministic kernels only.

    Call it before the model is built. `threads` is the intra-op count, 0 for torch's own choice. In
    `exact` torch raises at any operation that has no deterministic form. Raises InputError for an unknown
    mode, or when CUDA has already started without the cuBLAS workspace that `exact` needs.
    """
    if mode not in ("exact", "fast"):
        raise InputError(f"the mode {mode!r} is unknown", where="mode", mend="use exact or fast")
    if mode == "exact":
        _require_cublas_workspace()
    import torch

    if seed is not None:
        random.seed(seed)
        torch.manual_seed(seed)  # every CUDA device too
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)
    if mode == "exact":
        _deterministic()
    _set_threads(threads)


def _deterministic() -> None:
    import torch

    torch.use_deterministic_algorithms(True)
    # Filling fresh memory with NaN shows reads of uninitialised memory; it costs time and no result needs it.
    memory: Any = torch.utils.deterministic
    memory.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    matmul = torch.backends.cuda.matmul
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_bf16_reduced_precision_reduction = False
    # Flash attention sums its gradients in a fixed order in deterministic mode, and plain maths always does.
    # The memory-efficient backward adds atomically, and cuDNN's own attention promises nothing.
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_math_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def _require_cublas_workspace() -> None:
    if os.environ.get("CUBLAS_WORKSPACE_CONFIG") in (CUBLAS_WORKSPACE, ":16:8"):
        return
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise InputError(
            f"CUDA has started without CUBLAS_WORKSPACE_CONFIG={CUBLAS_WORKSPACE}, which exact needs",
            where="environment",
            mend="set it before the program starts, or call determinism.apply before anything uses the GPU",
        )
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = CUBLAS_WORKSPACE


def _set_threads(threads: int) -> None:
    import torch

    if threads > 0:
        torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        try:
            torch.set_num_interop_threads(1)
        except RuntimeError as error:
            raise InputError(
                "torch has already started its inter-op threads",
                where="threads",
                mend="call determinism.apply before any other use of torch",
            ) from error


def read_back() -> dict[str, Any]:
    """Return every setting that can change bits, as torch and the environment report it now."""
    import torch

    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    memory: Any = torch.utils.deterministic
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill_uninitialized_memory": memory.fill_uninitialized_memory,
        "cudnn_deterministic": cudnn.deterministic,
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_allow_tf32": cudnn.allow_tf32,
        "matmul_allow_tf32": cuda.matmul.allow_tf32,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "fp16_reduced_precision_reduction": cuda.matmul.allow_fp16_reduced_precision_reduction,
        "bf16_reduced_precision_reduction": cuda.matmul.allow_bf16_reduced_precision_reduction,
        "sdp_flash": cuda.flash_sdp_enabled(),
        "sdp_math": cuda.math_sdp_enabled(),
        "sdp_mem_efficient": cuda.mem_efficient_sdp_enabled(),
        "sdp_cudnn": cuda.cudnn_sdp_enabled(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "cublas_workspace_config": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
        "python_hash_seed": os.environ.get("PYTHONHASHSEED", ""),
    }


def rng_digests() -> dict[str, str]:
    """Return the digest (16 hex digits) of each generator's state now: python, numpy, torch, `cuda:0`."""
    from labassist.record import checkpoint

    return checkpoint.rng_digests(checkpoint.capture_rng())


def versions() -> dict[str, str]:
    """Return the versions of what computes: python, torch, numpy, CUDA, cuDNN, NCCL and the GPU's name."""
    import torch

    cuda: Any = torch.cuda
    backends: Any = torch.backends
    found = {"python": platform.python_version(), "torch": torch.__version__}
    if "numpy" in sys.modules:
        found["numpy"] = sys.modules["numpy"].__version__
    if torch.cuda.is_available():
        found["cuda"] = torch.version.cuda or f"hip {torch.version.hip}"
        found["cudnn"] = str(backends.cudnn.version())
        found["gpu"] = torch.cuda.get_device_name()
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(map(str, cuda.nccl.version()))
    return found
