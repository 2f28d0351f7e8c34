"""The environment variables that a run's mode needs before its trainer starts.

They are read once, when the interpreter, OpenMP or CUDA starts, so a trainer cannot set them itself.
"""

from __future__ import annotations

import os

CUBLAS_WORKSPACE = ":4096:8"
"""Eight 4 MiB buffers a stream: one of the two settings with which cuBLAS promises equal results."""


def environment_for(mode: str, seed: int, threads: int) -> dict[str, str]:
    """Return the variables to set for a trainer of this mode, seed and intra-op thread count.

    The hash seed decides the order of every set of strings; thread counts decide how sums are split,
    and so their last bits. `exact` also fixes the cuBLAS workspace.
    """
    count = str(max(1, threads))
    variables = {
        "PYTHONHASHSEED": str(seed % 2**32),
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "OMP_DYNAMIC": "FALSE",
        "MKL_DYNAMIC": "FALSE",
        # Threads that wait by spinning take the cores from those they wait for as soon as anything else runs
        # on the machine: with two busy cores a step was seen to take 50 times as long. No result depends on it.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if mode == "exact":
        variables["CUBLAS_WORKSPACE_CONFIG"] = CUBLAS_WORKSPACE
    return variables


def cores() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
