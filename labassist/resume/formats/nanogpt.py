"""nanoGPT's `ckpt.pt` (train.py): model, optimizer, model_args, iter_num, best_val_loss, config."""

from __future__ import annotations

from pathlib import Path

from labassist.resume.description import Description, Weights
from labassist.resume.formats.plain import lone_file
from labassist.resume.reading import Reader, named_tensors

NAME = "nanogpt"
_KEYS = {"model", "model_args", "iter_num"}


def detect(path: Path) -> bool:
    """Say whether this is nanoGPT's file, or a folder that holds only it: known by name or by its keys."""
    file = lone_file(path)
    if file is None:
        return False
    if file.name == "ckpt.pt":
        return True
    if file.suffix not in (".pt", ".pth"):
        return False
    loaded = Reader(Description(NAME, path), verify=False).torch(file)
    return loaded is not None and isinstance(loaded.value, dict) and loaded.value.keys() >= _KEYS


def read(path: Path, verify: bool) -> Description:
    """Return what a ckpt.pt holds. The rate is computed from iter_num; the data is drawn at random."""
    found = Description(NAME, path, own_prefixes=("_orig_mod.",))
    reader = Reader(found, verify)
    file = lone_file(path) or path
    loaded = reader.torch(file, "model")
    if loaded is None:
        for state in ("optimizer", "scheduler"):
            found.mark(state, "torn")
        return found
    value = loaded.value if isinstance(loaded.value, dict) else {}
    config = value.get("config") if isinstance(value.get("config"), dict) else {}
    assert isinstance(config, dict)
    tensors = named_tensors(value.get("model"))
    if tensors:
        found.mark("model", "present")
        found.weights = Weights(tensors)
    else:
        found.add("weights-missing", "model", file)
    found.moments = reader.moments(loaded, value.get("optimizer"))
    if found.moments:
        found.mark("optimizer", "present")
    else:
        found.add("optimizer-missing", "optimizer", file)
    step = value.get("iter_num")
    if isinstance(step, int):
        found.step = step
        found.mark("scheduler", "derived")
    else:
        found.add("scheduler-missing", "scheduler", file)
    found.world_size = 1
    found.fp16 = config.get("dtype") == "float16"
    if not found.fp16:
        found.mark("scaler", "not_applicable")
    else:
        found.limit("scaler", why="the loss scale starts at its initial value")
    found.limit("rng", why="it seeds again")
    found.limit("data_position", why="batches are drawn at random and not in an order")
    found.facts = {
        key: config[name]
        for key, name in (
            ("max_steps", "max_iters"),
            ("per_device_train_batch_size", "batch_size"),
            ("gradient_accumulation_steps", "gradient_accumulation_steps"),
            ("precision", "dtype"),
        )
        if name in config
    }
    return found
