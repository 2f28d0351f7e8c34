"""What a plan is made for: the options of model and training, of how much is trained, and what they mean."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from labassist.errors import InputError

if TYPE_CHECKING:
    from labassist.cli.parsing import Parser
    from labassist.planner.plan import Plan

_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMbBgG]?)")
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
_ADAPTING, _TRAINING = ("lora", "qlora"), ("full", "lora", "qlora")
ONLY = {
    **dict.fromkeys(("lora_r", "lora_targets", "lora_dropout"), _ADAPTING),
    **dict.fromkeys(
        ("optim", "accumulate", "checkpointing", "loss", "padded", "trainer", "strategy"), _TRAINING
    ),
}
"""Options that say nothing beside every method, and the methods that they belong to."""


def model_options(parser: Parser) -> None:
    """Add the options that make a Plan; those not given keep the trainer's defaults."""
    group = parser.add_argument_group("what is planned")
    add = group.add_argument
    add(
        "--model",
        metavar="NAME|config.json|DIR",
        help="a published name, or a model's config",
    )
    add("--method", metavar="M", help="full, lora, qlora or inference (default: qlora)")
    add("--dtype", metavar="D", help="bf16, fp32, or mixed: fp32 weights under autocast (default: bf16)")
    add("--optim", metavar="NAME", help="by transformers' name (default: adamw_torch_fused)")
    add("--seq", type=int, metavar="N", help="tokens a sequence (default: 1024)")
    add("--batch", type=int, metavar="N", help="sequences a forward on one GPU (default: 8)")
    add("--accumulate", type=int, metavar="N", help="forwards a step (default: 1)")
    add("--checkpointing", action=argparse.BooleanOptionalAction, help="recompute activations (default: yes)")
    add("--attention", metavar="A", help="sdpa, eager or flash (default: sdpa)")
    add("--lora-r", type=int, metavar="R", help="rank of the adapters (default: 16)")
    add("--lora-targets", metavar="A,B|all-linear", help="adapted layers (default: q,k,v,o)")
    add("--lora-dropout", type=float, metavar="P", help="dropout of the adapters (default: 0.05)")
    add("--loss", metavar="L", help="chunked, or full: all logits at once (default: chunked)")
    add("--padded", action=argparse.BooleanOptionalAction, help="batches hold padding (default: no)")
    add("--trainer", metavar="T", help="trl, or loop: a plain PyTorch loop (default: trl)")
    add("--gpus", type=int, metavar="N", help="cards (default: 1)")
    add("--strategy", metavar="S", help="ddp, fsdp, zero1, zero2 or zero3 (default: ddp)")


def plan_of(args: argparse.Namespace) -> Plan:
    """Return the checked plan that the options mean. Raises InputError."""
    from labassist.planner.arch import load
    from labassist.planner.plan import METHODS, STRATEGIES, TRAINERS, Plan

    if not args.model:
        raise InputError("names no model", where="--model", mend="give a name, a config.json or a folder")
    given: dict[str, Any] = {
        name: value
        for name in Plan.__dataclass_fields__
        if name not in ("model", "lora_targets") and (value := getattr(args, name, None)) is not None
    }
    method = given.get("method", Plan.method)
    for name, methods in ONLY.items():
        if getattr(args, name, None) is not None and method in METHODS and method not in methods:
            raise InputError(
                f"says nothing with --method {method}",
                where=f"--{name.replace('_', '-')}",
                mend=f"leave it out, or take --method {' or '.join(methods)}",
            )
    if args.lora_targets is not None:
        given["lora_targets"] = tuple(filter(None, (one.strip() for one in args.lora_targets.split(","))))
        if not given["lora_targets"]:
            raise InputError(
                "names no layer", where="--lora-targets", mend="give q_proj,v_proj or all-linear"
            )
    if given.get("strategy") in STRATEGIES[1:] and given.get("gpus", Plan.gpus) == 1:
        raise InputError(
            "one card shares out nothing",
            where=f"--strategy {given['strategy']}",
            mend="give --gpus N, or leave it out",
        )
    if given.get("trainer") == TRAINERS[1]:
        # A plain loop has full logits and no checkpointing unless it is asked for.
        given = {"loss": "full", "checkpointing": False, **given}
    return Plan(load(args.model), **given).checked()


def work_options(parser: Parser) -> None:
    """Add how much is trained, on what."""
    add = parser.add_argument_group("how much, on what").add_argument
    add("--tokens", metavar="N", help="tokens to train on, as 10M")
    add("--examples", metavar="N", help="rows, each of --seq tokens")
    add("--epochs", type=float, default=1.0, metavar="N", help="times over --examples (default: 1)")
    add("--steps", metavar="N", help="optimizer steps")
    add("--card", metavar="NAME", help="the card")
    add("--link", metavar="NAME|GB/s", help='between cards: "PCIe 4 x16", "NVLink A100", or GB/s one way')
    add("--mfu", metavar="LO-HI", help="share of the card's peak, in place of the estimate")
    add("--run", metavar="RUN", help="a run whose first steps say the pace")
    add("--calibrate", type=int, default=20, metavar="N", help="steps of it to use, after 5 (default: 20)")


def count(text: str, option: str) -> float:
    """Return a number with k, M or B behind it. Raises InputError."""
    found = _COUNT.fullmatch(text.strip())
    value = float(found.group(1)) * _SCALE[found.group(2).lower()] if found else 0.0
    if not 0 < value < 1e18:
        raise InputError(f"{text!r} is no amount", where=option, mend="give a number, as 10M or 52002")
    return value


def span(text: str, option: str) -> tuple[float, float]:
    """Return `N` or `N-M` as a pair. Raises InputError."""
    parts = text.split("-")
    try:
        low, high = float(parts[0]), float(parts[-1])
    except ValueError:
        low = high = -1.0
    if len(parts) > 2 or not 0 < low <= high:
        raise InputError(f"{text!r} is no range", where=option, mend="give N or N-M, as 6-16")
    return low, high
