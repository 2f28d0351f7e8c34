"""`plan decide` and `plan claims`: whether to train at all, and what widely read articles claim."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers


def register(inner: Subparsers) -> None:
    """Add the commands."""
    from labassist.cli.parsing import command

    parser = command(
        inner,
        "decide",
        decide,
        help="whether to train at all: four conditions, and what to try before",
        example="labassist plan decide --examples 1200 --sample 100 --errors 4 --prompt-score 0.61 "
        "--target-score 0.8 --eval-size 200 --people-hours 40 --budget-hours 132",
    )
    add = parser.add_argument
    add("--examples", type=int, metavar="N", help="training examples, duplicates gone")
    add("--sample", type=int, metavar="N", help="labels checked by hand")
    add("--errors", type=int, metavar="N", help="of them wrong")
    add("--prompt-score", type=float, metavar="P", help="share right of the best prompt, 0 to 1")
    add("--target-score", type=float, metavar="P", help="share right that is needed")
    add("--eval-size", type=int, metavar="N", help="examples the score was measured on")
    add("--people-hours", type=float, metavar="N", help="hours that people would spend")
    add("--machine-hours", type=float, metavar="N", help="hours that machines would")
    add("--budget-hours", type=float, metavar="N", help="people's hours that there are")
    add("--facts-change", action=argparse.BooleanOptionalAction, help="what must be known changes monthly")
    add("--thresholds", type=Path, metavar="FILE", help="your thresholds")
    parser = command(
        inner,
        "claims",
        claims,
        help="the claims of two widely read articles, checked",
        example="labassist plan claims --verify",
    )
    parser.add_argument(
        "--verify", action="store_true", help="compute again what can be; 1 where one disagrees"
    )


def decide(args: argparse.Namespace) -> int:
    """Record the reasons for and against; never a verdict, so always 0."""
    from labassist.cli.output import emit
    from labassist.planner.decide import Facts, record
    from labassist.planner.report import decide_text

    facts = Facts(**{name: getattr(args, name) for name in Facts.__dataclass_fields__})
    answer = record(facts, args.thresholds)
    emit(answer, args.json, lambda: decide_text(answer))
    return 0


def claims(args: argparse.Namespace) -> int:
    """Show the table; with --verify compute it again, 1 where one disagrees."""
    from dataclasses import asdict

    from labassist.cli.output import emit
    from labassist.planner import claims as planner
    from labassist.planner.report import claims_text

    checked = planner.verify() if args.verify else []
    answer: dict[str, Any] = {"claims": [asdict(one) for one in planner.claims()]}
    if args.verify:
        answer |= {"ok": all(one["agrees"] for one in checked), "checked": checked}
    emit(answer, args.json, lambda: claims_text(answer))
    return 0 if answer.get("ok", True) else 1
