"""Round a model's weights to 8 and to 4 bits, write both, and measure what that costs.

labassist run 08-serve/quantise --profile tiny

To the nearest level, and nothing cleverer: what GPTQ and AWQ (llmcompressor) add is to choose the levels so that the
layer's output changes least, on texts that they are given. The files have the format of compressed-tensors, which vLLM
reads on a card and on a CPU.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch

from labassist import record
from labassist.data import rows
from labassist.errors import InputError
from labassist.finetune import lineage, load, merge, models, tokens
from labassist.record.inspect import workspace_of
from labassist.record.protocol import file_sha256

OUT = Path("outputs/08-serve")
Tensors = dict[str, torch.Tensor]


def linears(model: Any) -> dict[str, torch.nn.Linear]:
    """Return the layers that are rounded: every product of a block; the embeddings and the head stay as they are."""
    return {
        name: one
        for name, one in model.named_modules()
        if isinstance(one, torch.nn.Linear) and "lm_head" not in name
    }


# ---------------------------------------------------------------------------- rounding


def rounded(weight: torch.Tensor, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whole numbers (rows, columns) and scales (rows, groups): weight is about number x scale.

    The largest weight of a group of columns lands on the last level; `group` 0 takes a row as one group.
    """
    parts = weight.float().unflatten(1, (-1, group or weight.shape[1]))
    most = 2 ** (bits - 1)
    scale = (parts.abs().amax(2, keepdim=True) / (most - 0.5)).clamp(min=1e-8).bfloat16().float()
    numbers = (parts / scale).round().clamp(-most, most - 1)
    return numbers.flatten(1).to(torch.int8), scale.squeeze(2).bfloat16()


def restored(numbers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the weights that whole numbers and scales stand for, in bf16."""
    parts = numbers.float().unflatten(1, (scale.shape[1], -1)) * scale.float()[:, :, None]
    return parts.flatten(1).bfloat16()


def packed(numbers: torch.Tensor) -> torch.Tensor:
    """Return 4-bit numbers, eight in an int32, the first in its lowest bits, each with 8 added."""
    eight = (numbers.to(torch.int64) + 8).unflatten(1, (-1, 8))
    words = (eight << (4 * torch.arange(8))).sum(2)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def variant(model: Any, bits: int, group: int) -> tuple[Tensors, Tensors]:
    """Return a model's tensors as they are written, and its rounded weights as they count."""
    written, counts = {}, {}
    layers = linears(model)
    tied = model.config.tie_word_embeddings
    for name, tensor in model.state_dict().items():
        layer = name.removesuffix(".weight")
        if layer not in layers:
            if not (tied and name == "lm_head.weight"):
                written[name] = tensor.contiguous()
            continue
        numbers, scale = rounded(tensor, bits, group)
        counts[name] = restored(numbers, scale)
        written[f"{layer}.weight_scale"] = scale
        if bits == 8:
            written[name] = numbers
        else:
            written[f"{layer}.weight_packed"] = packed(numbers)
            written[f"{layer}.weight_shape"] = torch.tensor(tensor.shape)
    return written, counts


def described(bits: int, group: int) -> dict[str, Any]:
    """Return what config.json says of the weights, as the library compressed-tensors reads it."""
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "dynamic": False}
    weights |= {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    # In 8 bits the inputs of a layer are rounded too, each token by its own scale: whole numbers are multiplied.
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
    form = "int-quantized" if bits == 8 else "pack-quantized"
    one = {"targets": ["Linear"], "weights": weights, "input_activations": inputs if bits == 8 else None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {**one, "format": form}},
    }


def write(folder: Path, source: Path, written: Tensors, told: dict[str, Any]) -> None:
    """Write a variant whole, or not at all: the base's folder with other weights."""
    from safetensors.torch import save_file

    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for one in source.iterdir():
        if one.is_file() and ".safetensors" not in one.name and not one.name.startswith("labassist-"):
            shutil.copyfile(one, partial / one.name)
    config = json.loads((source / "config.json").read_bytes())
    (partial / "config.json").write_text(json.dumps({**config, "quantization_config": told}, indent=1))
    save_file(written, partial / "model.safetensors", {"format": "pt"})
    (partial / ".gitignore").write_text("# Made by a run: weights are no source.\n*\n")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


# ---------------------------------------------------------------------------- what it costs


class Rounding8:
    """While it holds, the inputs of every rounded layer are rounded to 8 bits a token, as the 8-bit kernel does."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __enter__(self) -> None:
        def enter(_layer: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            x = given[0].float()
            scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-8)
            return ((x / scale).round() * scale).to(given[0].dtype), *given[1:]

        self._hooks = [one.register_forward_pre_hook(enter) for one in linears(self._model).values()]

    def __exit__(self, *_error: object) -> None:
        for hook in self._hooks:
            hook.remove()


@torch.no_grad()
def losses(
    model: Any, samples: list[tuple[torch.Tensor, int]]
) -> tuple[list[float], list[int], torch.Tensor]:
    """Return of each message's answer the mean nats a token and the number of tokens, and the logits of the first.

    A sample is its tokens and how many of them are given: what the user wrote is no merit of the model.
    """
    each, counts, first = [], [], torch.empty(0)
    for at, (ids, given) in enumerate(samples):
        logits = model(ids[None]).logits[0, given - 1 : -1].float()
        each.append(float(torch.nn.functional.cross_entropy(logits, ids[given:])))
        counts.append(len(ids) - given)
        first = logits if at == 0 else first
    return each, counts, first


def mean(each: list[float], counts: list[int]) -> float:
    """Return the mean over all tokens."""
    return sum(one * count for one, count in zip(each, counts, strict=True)) / sum(counts)


def megabytes(folder: Path) -> float:
    """Return how large a model's weights are on disk."""
    return sum(one.stat().st_size for one in folder.glob("*.safetensors")) / 1e6


def digest(tensors: Tensors) -> str:
    """Return 16 hex digits over all tensors: two runs that rounded alike have the same."""
    seen = hashlib.sha256()
    for name in sorted(tensors):
        seen.update(name.encode() + tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()[:16]


# ---------------------------------------------------------------------------- a merge into 4 bits


def nf4(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight as bitsandbytes' nf4 holds it: sixteen levels, a scale every 64."""
    from bitsandbytes import functional

    numbers, state = functional.quantize_4bit(weight.contiguous(), quant_type="nf4")
    return functional.dequantize_4bit(numbers, state).to(weight.dtype)


def lost(root: Path, merged: models.Model, model: Any, ids: torch.Tensor) -> dict[str, float]:
    """Return what rounding takes from the adapter, over what the adapter changed: into 16 bits and into 4.

    Also how far the merged model's logits are from those of base + adapter (2-norm, relative). Empty for a model that
    no adapter was merged into. Raises InputError where the adapter is gone.
    """
    from peft import PeftModel

    kept = lineage.read(merged.folder)
    if not kept.get("adapter"):
        return {}
    adapter = merge.find_adapter(root / "ledger" / "runs" / kept["adapter"]["run"] / "trainer")
    if file_sha256(adapter / merge.WEIGHTS) != kept["adapter"]["sha256"]:
        raise InputError("is not the adapter that was merged", where=str(adapter), mend="merge it again")
    base = models.prepare(kept["base"]["name"], root)
    plain = load.model(base).eval()
    before = {name: one.weight.data.float() for name, one in linears(plain).items()}
    tuned = PeftModel.from_pretrained(plain, adapter).eval()
    with torch.no_grad():
        meant = tuned(ids[None]).logits[0].float()
        found = model(ids[None]).logits[0].float()
    here = {name: one.weight.data.float() for name, one in linears(model).items()}
    change, into16, into4 = 0.0, 0.0, 0.0
    for name, one in tuned.base_model.model.named_modules():
        if not hasattr(one, "get_delta_weight"):
            continue
        delta = one.get_delta_weight("default").float()
        exact = before[name] + delta
        four = nf4(before[name]) + delta  # what was trained: the base in 4 bits, the adapter beside it
        change += float(delta.square().sum())
        into16 += float((here[name] - exact).square().sum())
        into4 += float((nf4(four) - four).square().sum())
    return {
        "merged_apart": float((found - meant).norm() / meant.norm()),
        "lost_16": math.sqrt(into16 / change),
        "lost_4": math.sqrt(into4 / change),
    }


# ---------------------------------------------------------------------------- put together


def main() -> None:
    order = record.read_order("labs/08-serve/quantise.toml")
    c = order.config
    root = workspace_of(order.folder) if order.folder else Path.cwd()
    merged = models.of_order(order, c["model"]["name"], c["model"]["revision"])
    held = rows.read(order.input("heldout", c["data"]["heldout"]))[: c["rows"]]
    record.determinism.apply(order.mode, order.seed, order.threads)
    load.quiet()
    tokenizer = load.tokenizer(merged, chat=held[0].conversational)
    model = load.model(merged).eval()
    encoded = [tokens.encode(one, tokenizer) for one in held]
    samples = [(torch.tensor(ids), given) for ids, given in encoded]
    recorder = record.start(total_steps=3, order=order)

    each, counts, first = losses(model, samples)
    size = megabytes(merged.folder)
    loss = mean(each, counts)
    print(f"16 bits: {size:.0f} MB, loss {loss:.4f}, perplexity {math.exp(loss):.3f}", flush=True)
    recorder.record(
        1,
        bits=16,
        mb=size,
        loss=loss,
        perplexity=math.exp(loss),
        added=0.0,
        **lost(root, merged, model, samples[0][0]),
    )
    state = {name: one.clone() for name, one in model.state_dict().items()}
    for step, (bits, group) in enumerate(((8, 0), (4, c["group"])), 2):
        model.load_state_dict(state)
        written, weights = variant(model, bits, group)
        folder = root / OUT / f"int{bits}"
        write(folder, merged.folder, written, described(bits, group))
        model.load_state_dict({**state, **weights})
        if bits == 8:
            with Rounding8(model):
                now, _counts, logits = losses(model, samples)
        else:
            now, _counts, logits = losses(model, samples)
        loss, size = mean(now, counts), megabytes(folder)
        added = [b - a for a, b in zip(each, now, strict=True)]
        low, high = tokens.interval(added)
        same = float((logits.argmax(-1) == first.argmax(-1)).float().mean())
        print(
            f"{bits} bits: {size:.0f} MB, loss {loss:.4f} ({mean(added, counts):+.4f}, a text {low:+.4f} to {high:+.4f}), "
            f"perplexity {math.exp(loss):.3f}; {folder.relative_to(root)}",
            flush=True,
        )
        recorder.record(
            step, bits=bits, mb=size, loss=loss, perplexity=math.exp(loss), added=mean(added, counts),
            added_low=low, added_high=high, same_choice=same, weights_digest=digest(written),
        )  # fmt: skip
    recorder.finish(3)


if __name__ == "__main__":
    main()
