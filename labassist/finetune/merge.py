"""Merge an adapter into its base: into 16 bits, never into 4, and only into the base that it was trained on.

    labassist merge @last --out outputs/merged

runs this module as a recorded run. The merged model answers as base and adapter do, up to what rounding its weights to
bf16 costs, and that is checked before the folder gets its name: it is there whole, or not at all.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from labassist.errors import InputError, LabError
from labassist.finetune import lineage, model_folder, models
from labassist.finetune.model_folder import Model
from labassist.record.durable import replace_file, sync_file, sync_folder
from labassist.record.inspect import workspace_of
from labassist.record.protocol import Order, file_sha256, read_order

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BOUND = 0.05
"""Largest relative difference (2-norm over all logits of the probe) between the merged model and base + adapter."""

EFFECT = 0.25
"""The same difference over what the adapter changes: a merge that forgot the adapter has 1."""

PROBE = (
    "The order was sent back because the lamp did not work.",
    '{"order": 48213, "item": "kettle", "want": "refund"}',
    "Once there was a model that had read a great many books, and it wrote:",
)


def find_adapter(place: Path) -> Path:
    """Return the folder of an adapter: `place`, or its newest whole checkpoint. Raises InputError where there is none."""
    if not place.is_dir():
        raise InputError("no such folder", where=str(place), mend="give an adapter's folder, or a run")
    checkpoints = sorted(place.glob("checkpoint-*"), key=lambda one: int(one.name.rpartition("-")[2]))
    torn = ""
    for folder in (place, *reversed(checkpoints)):
        if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
            fault = _torn(folder)
            if not fault:
                return folder
            torn = torn or f"{folder}/{fault}"
    if torn:
        raise InputError(
            f"holds no whole adapter: {torn}", where=str(place), mend="give an earlier checkpoint of the run"
        )
    raise InputError(
        f"holds no adapter ({CONFIG} and {WEIGHTS})", where=str(place), mend="give a checkpoint of a LoRA run"
    )


def _torn(folder: Path) -> str:
    """Return which file of an adapter was cut, and how; empty where none was."""
    if fault := model_folder.torn(folder / WEIGHTS):
        return f"{WEIGHTS} {fault}"
    try:
        json.loads((folder / CONFIG).read_bytes())
    except ValueError:
        return f"{CONFIG} is no JSON that can be read"
    return ""


def base_of(adapter: Path, root: Path, name: str, order: Order) -> tuple[Model, str]:
    """Return the base that an adapter belongs to, in 16 bits, and what speaks against it; see `doubt`.

    `name` is what a person named; empty: what the adapter was trained on. Raises InputError where it is another, or in
    4 bits, and where something speaks against it and nobody named it.
    """
    kept = lineage.read(adapter)
    told = json.loads((adapter / CONFIG).read_bytes())
    wanted = name or kept.get("base", {}).get("name") or told.get("base_model_name_or_path") or ""
    if not wanted:
        raise InputError("does not say what its base is", where=str(adapter), mend="name it with --base")
    base = models.prepare(wanted, root, say=lambda line: print(f"labassist: {line}", flush=True))
    shown = base.manifest.relative_to(root) if base.manifest.is_relative_to(root) else base.manifest
    # Relative, as every path of a record, but where the merge was asked for in a folder below the workspace's.
    order.input("base", shown if shown.exists() else base.manifest, base.facts())
    trained_on = kept.get("base", {}).get("digest")
    if trained_on and trained_on != base.digest:
        raise InputError(
            f"was trained on another base: {kept['base']['name']} ({trained_on[:12]}…) and not {wanted} "
            f"({base.digest[:12]}…)",
            where=str(adapter),
            mend="give its own base with --base",
        )
    if json.loads((base.folder / "config.json").read_bytes()).get("quantization_config"):
        raise InputError(
            "this base is a quantised one: a merge into it would round the adapter away",
            where=wanted,
            mend="give the same model in 16 bits with --base",
        )
    against = doubt(adapter, base, root)
    if against and not name:
        raise InputError(
            against,
            where=str(adapter),
            mend=f"name the base with --base; --base {wanted} insists, and the doubt is recorded",
        )
    return base, against


def doubt(adapter: Path, base: Model, root: Path) -> str:
    """Return what speaks against this base, or that nothing speaks for it; empty where its digest or its name does.

    Shapes alone say little: base and instruct of one family have the same. A folder that the adapter's configuration
    names may lie on another machine: it counts by its last part, and not at all where the base's digest is known.
    """
    known = lineage.read(adapter).get("base", {}).get("digest") == base.digest
    claim = str(json.loads((adapter / CONFIG).read_bytes()).get("base_model_name_or_path") or "")
    if not claim:
        return "" if known else f"nothing tells what it was trained on: only its shapes fit {base.name}"
    names = {Path(one).name.casefold() for one in (base.name, str(base.folder))}
    if Path(claim).name.casefold() in names or (root / claim).resolve() == base.folder.resolve():
        return ""
    hub = model_folder.HUB_ID.fullmatch(claim) and not (root / claim).is_dir()
    return f"{CONFIG} names {claim}, and the base is {base.name}" if hub or not known else ""


def check_shapes(adapter: Path, model: Any) -> None:
    """Raise InputError where an adapter's matrices do not fit the base's layers."""
    from safetensors import safe_open

    layers = {name: list(weight.shape) for name, weight in model.named_parameters()}
    with safe_open(adapter / WEIGHTS, "pt") as file:
        for key in file.keys():  # noqa: SIM118 - this is no dictionary
            name, _, side = key.removeprefix("base_model.model.").partition(".lora_")
            if not side:
                continue
            shape = layers.get(f"{name}.weight")
            rank_by_size = list(file.get_slice(key).get_shape())
            fits = shape and (rank_by_size[1] == shape[1] if side[0] == "A" else rank_by_size[0] == shape[0])
            if not fits:
                raise InputError(
                    f"belongs to another base: {key} is {rank_by_size}, and {name}.weight here "
                    + (f"is {shape}" if shape else "does not exist"),
                    where=str(adapter),
                    mend="give its own base with --base",
                )


def merge(adapter: Path, base: Model, out: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Write the merged model to `out` and return what was checked.

    `relative` is the 2-norm of the difference of all logits over that of base + adapter's; `of_effect` over that of
    what the adapter changed. Raises InputError where the difference is above BOUND or EFFECT, and writes nothing then.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if out.exists():
        raise InputError("is there already", where=str(out), mend="name another folder with --out")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # what a merge that was killed has left
    tokenizer = AutoTokenizer.from_pretrained(base.folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plain = AutoModelForCausalLM.from_pretrained(base.folder, dtype=torch.bfloat16).to(device).eval()
    model_folder.need_disk(out.parent, 2 * sum(one.numel() for one in plain.parameters()), "the merged model")
    check_shapes(adapter, plain)

    def logits(model: Any) -> Any:
        with torch.no_grad():
            each = [model(**tokenizer(text, return_tensors="pt").to(device)).logits[0] for text in PROBE]
        return torch.cat(each).float()

    before = logits(plain)
    tuned = PeftModel.from_pretrained(plain, adapter).eval()
    meant = logits(tuned)
    merged = tuned.merge_and_unload(safe_merge=True)
    found = logits(merged)
    apart, effect = float((found - meant).norm()), float((meant - before).norm())
    checked = {
        "relative": apart / float(meant.norm()),
        "of_effect": apart / effect if effect else 0.0,
        "largest": float((found - meant).abs().max()),
        "same_first_choice": float((found.argmax(-1) == meant.argmax(-1)).float().mean()),
        "bound": BOUND,
        "bound_of_effect": EFFECT,
    }
    if checked["relative"] > BOUND or checked["of_effect"] > EFFECT:
        raise InputError(
            f"the merged model does not answer as base and adapter do: its logits differ by {checked['relative']:.1%} "
            f"(bound {BOUND:.0%}), and by {checked['of_effect']:.1%} of what the adapter changed (bound {EFFECT:.0%})",
            where=str(adapter),
            mend="serve the adapter unmerged (labassist serve BASE --adapter NAME=ADAPTER), or report this",
        )
    partial.mkdir(parents=True)
    merged.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    (partial / ".gitignore").write_text("# Made by labassist: weights are no source.\n*\n")
    told = {**facts, "checked": checked}
    replace_file(partial / lineage.FILE, json.dumps(told, indent=1).encode() + b"\n")
    for path in partial.iterdir():
        sync_file(path)
    sync_folder(partial)
    partial.rename(out)
    sync_folder(out.parent)
    return checked


def main() -> int:
    """Merge one adapter; `labassist merge` runs this as a recorded run."""
    parser = argparse.ArgumentParser(prog="python -m labassist.finetune.merge", description=main.__doc__)
    parser.add_argument("adapter", type=Path)
    parser.add_argument("--base", default="")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    order = read_order()
    root = workspace_of(order.folder) if order.folder else Path.cwd()
    try:
        # In a replay, what a run has left lies in the workspace and not in the restored copy.
        adapter = find_adapter(args.adapter if args.adapter.is_dir() else root / args.adapter)
        base, against = base_of(adapter, root, args.base, order)
        if against:
            print(f"labassist: warning: {against}", flush=True)
        kept = lineage.read(adapter)
        split = {"run": kept.get("run", ""), "step": kept.get("step", 0)}
        weights = order.input(
            "adapter", adapter / WEIGHTS, {**split, "warning": against} if against else split
        )
        facts = {
            "adapter": {
                "sha256": file_sha256(weights),
                "run": kept.get("run", ""),
                "step": kept.get("step", 0),
            },
            "base": {"name": base.name, **base.facts()},
            "data": kept.get("data", {}),
            "warning": against,
        }
        from labassist.record import determinism

        determinism.apply(order.mode, order.seed, order.threads)
        checked = merge(adapter, base, args.out, facts)
    except LabError as error:
        print(f"labassist: {error}", file=sys.stderr)
        return error.status
    print(
        f"labassist: merged into {args.out}: its logits differ from base + adapter by {checked['relative']:.2%} "
        f"(bound {BOUND:.0%}), {checked['of_effect']:.2%} of what the adapter changed; "
        f"same first choice at {checked['same_first_choice']:.1%} of places"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
