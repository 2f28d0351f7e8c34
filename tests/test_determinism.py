"""Determinism: what is set is read back, and what must be set before the start is demanded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from labassist.record.environment import environment_for

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parent.parent


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith(("CUBLAS", "OMP", "MKL"))
    }
    environ |= {"PYTHONPATH": str(ROOT), **env}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)


def test_environment_pins_threads_hash_seed_and_cublas():
    exact = environment_for("exact", 2**32 + 5, 3)
    assert exact["PYTHONHASHSEED"] == "5"
    assert exact["OMP_NUM_THREADS"] == exact["MKL_NUM_THREADS"] == "3"
    assert exact["OMP_WAIT_POLICY"] == "PASSIVE"
    assert exact["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "CUBLAS_WORKSPACE_CONFIG" not in environment_for("fast", 5, 3)


def test_environment_is_told_without_torch():
    code = (
        "import sys; from labassist.record.environment import environment_for; "
        "from labassist import record; environment_for('exact', 1, 1); print('torch' in sys.modules)"
    )
    assert python(code).stdout.strip() == "False"


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What one process reports: torch is loaded once, and CUBLAS_WORKSPACE_CONFIG was not set for it."""
    code = """
import json, random
from labassist.record import determinism
def report(mode, seed):
    determinism.apply(mode, seed, 1)
    import torch
    return [determinism.rng_digests(), random.random(), float(torch.rand(()))]
found = {"fast": report("fast", 5), "fast_flags": determinism.read_back()}
found |= {"exact": report("exact", 5), "again": report("exact", 5), "other": report("exact", 6)}
found["flags"] = determinism.read_back()
import torch
torch.use_deterministic_algorithms(False); torch.backends.cudnn.benchmark = True
found["changed"] = determinism.read_back()
print(json.dumps(found))
"""
    done = python(code, PYTHONHASHSEED="5")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_exact_is_read_back_from_torch(told):
    flags = told["flags"]
    expected = {
        "deterministic_algorithms": True,
        "cudnn_deterministic": True,
        "cudnn_benchmark": False,
        "cudnn_allow_tf32": False,
        "matmul_allow_tf32": False,
        "matmul_precision": "highest",
        "fp16_reduced_precision_reduction": False,
        "bf16_reduced_precision_reduction": False,
        "sdp_flash": True,
        "sdp_math": True,
        "sdp_mem_efficient": False,
        "sdp_cudnn": False,
        "threads": 1,
        "interop_threads": 1,
        "python_hash_seed": "5",
    }
    assert {name: flags[name] for name in expected} == expected
    assert flags["cpu_capability"]


def test_exact_sets_the_cublas_workspace_while_it_still_can(told):
    assert told["fast_flags"]["cublas_workspace_config"] == ""
    assert told["flags"]["cublas_workspace_config"] == ":4096:8"


def test_read_back_sees_a_flag_that_was_changed_later(told):
    assert not told["changed"]["deterministic_algorithms"] and told["changed"]["cudnn_benchmark"]


def test_seeds_decide_the_generators_in_both_modes(told):
    assert told["exact"] == told["again"] == told["fast"]
    digests, others = told["exact"][0], told["other"][0]
    assert {"python", "torch"} <= set(digests)
    assert all(len(digest) == 16 and digest != others[name] for name, digest in digests.items())
    assert told["fast_flags"]["deterministic_algorithms"] is False


def test_exact_refuses_where_it_is_too_late():
    code = """
import torch
torch.cuda.is_initialized = lambda: True   # stands for a machine whose CUDA runs already
from labassist.errors import InputError
from labassist.record import determinism
try:
    determinism.apply("exact", 1, 1)
except InputError as error:
    print(error)
"""
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in python(code).stdout


def test_an_unknown_mode_is_refused():
    done = python("from labassist.record import determinism; determinism.apply('quick', 1, 1)")
    assert "the mode 'quick' is unknown" in done.stderr
