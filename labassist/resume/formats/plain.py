"""Plain weights and plain dictionaries: `.safetensors`, `.pt`, `.bin`, a saved model's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labassist.resume.description import Description, Weights
from labassist.resume.findings import STATES
from labassist.resume.formats.accelerate import is_stateful, stateful
from labassist.resume.reading import Reader, last_epoch, named_tensors

NAME = "plain"
SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".safetensors", ".tar")
STEMS = ("model", "pytorch_model", "adapter_model", "diffusion_pytorch_model")

_KEYS = {
    "model": ("model", "model_state_dict", "state_dict", "model_state", "net", "weights", "module"),
    "optimizer": ("optimizer", "optimizer_state_dict", "optim", "optimizer_state", "optimizers"),
    "scheduler": ("scheduler", "scheduler_state_dict", "lr_scheduler", "lr_scheduler_state_dict"),
    "scaler": ("scaler", "scaler_state_dict", "grad_scaler", "amp"),
    "rng": (
        *("rng", "rng_state", "rng_states", "random_state", "random_states", "torch_rng_state", "torch_rng"),
        *(
            "cpu_rng_state",
            "cuda_rng_state",
            "numpy_rng",
            "numpy_rng_state",
            "python_rng",
            "python_rng_state",
        ),
    ),
    "data_position": (
        *("data_position", "sampler", "dataloader", "loader", "data_loader", "sampler_state"),
        *("dataloader_state", "dataloader_state_dict", "loader_state", "train_loader", "sampler_state_dict"),
    ),
}
"""Names under which people keep the states in one dictionary."""
_STEP = ("step", "global_step", "iter_num", "iteration", "steps", "iter", "it")


def lone_file(path: Path) -> Path | None:
    """Return the checkpoint file that `path` is or, as a folder, holds as the only one."""
    if path.is_file():
        return path if path.suffix in SUFFIXES else None
    if not path.is_dir():
        return None
    files = [file for file in path.iterdir() if file.is_file() and file.suffix in SUFFIXES]
    folders = [folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    return files[0] if len(files) == 1 and not folders else None


def detect(path: Path) -> bool:
    """Say whether this is a weights file, or a folder with weights under a usual name."""
    if path.is_dir() and any(
        (path / f"{stem}{suffix}").is_file()
        for stem in STEMS
        for suffix in (".safetensors", ".bin", ".safetensors.index.json", ".bin.index.json")
    ):
        return True
    return lone_file(path) is not None


def read(path: Path, verify: bool) -> Description:
    """Return what weights, or a dictionary with states under usual names, hold."""
    found = Description(NAME, path, loose_counts=True)
    reader = Reader(found, verify)
    file = lone_file(path)
    if path.is_dir() and (file is None or file.stem in STEMS):
        found.weights = reader.weights(path, STEMS)
        reader.small_json(path, skip=[index.name for index in path.glob("*.index.json")])
    elif file is not None and file.suffix == ".safetensors":
        tensors = reader.safetensors(file)
        if tensors is not None:
            found.weights = Weights(tensors)
            found.mark("model", "present")
    elif file is not None:
        _dictionary(reader, file)
    if found.format == "torchdata":
        found.limit("model", why="this is the data loader's part alone")
    elif found.weights is None and found.states["model"] == "absent":
        found.add("weights-missing", "model")
    absent = [state for state in STATES[1:] if found.states[state] == "absent" and state != "scaler"]
    weights = file is None or file.suffix == ".safetensors" or file.stem in STEMS
    what = {} if weights or found.format == "torchdata" else {"what": "no key that is known here holds"}
    found.limit(*absent, **what)
    found.mark("scaler", "not_applicable")
    return found


def _dictionary(reader: Reader, file: Path) -> None:
    """Look for the states under the names that people use; a dictionary of tensors is a model."""
    found = reader.found
    loaded = reader.torch(file, "model")
    if loaded is None:
        return
    value = loaded.value if isinstance(loaded.value, dict) else {}
    if is_stateful(value):
        found.format = "torchdata"
        found.mark("data_position", "present")
        stateful(found, value, file)
        return
    held = {state: _first(value, names) for state, names in _KEYS.items()}
    if held["model"] is None or not named_tensors(held["model"]):
        tensors = named_tensors(loaded.value)
    else:
        tensors = named_tensors(held["model"])
    if tensors:
        found.weights = Weights(tensors)
        found.mark("model", "present")
    for state in STATES[1:]:
        if held[state]:
            found.mark(state, "present")
    if held["scheduler"] is None and any(name in value for name in _KEYS["scheduler"]):
        found.mark("scheduler", "not_applicable")
    found.moments = reader.moments(loaded, held["optimizer"])
    found.scheduler_step = last_epoch(held["scheduler"])
    step = _first(value, _STEP)
    found.step = step if isinstance(step, int) else None


def _first(value: dict[Any, Any], names: tuple[str, ...]) -> Any:
    return next((value[name] for name in names if name in value), None)
