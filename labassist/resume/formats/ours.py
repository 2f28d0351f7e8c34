"""labassist's own checkpoints (docs/formats.md): every state, a manifest of SHA-256s, a commit marker."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from labassist.errors import CheckpointError
from labassist.record import inspect
from labassist.resume.description import Description, Moments, Weights
from labassist.resume.findings import STATES
from labassist.resume.pickled import Tensor
from labassist.resume.reading import Reader, last_epoch

NAME = "labassist"


def detect(path: Path) -> bool:
    """Say whether this is a checkpoint folder of ours, complete or not."""
    if not path.is_dir():
        return False
    if (path / inspect.MANIFEST).is_file():
        return True
    if (path / inspect.COMMIT).is_file() and (path / inspect.STATE).is_file():
        return True
    name = path.name.removesuffix(".tmp")
    ours = name.startswith("step-") and len(name) == 13 and name[5:].isdigit()
    return ours and any(
        (path / part).exists() for part in (inspect.COMMIT, inspect.STATE, "model.safetensors")
    )


def read(path: Path, verify: bool) -> Description:
    """Return what a checkpoint of ours holds."""
    found = Description(NAME, path)
    reader = Reader(found, verify)
    if path.name.endswith(".tmp") or not (path / inspect.COMMIT).is_file():
        why = "its folder still ends in .tmp" if path.name.endswith(".tmp") else "there is no COMMIT"
        found.add("never-completed", None, why=why)
        found.states = dict.fromkeys(STATES, "torn")
        return found
    manifest = reader.json_table(path / inspect.MANIFEST)
    if manifest is None or not _matches_commit(path):
        if manifest is not None:
            found.add(
                "hash-mismatch", None, path / inspect.MANIFEST, why="the manifest does not match COMMIT"
            )
        found.states = dict.fromkeys(STATES, "torn")
        return found
    found.fp16 = manifest.get("states", {}).get("scaler") == "present"
    found.framework_version = f"format {manifest.get('version')}"
    found.step, found.world_size = manifest.get("step"), manifest.get("world_size")
    if verify:
        _verify(found)
    for state, presence in manifest.get("states", {}).items():
        if state in found.states:
            _presence(reader, state, presence)
    _skeletons(reader)
    found.weights = _weights(reader)
    _missing(found)
    _order(reader)
    return found


def _matches_commit(path: Path) -> bool:
    digest = hashlib.sha256((path / inspect.MANIFEST).read_bytes()).hexdigest()
    return (path / inspect.COMMIT).read_bytes() == digest.encode()


def _verify(found: Description) -> None:
    """Hash every file; the first that differs stands for all, as one is enough to refuse the checkpoint."""
    try:
        inspect.inspect(found.path)
    except CheckpointError as error:
        path = Path(error.where)
        state = path.name.removesuffix(inspect.TENSORS_SUFFIX)
        known = state if state in found.states else None
        if known:
            found.mark(known, "torn")
        found.add("hash-mismatch", known, path, why=error.what)


def _presence(reader: Reader, state: str, presence: str) -> None:
    found = reader.found
    if presence == "not_applicable":
        found.mark(state, "not_applicable")
        return
    found.mark(state, "present")
    file = found.path / f"{state}{inspect.TENSORS_SUFFIX}"
    if file.exists():
        reader.safetensors(file, state)


def _skeletons(reader: Reader) -> None:
    """Read what is no tensor: ranks of the RNG, steps, and which tensor files must be there."""
    found = reader.found
    table = reader.json_table(found.path / inspect.STATE)
    states = table.get("states") if table else None
    if not isinstance(states, dict):
        for state in found.states:
            found.mark(state, "torn")
        return
    for name in STATES:
        if name in states:
            for file in sorted(_files(states[name])):
                if not (found.path / file).is_file():
                    found.mark(name, "torn")
                    found.add(
                        "file-missing",
                        name,
                        found.path / file,
                        why=f"state.json names tensors of {name} in it",
                    )
        elif found.states[name] == "present":
            found.states[name] = "absent"
    rng = states.get("rng")
    ranks = rng.get("ranks", []) if isinstance(rng, dict) else []
    for rank in range(max(len(ranks), found.world_size or 1)):
        if rank >= len(ranks) or not ranks[rank]:
            found.add("rng-rank-missing", "rng", inspect.STATE, rank)
        else:
            found.rng[rank] = _rng_digest(reader, ranks[rank])
    found.scheduler_step = last_epoch(states.get("scheduler"))
    found.moments = _moments(reader, states.get("optimizer"))


def _files(skeleton: Any) -> set[str]:
    """Return the tensor files that a skeleton names."""
    if isinstance(skeleton, list):
        return {file for item in skeleton for file in _files(item)}
    if not isinstance(skeleton, dict):
        return set()
    if set(skeleton) == {"$tensor"}:
        return {str(skeleton["$tensor"]).partition("/")[0] + inspect.TENSORS_SUFFIX}
    return {file for item in skeleton.values() for file in _files(item)}


def _rng_digest(reader: Reader, rank: Any) -> str:
    """Return a digest of one rank's generators: its plain values, and its tensors by the manifest's digests."""
    manifest = json.loads((reader.found.path / inspect.MANIFEST).read_bytes())["tensors"]

    def plain(value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {"$tensor"}:
            return manifest.get(value["$tensor"])
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return hashlib.sha256(json.dumps(plain(rank), sort_keys=True).encode()).hexdigest()[:16]


def _moments(reader: Reader, skeleton: Any) -> Moments | None:
    if not isinstance(skeleton, dict) or not isinstance(skeleton.get("param_groups"), list):
        return None
    state = skeleton.get("state")
    pairs = state.get("$dict", []) if isinstance(state, dict) else []
    headers = reader.found.path / f"optimizer{inspect.TENSORS_SUFFIX}"
    try:
        entries = {f"optimizer/{entry.name}": entry for entry in inspect.read_header(headers)}
        file = headers.open("rb")
    except (CheckpointError, OSError):
        return None
    weights = sum(len(group.get("params", ())) for group in skeleton["param_groups"])
    found = Moments(weights, len(pairs), bytes=sum(entry.end - entry.begin for entry in entries.values()))
    from labassist.resume.torchfile import number

    with file:
        for _index, held in pairs:
            shapes = {
                entries[item["$tensor"]].shape
                for name, item in held.items()
                if name in ("exp_avg", "exp_avg_sq") and item.get("$tensor") in entries
            }
            if len(shapes) == 1:
                found.shapes.update(shapes)
            step = held.get("step")
            if isinstance(step, int | float):
                found.steps.append(float(step))
            elif isinstance(step, dict) and step.get("$tensor") in entries:
                entry = entries[step["$tensor"]]
                file.seek(entry.begin)
                value = number(file.read(entry.end - entry.begin), entry.dtype)
                if value is not None:
                    found.steps.append(value)
    return found


def _weights(reader: Reader) -> Weights | None:
    path = reader.found.path / f"model{inspect.TENSORS_SUFFIX}"
    try:
        entries = inspect.read_header(path)
    except CheckpointError:
        return None
    return Weights({entry.name: Tensor(entry.dtype, entry.shape) for entry in entries})


def _missing(found: Description) -> None:
    codes = {"model": "weights-missing"} | {
        state: f"{state.replace('_', '-')}-missing" for state in STATES if state != "model"
    }
    for state, presence in found.states.items():
        if presence == "absent":
            found.add(codes[state], state)


def _order(reader: Reader) -> None:
    """Take what a plan is compared with from the run's order, where the checkpoint lies in its run folder."""
    path = reader.found.path.parent.parent / "order.json"
    if not path.is_file() or reader.found.path.parent.name != "checkpoints":
        return
    try:
        order = json.loads(path.read_bytes())
        config = order.get("config", {})
        given = {
            "max_steps": config.get("steps"),
            "per_device_train_batch_size": config.get("batch"),
            "gradient_accumulation_steps": config.get("accumulate"),
            "precision": config.get("precision"),
            "seed": order.get("seed"),
        }
    except (ValueError, AttributeError):
        return
    reader.found.facts |= {key: value for key, value in given.items() if value is not None}
