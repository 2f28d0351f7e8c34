"""What must hold between the files of one checkpoint, whatever its format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labassist.resume.codes import Severity
from labassist.resume.description import Description
from labassist.resume.memory import Memory
from labassist.resume.pickled import DTYPES
from labassist.resume.reading import Reader

GIB = 1 << 30
_PREFIXES = ("_orig_mod.", "module.", "_fsdp_wrapped_module.", "_forward_module.")

_BY_WEIGHT = ("hf-trainer", "hf-peft", "accelerate", "plain")
"""Formats that keep the moments of each weight on their own, and not of a rank's share or a stack of weights."""


def judge(found: Description, memory: Memory | None) -> None:
    """Add the findings that come from comparing one part of a checkpoint with another."""
    _steps(found)
    _ranks(found)
    if found.weights and found.weights.tensors:
        _prefixes(found)
        _vocabulary(found)
        _adapter(found)
        _optimizer_fits(found)
    if found.moments and found.moments.eight_bit:
        found.add("optimizer-paged", "optimizer")
    if found.moments:
        _moments(found)
    if found.moments and memory:
        _memory(found, memory)


def _moments(found: Description) -> None:
    """Say when weights have no moments although their optimizer keeps some for every weight that it moved."""
    moments = found.moments
    assert moments is not None
    if moments.emptied and found.step != 0:
        found.states["optimizer"] = "absent"
        known: Severity | None = None if found.step else "notice"
        found.add("moments-missing", "optimizer", severity=known, weights=moments.weights)
    elif moments.lacking and found.format in _BY_WEIGHT and found.step != 0:
        as_saved: Severity | None = "info" if found.facts.get("sealed") else None
        found.add(
            "moments-few",
            "optimizer",
            severity=as_saved,
            lacking=moments.lacking,
            weights=moments.weights,
        )


def _memory(found: Description, memory: Memory) -> None:
    """Say when the optimizer's state, with the weights, is more than the machine has, or has free now."""
    assert found.moments is not None
    weights = sum(tensor.bytes for tensor in found.weights.tensors.values()) if found.weights else 0
    need = found.moments.bytes + weights
    for place, free, total in memory:
        if need > free:
            severity: Severity = "warning" if need > total else "info"
            size, left = (f"{number / GIB:.1f}" for number in (need, free))
            found.add("optimizer-memory", "optimizer", severity=severity, size=size, free=left, place=place)


def _steps(found: Description) -> None:
    step, moments = found.step, found.moments
    done = int(max(moments.steps)) if moments and moments.steps else None
    reference = step if step is not None else done
    if reference is None:
        return
    if done is not None and step is not None and done != step:
        if found.loose_counts:
            _loose(found, "optimizer", done, step)
        elif found.fp16 and done < step:
            found.add("skipped-steps", "optimizer", optimizer=done, step=step)
        else:
            found.mark("optimizer", "inconsistent")
            found.add("step-mismatch-optimizer", "optimizer", optimizer=done, step=step)
    at = found.scheduler_step
    if at is None or at == reference or (found.fp16 and at < reference):
        return
    if found.scheduler_ranks and (at == reference * (found.world_size or 1) or step is None):
        return
    if found.loose_counts:
        _loose(found, "scheduler", at, reference)
        return
    found.mark("scheduler", "inconsistent")
    found.add("step-mismatch-scheduler", "scheduler", scheduler=at, step=reference)


def _loose(found: Description, state: str, at: int, step: int) -> None:
    """Say that two counts differ where a loop of one's own may count in epochs or micro-batches."""
    severity: Severity | None = "info" if at < step else None
    found.add("counts-differ", state, severity=severity, at=at, step=step)


def _ranks(found: Description) -> None:
    for state, origins in found.origins.items():
        swapped = {rank for rank, origin in origins.items() if origins.get(origin) == rank != origin}
        if swapped:
            found.mark(state, "inconsistent")
            found.add(
                "ranks-swapped", state, rank=min(swapped), ranks=" and ".join(map(str, sorted(swapped)))
            )
        for rank, origin in sorted(origins.items()):
            if rank != origin and rank not in swapped:
                found.add("rank-copied", state, rank=rank, origin=f"rank {origin}")
    if len(found.rng) > 1 and len(set(found.rng.values())) == 1:
        found.add("rng-identical", "rng", count=len(found.rng))


def _prefixes(found: Description) -> None:
    assert found.weights is not None
    names = list(found.weights.tensors)
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in names):
            own = prefix in found.own_prefixes
            found.add("prefix", "model", severity="info" if own else None, prefix=prefix)


def _vocabulary(found: Description) -> None:
    """Compare the embedding's rows with config.json and the tokenizer, and look for the output layer."""
    assert found.weights is not None
    config = found.facts.pop("config", None) or {}
    names, rows = found.weights.tensors, found.weights.rows()
    heads = any(name.endswith("lm_head.weight") for name in names)
    causal = any(
        "CausalLM" in str(name) or "LMHead" in str(name) for name in config.get("architectures") or ()
    )
    if not found.weights.adapter:
        _data_type(found, str(config.get("dtype") or config.get("torch_dtype") or ""))
    if rows is None or found.weights.adapter:
        return
    if causal and not heads:
        if config.get("tie_word_embeddings") is False:
            found.mark("model", "inconsistent")
            found.add("head-missing", "model")
        else:
            found.add("tied-weights", "model")
    size = config.get("vocab_size")
    if isinstance(size, int) and size != rows:
        found.mark("model", "inconsistent")
        found.add("embedding-config", "model", "config.json", rows=rows, tokens=size)
    tokens = _tokens(found.path / "tokenizer.json")
    if tokens is not None and tokens > rows:
        found.mark("model", "inconsistent")
        found.add("embedding-tokenizer", "model", "tokenizer.json", rows=rows, tokens=tokens)
    elif tokens is not None and tokens < rows:
        found.add("embedding-padded", "model", "tokenizer.json", rows=rows, tokens=tokens)


def _data_type(found: Description, told: str) -> None:
    """Compare the data type that config.json names with those of the weights."""
    assert found.weights is not None
    held = {tensor.dtype for tensor in found.weights.tensors.values()} & {"F64", "F32", "F16", "BF16"}
    if told in DTYPES and held and DTYPES[told] not in held:
        found.add("weights-dtype", "model", "config.json", told=told, held=", ".join(sorted(held)))


def _tokens(path: Path) -> int | None:
    """Return how many rows a tokenizer needs: its highest id and one."""
    if not path.is_file():
        return None
    table = Reader(Description("", path), verify=False).json(path)
    try:
        vocabulary = table["model"]["vocab"]
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))
        ids += [token["id"] for token in table.get("added_tokens") or ()]
        return max(ids) + 1
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _adapter(found: Description) -> None:
    assert found.weights is not None
    if not found.weights.adapter:
        return
    trained = {name: tensor for name, tensor in found.weights.tensors.items() if "lora_" in name}
    halves = sorted({tensor.dtype for tensor in trained.values()} & {"BF16", "F16"})
    if halves and found.format.startswith("hf-"):
        words = {"BF16": "bfloat16", "F16": "float16"}
        mended: Severity | None = "info" if found.facts.get("attached") else None
        found.add("adapter-dtype", "model", severity=mended, dtype=words[halves[0]])
    if found.step and any("lora_B" in name for name in trained) and _all_zero(found.path):
        found.add("lora-b-zero", "model", step=found.step)


def _all_zero(path: Path) -> bool:
    """Say whether every lora_B in the safetensors files of a checkpoint is zero; False where none can be read."""
    from labassist.errors import CheckpointError
    from labassist.record.inspect import read_header

    seen = False
    for file in [*path.glob("adapter_model.safetensors"), *path.glob("*/adapter_model.safetensors")]:
        try:
            entries = read_header(file)
        except CheckpointError:
            return False
        with file.open("rb") as data:
            for entry in entries:
                if "lora_B" not in entry.name:
                    continue
                seen = True
                data.seek(entry.begin)
                if any(data.read(entry.end - entry.begin)):
                    return False
    return seen


def _optimizer_fits(found: Description) -> None:
    """Compare the optimizer's weights with the model's, by number and by the shapes of the moments."""
    assert found.weights is not None
    moments, tensors = found.moments, found.weights.tensors
    if moments is None or not moments.weights:
        return
    if found.weights.adapter:
        # PEFT may store a resized embedding beside the adapter: it is stored and not trained.
        extra = sum(1 for name in tensors if "lora_" not in name and "modules_to_save" not in name)
        fits = len(tensors) - extra <= moments.weights <= len(tensors)
    else:
        fits = moments.weights <= len(tensors)
    if not fits:
        found.mark("optimizer", "inconsistent")
        what = "adapter" if found.weights.adapter else "model"
        found.add("optimizer-count", "optimizer", what=what, optimizer=moments.weights, weights=len(tensors))
        return
    have: dict[Any, int] = {}
    for tensor in tensors.values():
        have[tensor.shape] = have.get(tensor.shape, 0) + 1
    for shape, count in sorted(moments.shapes.items()):
        if have.get(shape, 0) < count:
            found.mark("optimizer", "inconsistent")
            found.add("optimizer-shapes", "optimizer", shape="×".join(map(str, shape)) or "1")
            return
