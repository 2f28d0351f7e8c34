"""Commands that say beforehand: `plan memory`, `time`, `cost`, `power`, `decide` and `claims`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labassist.cli.parsing import Parser, Subparsers
    from labassist.planner.plan import Plan

MEMORY_EXAMPLE = """\
labassist plan memory --model qwen2.5-7b --method qlora --seq 2048 --batch 2 --card 24GB
labassist plan memory --model ./my-model --method full --card H200 --gpus 4 --strategy fsdp
labassist plan memory --model llama-3.1-8b --method inference --seq 8192 --batch 16 --card 4090"""


_ADAPTING, _TRAINING = ("lora", "qlora"), ("full", "lora", "qlora")
ONLY = {
    **dict.fromkeys(("lora_r", "lora_targets", "lora_dropout"), _ADAPTING),
    **dict.fromkeys(
        ("optim", "accumulate", "checkpointing", "loss", "padded", "trainer", "strategy"), _TRAINING
    ),
}
"""Options that say nothing beside every method, and the methods that they belong to."""


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli import plan_more
    from labassist.cli.parsing import Parser, command, common

    parent = sub.add_parser(
        "plan",
        help="know before you rent: memory, time, cost, power, whether to train at all",
        description="Know before you rent: memory, time, cost, power, and whether to train at all.",
        epilog="example:\n  labassist plan memory --model qwen2.5-7b --method qlora --card 24GB",
    )
    common(parent)
    inner: Subparsers = parent.add_subparsers(
        title="plans", metavar="WHAT", dest="what", required=True, parser_class=Parser
    )
    parser = command(
        inner,
        "memory",
        memory,
        help="what a run takes of a card's memory, and whether it fits",
        example=MEMORY_EXAMPLE,
    )
    model_options(parser, needed=False)
    parser.add_argument("--models", action="store_true", help="list the published models")
    parser.add_argument("--card", metavar="24GB|NAME", help="the card: its size or its name")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="also run the step on fake tensors (seconds, no GPU; needs labassist[train])",
    )
    plan_more.register(inner)


def model_options(parser: Parser, *, needed: bool = True) -> None:
    """Add the options that make a Plan; those not given keep the trainer's defaults."""
    from argparse import BooleanOptionalAction

    group = parser.add_argument_group("what is planned")
    add = group.add_argument
    add(
        "--model",
        metavar="NAME|config.json|DIR",
        required=needed,
        help="a published name, or a model's config",
    )
    add("--method", metavar="M", help="full, lora, qlora or inference (default: qlora)")
    add("--dtype", metavar="D", help="bf16, fp32, or mixed: fp32 weights under autocast (default: bf16)")
    add("--optim", metavar="NAME", help="by transformers' name (default: adamw_torch_fused)")
    add("--seq", type=int, metavar="N", help="tokens a sequence (default: 1024)")
    add("--batch", type=int, metavar="N", help="sequences a forward on one GPU (default: 8)")
    add("--accumulate", type=int, metavar="N", help="forwards a step (default: 1)")
    add("--checkpointing", action=BooleanOptionalAction, help="recompute activations (default: yes)")
    add("--attention", metavar="A", help="sdpa, eager or flash (default: sdpa)")
    add("--lora-r", type=int, metavar="R", help="rank of the adapters (default: 16)")
    add("--lora-targets", metavar="A,B|all-linear", help="adapted layers (default: q,k,v,o)")
    add("--lora-dropout", type=float, metavar="P", help="dropout of the adapters (default: 0.05)")
    add("--loss", metavar="L", help="chunked, or full: all logits at once (default: chunked)")
    add("--padded", action=BooleanOptionalAction, help="batches hold padding (default: no)")
    add("--trainer", metavar="T", help="trl, or loop: a plain PyTorch loop (default: trl)")
    add("--gpus", type=int, metavar="N", help="cards (default: 1)")
    add("--strategy", metavar="S", help="ddp, fsdp, zero1, zero2 or zero3 (default: ddp)")


def plan_of(args: argparse.Namespace) -> Plan:
    """Return the checked plan that the options mean. Raises InputError."""
    from labassist.errors import InputError
    from labassist.planner.arch import load
    from labassist.planner.plan import METHODS, TRAINERS, Plan

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
        given["lora_targets"] = tuple(filter(None, args.lora_targets.split(",")))
        if not given["lora_targets"]:
            raise InputError(
                "names no layer", where="--lora-targets", mend="give q_proj,v_proj or all-linear"
            )
    if given.get("trainer") == TRAINERS[1]:
        # A plain loop has full logits and no checkpointing unless it is asked for.
        given = {"loss": "full", "checkpointing": False, **given}
    return Plan(load(args.model), **given).checked()


def memory(args: argparse.Namespace) -> int:
    """Estimate memory; 1 where the card does not hold it."""
    from labassist.cli.output import emit
    from labassist.planner.answer import memory_answer, memory_text, models_text
    from labassist.planner.cards import find

    if args.models:
        from labassist.planner.arch import load, names

        emit({"models": [load(name).name for name in names()]}, args.json, models_text)
        return 0
    plan = plan_of(args)
    card = find(args.card) if args.card else None
    answer = memory_answer(plan, card, dry_run=args.dry_run)
    emit(answer, args.json, lambda: memory_text(answer))
    return 1 if answer["fits"] is False else 0
