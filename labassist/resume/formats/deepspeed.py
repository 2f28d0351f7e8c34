"""DeepSpeed, ZeRO 0 to 3: a tag's folder `global_step<N>/` beside the file `latest`.

Names and keys from deepspeed/runtime/engine.py and zero/stage_1_and_2.py, stage3.py: one model file a
model-parallel rank (ZeRO-3: one a rank), one optimizer file a data-parallel rank.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from labassist.resume.description import Description, Moments, Weights
from labassist.resume.pickled import Obj
from labassist.resume.reading import Reader, last_epoch, moments, named_tensors
from labassist.resume.torchfile import Loaded, Torn

NAME = "deepspeed"
_TAG = re.compile(r"global_step(\d+)")
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")


def detect(path: Path) -> bool:
    """Say whether this is a tag's folder, or the folder above a single one."""
    if not path.is_dir():
        return False
    if _is_tag(path):
        return True
    tags = [one for one in path.iterdir() if one.is_dir() and (_is_tag(one) or _TAG.fullmatch(one.name))]
    return len(tags) == 1 and (_is_tag(tags[0]) or (path / "latest").is_file())


def _is_tag(path: Path) -> bool:
    return any(_MODEL.fullmatch(file.name) or _OPTIMIZER.fullmatch(file.name) for file in path.iterdir())


def read(path: Path, verify: bool) -> Description:
    """Return what a DeepSpeed checkpoint holds."""
    found = Description(NAME, path)
    reader = Reader(found, verify)
    if _is_tag(path):
        newest = max(
            (one for one in path.parent.glob("global_step*") if one.is_dir()), key=_step, default=path
        )
        if newest == path:
            _latest(reader, path.parent, "warning" if not (path.parent / "latest").exists() else None)
        read_tag(reader, path)
    else:
        _latest(reader, path, None)
        tags = [one for one in path.iterdir() if one.is_dir()]
        read_tag(reader, max(tags, key=lambda one: (_is_tag(one), _step(one))))
    found.limit("rng")
    found.limit("data_position")
    return found


def _step(path: Path) -> int:
    match = _TAG.fullmatch(path.name)
    return int(match[1]) if match else -1


def _latest(reader: Reader, folder: Path, severity: Any) -> None:
    file = folder / "latest"
    if not file.is_file():
        reader.found.add("latest-missing", None, file, severity=severity)
        return
    named = file.read_text(errors="replace").strip()
    if not named or not (folder / named).is_dir():
        reader.found.add("latest-wrong", None, file, named=repr(named))


def read_inside(reader: Reader, folder: Path) -> None:
    """Read the tag that lies in a Trainer's checkpoint folder."""
    _latest(reader, folder, None)
    for tag in sorted(folder.glob("global_step*")):
        if tag.is_dir():
            read_tag(reader, tag)


def read_tag(reader: Reader, tag: Path) -> None:
    """Read the files of one tag into the reader's description."""
    found = reader.found
    models = {_rank(match): file for file in tag.iterdir() if (match := _MODEL.fullmatch(file.name))}
    parts = {_rank(match): file for file in tag.iterdir() if (match := _OPTIMIZER.fullmatch(file.name))}
    if not models:
        found.add("weights-missing", "model", tag)
    head: dict[str, Any] = {}
    for key, file in sorted(models.items()):
        loaded = reader.torch(file, "model", key[0])
        if loaded is None or not isinstance(loaded.value, dict):
            continue
        head = head or loaded.value
        found.mark("model", "present")
        _origin(reader, "model", key, loaded, file)
    stage = _zero_stage(head)
    ranks = head.get("dp_world_size")
    ranks = ranks if isinstance(ranks, int) else max((rank[0] for rank in parts), default=0) + 1
    found.world_size = ranks
    found.framework_version = f"deepspeed {head.get('ds_version', '')}".strip()
    _settings(found, head, stage)
    tensors = named_tensors(head.get("module"))
    if stage != 3 and found.format == NAME:
        found.weights = Weights(tensors)
    for rank in range(ranks):
        if stage == 3 and models and (rank, 0) not in models:
            found.mark("model", "torn")
            found.add("rank-file-missing", "model", tag, rank)
    _optimizer(reader, tag, parts, head, stage, ranks)
    _progress(found, head, tag)


def _rank(match: re.Match[str]) -> tuple[int, int]:
    return int(match[1] or 0), int(match[2])


def _origin(reader: Reader, state: str, rank: tuple[int, int], loaded: Loaded, file: Path) -> None:
    written = re.search(r"zero_pp_rank_(\d+)", loaded.root)
    if written:
        reader.origin(state, rank[0], written[1], loaded.root != file.stem)


def _zero_stage(head: dict[str, Any]) -> int:
    config = head.get("ds_config")
    zero = config.get("zero_optimization") if isinstance(config, dict) else None
    stage = zero.get("stage", 0) if isinstance(zero, dict) else 0
    return stage if isinstance(stage, int) else 0


def _settings(found: Description, head: dict[str, Any], stage: int) -> None:
    config = head.get("ds_config") if isinstance(head.get("ds_config"), dict) else {}
    assert isinstance(config, dict)
    halves = [name for name in ("bf16", "fp16") if _enabled(config.get(name))]
    found.fp16 = "fp16" in halves
    found.facts |= {"zero_stage": stage, "precision": halves[0] if halves else "fp32"}
    for name, key in (
        ("per_device_train_batch_size", "train_micro_batch_size_per_gpu"),
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ):
        if isinstance(config.get(key), int):
            found.facts[name] = config[key]
    batch, samples = config.get("train_batch_size"), head.get("global_samples")
    accumulate = config.get("gradient_accumulation_steps")
    if isinstance(batch, int) and isinstance(samples, int) and batch and samples % batch:
        found.add(
            "accumulation-partial", "data_position", batches=f"{samples} samples", accumulate=accumulate
        )


def _enabled(section: Any) -> bool:
    return isinstance(section, dict) and section.get("enabled") is True


def _optimizer(
    reader: Reader,
    tag: Path,
    parts: dict[tuple[int, int], Path],
    head: dict[str, Any],
    stage: int,
    ranks: int,
) -> None:
    found = reader.found
    scaled = False
    if not parts and stage == 0 and head.get("optimizer"):
        found.mark("optimizer", "present")
        scaled = True
    elif not parts:
        found.add("optimizer-missing", "optimizer", tag)
    for rank in range(ranks if parts else 0):
        if (rank, 0) not in parts:
            found.mark("optimizer", "torn")
            found.add("rank-file-missing", "optimizer", tag, rank)
    summary = Moments(0, 0)
    for key, file in sorted(parts.items()):
        loaded = reader.torch(file, "optimizer", key[0])
        held = loaded.value.get("optimizer_state_dict") if loaded and isinstance(loaded.value, dict) else None
        if loaded is None or not isinstance(held, dict):
            continue
        found.mark("optimizer", "present")
        scaled |= held.get("loss_scaler") is not None
        _origin(reader, "optimizer", key, loaded, file)
        inner = held.get("base_optimizer_state") or held.get("optimizer_state_dict")
        try:
            part = moments(loaded, inner)
        except Torn as error:
            found.add("file-torn", "optimizer", file, key[0], why=str(error))
            continue
        if part:
            summary.bytes += part.bytes
            summary.steps += part.steps
        counts = held.get("partition_count")
        counts = counts if isinstance(counts, list) else [counts]
        if any(isinstance(count, int) and count != ranks for count in counts):
            found.mark("optimizer", "inconsistent")
            found.add("zero-world-size", "optimizer", file, key[0], was=counts[0], now=ranks)
    found.moments = summary if summary.steps or summary.bytes else None
    if not found.fp16:
        found.mark("scaler", "not_applicable")
    elif scaled:
        found.mark("scaler", "present")
    else:
        found.add("scaler-missing", "scaler", tag)


def _progress(found: Description, head: dict[str, Any], tag: Path) -> None:
    """Compare the steps, and find the schedule: DeepSpeed's own counts batches from -1."""
    step = head.get("global_steps")
    if isinstance(step, int):
        if found.step is None:
            found.step = step
        named = _TAG.fullmatch(tag.name)
        if named and int(named[1]) != step:
            found.mark("model", "inconsistent")
            found.add("step-mismatch-name", "model", tag, named=int(named[1]), step=step)
    skipped = head.get("skipped_steps")
    found.fp16 = found.fp16 or bool(skipped)
    scheduler = head.get("lr_scheduler")
    if isinstance(scheduler, Obj):
        scheduler = scheduler.state
    if isinstance(scheduler, dict):
        found.mark("scheduler", "present")
        batch = scheduler.get("last_batch_iteration")
        found.scheduler_step = batch + 1 if isinstance(batch, int) else last_epoch(scheduler)
    elif found.format == NAME:
        config = head.get("ds_config")
        if isinstance(config, dict) and config.get("scheduler"):
            found.add("scheduler-missing", "scheduler", tag)
        else:
            found.mark("scheduler", "not_applicable")
