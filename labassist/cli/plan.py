"""Commands that say beforehand: the group `plan`, and `plan memory`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from labassist.cli import plan_cost, plan_decide, plan_time
from labassist.cli.plan_options import model_options, plan_of

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers

MEMORY_EXAMPLE = """\
labassist plan memory --model qwen2.5-7b --method qlora --seq 2048 --batch 2 --card 24GB
labassist plan memory --model ./my-model --method full --card H200 --gpus 4 --strategy fsdp
labassist plan memory --model llama-3.1-8b --method inference --seq 8192 --batch 16 --card 4090"""


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
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
    model_options(parser)
    parser.add_argument("--models", action="store_true", help="list the published models")
    parser.add_argument("--card", metavar="24GB|NAME", help="the card: its size or its name")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="also run the step on fake tensors (seconds, no GPU; needs labassist[train])",
    )
    for group in (plan_time, plan_cost, plan_decide):
        group.register(inner)


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
    card = find(args.card) if args.card is not None else None
    answer = memory_answer(plan, card, dry_run=args.dry_run)
    emit(answer, args.json, lambda: memory_text(answer))
    return 1 if answer["fits"] is False else 0
