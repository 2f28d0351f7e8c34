"""torchtune's output folder: `epoch_<k>/` with weights, and one `recipe_state.pt` for the last of them.

From torchtune/training/checkpointing/_checkpointer.py: the recipe state holds seed, epochs_run, total_epochs,
max_steps_per_epoch, optimizer, and in newer recipes dataloader and rng_state; the schedule is computed anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from labassist.resume.description import Description, Weights
from labassist.resume.formats.accelerate import stateful
from labassist.resume.pickled import Tensor
from labassist.resume.reading import Reader

NAME = "torchtune"
_EPOCH = re.compile(r"epoch_(\d+)")
_RECIPES = ("recipe_state/recipe_state.pt", "recipe_state.pt")


def detect(path: Path) -> bool:
    """Say whether this is an output folder of torchtune."""
    if not path.is_dir():
        return False
    if any((path / name).is_file() for name in _RECIPES):
        return True
    return any(
        one.is_dir() and _EPOCH.fullmatch(one.name) and any(one.glob("*.safetensors"))
        for one in path.iterdir()
    )


def read(path: Path, verify: bool) -> Description:
    """Return what torchtune kept: the weights of the last epoch, and the recipe's state."""
    found = Description(NAME, path, world_size=1)
    reader = Reader(found, verify)
    epochs = {int(m[1]): one for one in path.iterdir() if one.is_dir() and (m := _EPOCH.fullmatch(one.name))}
    last = max(epochs, default=-1)
    home = epochs.get(last, path)
    _weights(reader, home)
    recipe = next((path / name for name in _RECIPES if (path / name).is_file()), None)
    if recipe is None:
        found.add("optimizer-missing", "optimizer", path / _RECIPES[0])
        found.add("data-position-missing", "data_position", path / _RECIPES[0])
        found.add("scheduler-missing", "scheduler", path / _RECIPES[0])
        found.limit("rng")
    else:
        _recipe(reader, recipe, last)
    found.mark("scaler", "not_applicable")
    reader.small_json(home, skip=[index.name for index in home.glob("*.index.json")])
    return found


def _weights(reader: Reader, home: Path) -> None:
    """Read every weights file of an epoch; an index says which shards there must be."""
    found = reader.found
    adapter = reader.weights(home, ("adapter_model",), adapter=True)
    stems = [index.name.split(".", 1)[0] for index in home.glob("*.index.json")]
    whole = reader.weights(home, [*stems, "model", "pytorch_model"])
    tensors: dict[str, Tensor] = whole.tensors if whole else {}
    if whole is None:
        for file in sorted([*home.glob("*model*.safetensors"), *home.glob("*model*.pt")]):
            if file.stem != "adapter_model":
                held = reader.safetensors(file) if file.suffix == ".safetensors" else None
                if held is None and file.suffix == ".pt" and (loaded := reader.torch(file, "model")):
                    held = {str(k): v for k, v in loaded.value.items() if isinstance(v, Tensor)}
                tensors |= held or {}
    if tensors:
        found.mark("model", "present")
    found.weights = adapter or (Weights(tensors) if tensors else None)
    if found.states["model"] == "absent":
        found.add("weights-missing", "model", home)


def _recipe(reader: Reader, file: Path, last: int) -> None:
    found = reader.found
    loaded = reader.torch(file, "optimizer")
    if loaded is None or not isinstance(loaded.value, dict):
        for state in ("scheduler", "data_position"):
            found.mark(state, "torn")
        return
    value: dict[str, Any] = loaded.value
    if value.get("optimizer"):
        found.mark("optimizer", "present")
        found.moments = reader.moments(loaded, value["optimizer"])
        steps = found.moments.steps if found.moments else []
        found.step = int(max(steps)) if steps else None
    else:
        found.add("optimizer-missing", "optimizer", file)
    epochs = value.get("epochs_run")
    if isinstance(epochs, int):
        found.mark("scheduler", "derived")
        if last >= 0 and epochs != last + 1:
            found.mark("optimizer", "inconsistent")
            found.add("step-mismatch-name", "optimizer", file, named=last, step=epochs - 1)
    else:
        found.add("scheduler-missing", "scheduler", file)
    loader = value.get("dataloader")
    if isinstance(loader, dict):
        found.mark("data_position", "present")
        stateful(found, loader, file)
    elif isinstance(epochs, int):
        found.mark("data_position", "derived")
    else:
        found.add("data-position-missing", "data_position", file)
    if "rng_state" in value:
        found.mark("rng", "present")
    else:
        found.limit("rng", why="this recipe keeps only its seed")
    for name, key in (("seed", "seed"), ("num_train_epochs", "total_epochs")):
        if isinstance(value.get(key), int):
            found.facts[name] = value[key]
