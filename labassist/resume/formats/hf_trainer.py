"""transformers' Trainer, 4.x and 5.x, with PEFT or TRL, and its `save_only_model`.

Layout from transformers/trainer.py (`_save_checkpoint`): weights, optimizer.pt, scheduler.pt, scaler.pt,
rng_state.pth or rng_state_<rank>.pth, training_args.bin, and trainer_state.json, which is written last.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from labassist.resume.description import Description, Weights
from labassist.resume.formats import dcp, deepspeed
from labassist.resume.pickled import Obj
from labassist.resume.reading import Reader, last_epoch

NAME = "hf-trainer"
STATE, ARGS = "trainer_state.json", "training_args.bin"
OPTIMIZERS = ("optimizer.pt", "optimizer.bin")
FOLDER = re.compile(r"checkpoint-(\d+)")
_RNG = re.compile(r"rng_state_(\d+)\.pth")
_INCOMPLETE = "checkpoint-is-incomplete.txt"
_STEMS = ("model", "pytorch_model")
_AHEAD = "labassist-ahead-*.pt"
"""Written by record.attach: the script that made this checkpoint mends what the stock Trainer gets wrong."""


def detect(path: Path) -> bool:
    """Say whether this is a Trainer's checkpoint folder, complete or not."""
    if not path.is_dir():
        return False
    if FOLDER.fullmatch(path.name):
        return any(path.iterdir())
    marks = (STATE, _INCOMPLETE, "rng_state.pth", "scheduler.pt")
    return any((path / name).is_file() for name in marks) or any(path.glob("rng_state_*.pth"))


def read(path: Path, verify: bool) -> Description:
    """Return what a Trainer's checkpoint holds."""
    found = Description(NAME, path)
    reader = Reader(found, verify)
    if (path / _INCOMPLETE).exists():
        found.add("never-completed", None, path / _INCOMPLETE, why=f"{_INCOMPLETE} is still there")
    args = _arguments(reader)
    _weights(reader)
    only_model = _only_model(path, args)
    state = _trainer_state(reader, args)
    if only_model:
        found.add("save-only-model", None)
        found.limit("optimizer", "scheduler", "rng")
    else:
        _optimizer_and_scheduler(reader)
        _rng(reader)
    _scaler(reader, args, only_model)
    _facts(found, args, state)
    for file in sorted(path.glob(_AHEAD)):
        reader.torch(file, "rng")
    reader.small_json(path, skip=(STATE, "config.json", "adapter_config.json"))
    return found


def _arguments(reader: Reader) -> dict[str, Any]:
    path = reader.found.path / ARGS
    if not path.is_file():
        return {}
    loaded = reader.torch(path)
    value = loaded.value if loaded else None
    state = value.state if isinstance(value, Obj) else value
    return state if isinstance(state, dict) else {}


def plain(value: Any) -> Any:
    """Return the value of an enumeration's member, or the value itself."""
    return value.args[0] if isinstance(value, Obj) and value.args else value


def _weights(reader: Reader) -> None:
    found, path = reader.found, reader.found.path
    config = {}
    if (path / "config.json").is_file():
        config = reader.json_table(path / "config.json") or {}
        found.framework_version = f"transformers {config.get('transformers_version', '')}".strip()
    found.weights = reader.weights(path, _STEMS)
    adapters = [path, *sorted(folder for folder in path.iterdir() if folder.is_dir())]
    homes = [folder for folder in adapters if _has_adapter(folder)]
    if homes and found.weights is None:
        found.format = "hf-peft"
        held: dict[str, Any] = {}
        for home in homes:
            settings = home / "adapter_config.json"
            table = reader.json_table(settings, "model") if settings.is_file() else None
            if table is None and not settings.is_file():
                found.mark("model", "torn")
                found.add("file-missing", "model", settings, why="it says what the adapter is")
            version = (table or {}).get("peft_version")
            found.framework_version = f"peft {version}" if version else found.framework_version
            part = reader.weights(home, ("adapter_model",), adapter=True)
            held |= (
                {f"{'' if home == path else home.name + '/'}{k}": v for k, v in part.tensors.items()}
                if part
                else {}
            )
        if held:
            found.weights = Weights(held, adapter=True)
            found.add("base-weights", "model")
        if path not in homes:
            found.add("adapter-subfolder", "model", homes[0], folder=homes[0].name)
    elif (path / "adapter_config.json").is_file() and found.weights is None:
        found.format = "hf-peft"
    for folder in sorted(path.glob("pytorch_model_fsdp*")):
        if dcp.detect(folder):
            dcp.read_folder(reader, folder, "model")
    if any(path.glob("global_step*")):
        found.format = "hf-deepspeed"
        deepspeed.read_inside(reader, path)
    if found.states["model"] == "absent":
        found.add("weights-missing", "model")
    found.facts["config"] = config


def _has_adapter(folder: Path) -> bool:
    return any((folder / f"adapter_model{suffix}").is_file() for suffix in (".safetensors", ".bin"))


def _only_model(path: Path, args: dict[str, Any]) -> bool:
    """Say whether the run was told to keep only the model, or, without its arguments, looks so."""
    if "save_only_model" in args:
        return args["save_only_model"] is True
    parts = [*OPTIMIZERS, "scheduler.pt", "rng_state.pth"]
    bare = not any((path / name).exists() for name in parts) and not any(path.glob("rng_state_*"))
    return bare and (path / STATE).is_file() and not any(path.glob("global_step*"))


def _trainer_state(reader: Reader, args: dict[str, Any]) -> dict[str, Any]:
    found = reader.found
    path = found.path / STATE
    if not path.is_file():
        found.add("file-missing", "data_position", path, why="it is written last, so the save was cut off")
        return {}
    state = reader.json_table(path, "data_position")
    if state is None:
        return {}
    step = state.get("global_step")
    if not isinstance(step, int):
        found.mark("data_position", "torn")
        found.add("json-torn", "data_position", path, why="it has no global_step")
        return state
    found.step = step
    found.mark("data_position", "derived")
    if args.get("ignore_data_skip") is True:
        found.add("data-skip-ignored", "data_position", path)
    named = FOLDER.fullmatch(found.path.name)
    if named and int(named[1]) != step:
        found.mark("data_position", "inconsistent")
        found.add("step-mismatch-name", "data_position", path, named=int(named[1]), step=step)
    stopping = (state.get("stateful_callbacks") or {}).get("EarlyStoppingCallback")
    first = stopping[0] if isinstance(stopping, list) and stopping else stopping
    if isinstance(first, dict) and args.get("restore_callback_states_from_checkpoint") is not True:
        patience = (first.get("attributes") or {}).get("early_stopping_patience_counter", 0)
        if patience:
            found.add("early-stopping-reset", None, path, patience=patience)
    for row in state.get("log_history") or ():
        loss = row.get("loss") if isinstance(row, dict) else None
        if isinstance(loss, float) and loss != loss:
            found.add("not-finite", "model", path, step=row.get("step"))
            break
    return state


def _optimizer_and_scheduler(reader: Reader) -> None:
    found, path = reader.found, reader.found.path
    optimizer = next((path / name for name in OPTIMIZERS if (path / name).is_file()), None)
    scheduler = path / "scheduler.pt"
    with_deepspeed = any(path.glob("global_step*"))
    sharded = [folder for folder in sorted(path.glob("optimizer_*")) if dcp.detect(folder)]
    for folder in sharded:
        dcp.read_folder(reader, folder, "optimizer")
    if optimizer:
        loaded = reader.torch(optimizer, "optimizer")
        if loaded:
            found.moments = reader.optimizer(optimizer, loaded)
    elif not sharded and not with_deepspeed:
        found.add("optimizer-missing", "optimizer", path / OPTIMIZERS[0])
    if scheduler.is_file():
        loaded = reader.torch(scheduler, "scheduler")
        if loaded:
            found.mark("scheduler", "present")
            by_metric = isinstance(loaded.value, dict) and "num_bad_epochs" in loaded.value
            found.scheduler_step = None if by_metric else last_epoch(loaded.value)
    elif found.states["scheduler"] == "absent":
        found.add("scheduler-missing", "scheduler", scheduler)
    if with_deepspeed:
        return
    if optimizer and not scheduler.is_file():
        found.add("optimizer-skipped", "optimizer", optimizer, absent="scheduler.pt")
    if scheduler.is_file() and not optimizer and not sharded:
        found.add("scheduler-skipped", "scheduler", scheduler, absent="optimizer.pt")


def _rng(reader: Reader) -> None:
    found, path = reader.found, reader.found.path
    ranks = {int(match[1]): file for file in path.iterdir() if (match := _RNG.fullmatch(file.name))}
    if not ranks and (path / "rng_state.pth").is_file():
        found.world_size, ranks = 1, {0: path / "rng_state.pth"}
    elif ranks:
        found.world_size = max(2, max(ranks) + 1)
        for rank in range(found.world_size):
            if rank not in ranks:
                found.add("rng-rank-missing", "rng", path / f"rng_state_{rank}.pth", rank)
    else:
        found.add("rng-missing", "rng", path / "rng_state.pth")
    for rank, file in sorted(ranks.items()):
        loaded = reader.torch(file, "rng", rank)
        if loaded and not isinstance(loaded.value, dict):
            found.mark("rng", "torn")
            found.add("file-torn", "rng", file, rank, why="it holds no state of a random generator")
        elif loaded:
            reader.rng(file, rank, loaded)
            held = loaded.value
            for part in ("python", "numpy", "cpu"):
                if part not in held:
                    found.add("rng-part-missing", "rng", file, rank, part=part)


def _scaler(reader: Reader, args: dict[str, Any], only_model: bool) -> None:
    found = reader.found
    path = found.path / "scaler.pt"
    if found.format == "hf-deepspeed":
        return
    found.fp16 = args.get("fp16") is True
    if path.is_file():
        found.fp16 = True
        if reader.torch(path, "scaler"):
            found.mark("scaler", "present")
    elif not found.fp16:
        found.mark("scaler", "not_applicable")
    elif only_model:
        found.limit("scaler")
    else:
        found.add("scaler-missing", "scaler", path)


def _facts(found: Description, args: dict[str, Any], state: dict[str, Any]) -> None:
    facts = found.facts
    facts["epoch"], facts["trained_max_steps"] = state.get("epoch"), args.get("max_steps")
    for name in (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_train_epochs",
        "packing",
        "seed",
    ):
        if name in args:
            facts[name] = args[name]
    if isinstance(state.get("train_batch_size"), int):
        facts["per_device_train_batch_size"] = state["train_batch_size"]
    if isinstance(state.get("max_steps"), int):
        facts["max_steps"] = state["max_steps"]
    if args:
        halves = [name for name in ("bf16", "fp16") if args.get(name) is True]
        facts["precision"] = halves[0] if halves else "fp32"
    epoch = state.get("epoch")
    facts["mid_epoch"] = isinstance(epoch, float) and epoch != int(epoch)
    facts["attached"] = any(found.path.glob(_AHEAD))
    if facts["mid_epoch"] and found.states["rng"] == "present" and not facts["attached"]:
        found.add("augmentation-order", "rng")
