"""Lightning's `.ckpt` (lightning/pytorch/trainer/connectors/checkpoint_connector.py), 1.x and 2.x."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labassist.resume.description import Description, Weights
from labassist.resume.formats.plain import lone_file
from labassist.resume.reading import Reader, last_epoch, named_tensors

NAME = "lightning"
VERSION = "pytorch-lightning_version"


def detect(path: Path) -> bool:
    """Say whether this is a `.ckpt` of Lightning, or a folder that holds only one."""
    file = lone_file(path)
    return file is not None and file.suffix == ".ckpt"


def read(path: Path, verify: bool) -> Description:
    """Return what a Lightning checkpoint holds."""
    found = Description(NAME, path)
    reader = Reader(found, verify)
    file = lone_file(path) or path
    loaded = reader.torch(file, "model")
    if loaded is None:
        for state in ("optimizer", "scheduler", "data_position"):
            found.mark(state, "torn")
        return found
    value = loaded.value if isinstance(loaded.value, dict) else {}
    found.framework_version = f"lightning {value.get(VERSION, '')}".strip()
    step = value.get("global_step")
    found.step = step if isinstance(step, int) else None
    tensors = named_tensors(value.get("state_dict"))
    if tensors:
        found.mark("model", "present")
        found.weights = Weights(tensors)
    else:
        found.add("weights-missing", "model", file)
    optimizers = value.get("optimizer_states")
    if "loops" not in value and not optimizers:
        found.add("save-only-model", None, file)
        found.limit("optimizer", "scheduler", "data_position", "rng")
        found.mark("scaler", "not_applicable")
        return found
    if isinstance(optimizers, list) and optimizers:
        found.mark("optimizer", "present")
        # Several optimizers share one step count: global_step is the sum of theirs.
        found.moments = reader.moments(loaded, optimizers[0]) if len(optimizers) == 1 else None
    else:
        found.add("optimizer-missing", "optimizer", file)
    _scheduler(found, value, file)
    _scaler(found, value)
    _loops(found, value, file)
    found.limit("rng")
    return found


def _scheduler(found: Description, value: dict[str, Any], file: Path) -> None:
    schedulers = value.get("lr_schedulers")
    if not isinstance(schedulers, list):
        found.add("scheduler-missing", "scheduler", file)
        return
    if not schedulers:
        found.mark("scheduler", "not_applicable")
        return
    found.mark("scheduler", "present")
    at, epoch = last_epoch(schedulers[0]), value.get("epoch")
    stepped = _get(value, "loops", "fit_loop", "epoch_loop.scheduler_progress", "total", "completed")
    # A schedule is stepped once an update or once an epoch: the progress says how often, where it is kept.
    if at is not None and isinstance(stepped, int) and len(schedulers) == 1 and at != stepped:
        found.mark("scheduler", "inconsistent")
        found.add("step-mismatch-scheduler", "scheduler", file, scheduler=at, step=stepped)
    elif stepped is None and at not in (epoch, found.step):
        found.scheduler_step = at


def _scaler(found: Description, value: dict[str, Any]) -> None:
    scaler = value.get("MixedPrecision") or value.get("native_amp_scaling_state")
    if scaler:
        found.fp16 = True
        found.mark("scaler", "present")
    else:
        found.mark("scaler", "not_applicable")


def _loops(found: Description, value: dict[str, Any], file: Path) -> None:
    fit = _get(value, "loops", "fit_loop")
    if not isinstance(fit, dict):
        found.add("data-position-missing", "data_position", file)
        return
    if _get(fit, "state_dict", "combined_loader"):
        found.mark("data_position", "present")
    else:
        found.limit("data_position", why="the loader is not stateful, so a resumed epoch starts anew")
    progress = fit.get("epoch_loop.batch_progress")
    batches = _get(progress, "current", "processed")
    steps = _get(
        fit, "epoch_loop.automatic_optimization.optim_progress", "optimizer", "step", "current", "completed"
    )
    last = _get(progress, "is_last_batch")
    if last and found.states["data_position"] == "present":
        found.add("epoch-boundary", "data_position", file)
    if isinstance(batches, int) and isinstance(steps, int) and steps and not last and batches % steps:
        found.add(
            "accumulation-partial", "data_position", file, batches=batches, accumulate=-(-batches // steps)
        )


def _get(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
