"""Compare what a resume is planned to do with what the checkpoint was made by."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labassist.errors import InputError, did_you_mean
from labassist.resume.description import Description

KEYS: dict[str, tuple[type, ...]] = {
    "max_steps": (int,),
    "num_train_epochs": (int, float),
    "per_device_train_batch_size": (int,),
    "gradient_accumulation_steps": (int,),
    "world_size": (int,),
    "dataset_length": (int,),
    "packing": (bool,),
    "zero_stage": (int,),
    "precision": (str,),
    "seed": (int,),
}
_PRECISIONS = {
    "fp32": "fp32",
    "float32": "fp32",
    "no": "fp32",
    "32": "fp32",
    "32-true": "fp32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "bf16-mixed": "bf16",
    "amp_bf16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "16-mixed": "fp16",
    "amp_fp16": "fp16",
}


LEAST = {"zero_stage": 0, "seed": 0, "max_steps": -1, "num_train_epochs": -1}
"""Smallest values where it is not 1: the Trainer's -1 steps mean that the epochs count."""
MOST = {"zero_stage": 3}
MAX_PLAN_BYTES = 1 << 20


def read_plan(path: Path) -> dict[str, Any]:
    """Return a plan from a TOML or JSON file. Raises InputError naming the key that is unknown or mistyped."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PLAN_BYTES + 1)
        if len(data) > MAX_PLAN_BYTES:
            raise ValueError("it is too large")
        text = data.decode()
        plan = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InputError(f"cannot read the plan: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise InputError(
            f"the plan is no TOML or JSON: {error}",
            where=str(path),
            mend="write lines such as max_steps = 1000",
        ) from error
    if not isinstance(plan, dict):
        raise InputError("the plan is no table", where=str(path), mend='write {"max_steps": 1000}')
    for key, value in plan.items():
        if key not in KEYS:
            raise InputError(
                f"unknown key {key!r}{did_you_mean(key, KEYS)}",
                where=str(path),
                mend=f"there are {', '.join(KEYS)}",
            )
        if not _fits(value, KEYS[key]):
            kinds = " or ".join(kind.__name__ for kind in KEYS[key])
            raise InputError(
                f"{key} is of the type {type(value).__name__}", where=str(path), mend=f"it takes {kinds}"
            )
        _possible(key, value, path)
    return plan


def _possible(key: str, value: Any, path: Path) -> None:
    """Raise InputError on a value that no training can have."""
    if key == "precision" and value.lower() not in _PRECISIONS:
        raise InputError(
            f"precision {value!r} is not known{did_you_mean(value, _PRECISIONS)}",
            where=str(path),
            mend="give fp32, bf16 or fp16",
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = LEAST.get(key, 1), MOST.get(key, math.inf)
        if not low <= value < math.inf or value > high or (low < 0 and value == 0):
            raise InputError(
                f"{key} = {value} cannot be", where=str(path), mend="give what the resume is to do"
            )


def _fits(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def compare(found: Description, plan: Mapping[str, Any]) -> None:
    """Add a finding for everything in the plan that differs from what made the checkpoint."""
    facts = found.facts
    for key, kinds in KEYS.items():
        if key in facts and not _fits(facts[key], kinds):
            del facts[key]
    for key in ("max_steps", "num_train_epochs"):
        was, now = facts.get(key), plan.get(key)
        if was is not None and now is not None and was != now:
            found.add("plan-schedule", "scheduler", key=key, was=was, now=now)
    _world(found, plan)
    _batch(found, plan)
    if "dataset_length" in plan:
        _dataset(found, plan)
    for key, code, state in (
        ("packing", "plan-packing", "data_position"),
        ("zero_stage", "plan-zero-stage", "optimizer"),
        ("seed", "plan-seed", "data_position"),
    ):
        was, now = facts.get(key), plan.get(key)
        if was is not None and now is not None and was != now:
            found.add(code, state, was=was, now=now)
    was, now = facts.get("precision"), plan.get("precision")
    if was is not None and now is not None:
        was, now = (_PRECISIONS.get(str(word).lower(), str(word)) for word in (was, now))
        if was != now:
            found.add("plan-precision", None, was=was, now=now)


def _world(found: Description, plan: Mapping[str, Any]) -> None:
    was, now = found.world_size, plan.get("world_size")
    if was is None or now is None or was == now:
        return
    if found.facts.get("zero_stage"):
        found.add("zero-world-size", "optimizer", was=was, now=now)
    else:
        found.add("world-size-changed", "data_position", was=was, now=now)


def _batch(found: Description, plan: Mapping[str, Any]) -> None:
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "world_size")
    facts = {**found.facts, "world_size": found.world_size or 1}
    if any(facts.get(name) is None for name in names[:2]):
        return
    was = [facts[name] for name in names]
    now = [plan.get(name, facts[name]) for name in names]
    if was == now:
        return
    if math.prod(was) != math.prod(now):
        found.add("plan-batch", "data_position", was=math.prod(was), now=math.prod(now))
    else:
        split = [" × ".join(map(str, side)) for side in (was, now)]
        found.add("plan-batch-split", "data_position", total=math.prod(was), was=split[0], now=split[1])


def _dataset(found: Description, plan: Mapping[str, Any]) -> None:
    """Say whether a dataset of the planned length gives the epochs that the checkpoint counted.

    The Trainer counts `epoch = whole + micro-batches / batches an epoch`, with updates an epoch rounded up
    (5.x) or down (4.x).
    """
    facts, length = found.facts, plan["dataset_length"]
    yielded = facts.get("yielded")
    if yielded is not None and yielded >= length // (found.world_size or 1):
        found.add("epoch-boundary", "data_position")
    was = facts.get("dataset_length")
    if was is not None:
        if was != length:
            found.add(
                "plan-dataset", "data_position", why=f"the dataset had {was} samples and is to have {length}"
            )
        return
    batch, accumulate = facts.get("per_device_train_batch_size"), facts.get("gradient_accumulation_steps")
    epoch, step = facts.get("epoch"), found.step
    if not batch or not accumulate or step is None or not isinstance(epoch, int | float):
        return
    batches = math.ceil(length / (batch * (found.world_size or 1)))
    rounds_up = found.framework_version.startswith("transformers 5")
    if not any(abs(epoch - guess) < 1e-6 for guess in _epochs(step, batches, accumulate, rounds_up)):
        found.add(
            "plan-dataset",
            "data_position",
            why=f"{length} samples would be another epoch count at step {step} than the {epoch:g} that was saved",
        )


def _epochs(step: int, batches: int, accumulate: int, rounds_up: bool) -> list[float]:
    guesses = []
    up = math.ceil(batches / accumulate)
    for updates in {up} if rounds_up else {up, max(1, batches // accumulate)}:
        whole, rest = divmod(step, updates)
        guesses += [whole + min(rest * accumulate, batches) / batches]
        if rest == 0:
            guesses.append(whole - 1 + min(updates * accumulate, batches) / batches)
    return guesses
