"""Starts the dry-run engine: a step on fake tensors in a process of its own, without a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from typing import Any

from labassist import own
from labassist.errors import InputError
from labassist.planner.formula import CUBLAS_BYTES
from labassist.planner.memory import Estimate, estimate
from labassist.planner.plan import Plan

NEEDS = ("torch", "transformers")
DISAGREE = 0.05
"""Engines further apart than this are said to disagree."""

TIMEOUT_S = 900.0


def request(plan: Plan) -> dict[str, Any]:
    """Return what the script is told. Raises InputError on what it does not cover."""
    if plan.gpus > 1:
        raise InputError(
            "the dry run is of one GPU", where="--dry-run", mend="leave --gpus out, or take the formula alone"
        )
    if not plan.model.config:
        raise InputError("the dry run needs the model's config", where="--dry-run")
    return {
        "config": plan.model.config,
        "method": plan.method,
        "dtype": plan.dtype,
        "optim": plan.optimizer.label,
        "seq": plan.seq,
        "batch": plan.batch,
        "accumulate": min(plan.accumulate, 2),
        "checkpointing": plan.checkpointing,
        "attention": plan.attention,
        "loss": plan.loss,
        "trainer": plan.trainer,
        "padded": plan.padded,
        "lora_r": plan.lora_r,
        "lora_targets": [one.name for one in plan.model.targeted(plan.lora_targets)] if plan.adapted else [],
        "lora_dropout": plan.lora_dropout,
    }


def run(plan: Plan) -> dict[str, Any]:
    """Run the dry-run engine and return its answer in bytes: loaded, peak, reserved, trainable.

    Raises InputError where the packages it needs are missing or the step cannot be run.
    """
    asked = request(plan)
    needs = [
        *NEEDS,
        *(["peft"] if plan.adapted else []),
        *(["bitsandbytes"] if plan.method == "qlora" else []),
    ]
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"needs {', '.join(missing)}, which this Python has not",
            where="--dry-run",
            mend="pip install 'labassist[train]', or leave --dry-run out",
        )
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            own.start("labassist.planner.dryrun.__main__"),
            input=json.dumps(asked),
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            f"took more than {TIMEOUT_S:.0f} s", where="--dry-run", mend="take the formula alone"
        ) from None
    if done.returncode:
        raise InputError(
            f"the step cannot be run here: {own.last_line(done.stderr) or 'no message'}",
            where="--dry-run",
            mend="check that transformers knows the model, or leave --dry-run out",
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def estimate_of(plan: Plan, answer: dict[str, Any]) -> Estimate:
    """Return the estimate that an answer of `run` makes.

    Its peak is counted; the split into parts is the formula's, what the two differ by stands with the activations.
    Fragmentation is what the simulated allocator reserved beyond the peak.
    """
    base = estimate(plan)
    parts = dict(base.parts)
    inside = sum(value for name, value in parts.items() if name not in ("context", "fragmentation"))
    parts["activations"] += answer["peak"] + CUBLAS_BYTES - inside
    parts["fragmentation"] = max(0, answer["reserved"] - answer["peak"])
    return Estimate(plan, "dry-run", base.moment, parts)


def dry_estimate(plan: Plan) -> Estimate:
    """Run the dry-run engine and return its estimate; raises as `run`."""
    return estimate_of(plan, run(plan))


def disagreement(first: Estimate, second: Estimate) -> float:
    """Return by which share of the larger the two totals differ."""
    a, b = first.total_gib, second.total_gib
    return abs(a - b) / max(a, b)
