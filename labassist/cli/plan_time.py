"""`plan time`: how long a training takes, as a range."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from labassist.cli.plan_options import count, model_options, plan_of, span, work_options
from labassist.errors import InputError

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers


def register(inner: Subparsers) -> None:
    """Add the command."""
    from labassist.cli.parsing import command

    parser = command(
        inner,
        "time",
        time,
        help="how long a training takes, as a range, and the share that goes between cards",
        example="labassist plan time --model qwen2.5-7b --seq 2048 --batch 2 --card 4090 --tokens 10M\n"
        "labassist plan time --run @last",
    )
    model_options(parser)
    work_options(parser)


def time(args: argparse.Namespace) -> int:
    """Say how long."""
    from labassist.cli.output import emit
    from labassist.planner.report import time_text

    answer = duration(args)
    emit(answer, args.json, lambda: time_text(answer))
    return 0


def duration(args: argparse.Namespace) -> dict[str, Any]:
    """Return the document of `plan time`."""
    from dataclasses import asdict

    from labassist.cli.plan_pace import asked, calibration, pace
    from labassist.planner import time as planner
    from labassist.planner.answer import warnings
    from labassist.planner.cards import find, link
    from labassist.planner.memory import estimate

    found: dict[str, Any] = {}
    run = None
    if args.run:
        run, measured = calibration(args)
        total, step = run.run.get("total_steps", 0), run.run.get("step", 0)
        found["calibration"] = {"run": run.run["id"], **asdict(measured)}
        found["run"] = {
            "id": run.run["id"],
            "step": step,
            "total_steps": total,
            "whole_s": measured.step_s * total,
            "left_s": measured.step_s * max(0, total - step),
            "gpus": run.ranks,
            "card": run.card.name if run.card else None,
        }
        if not args.model:
            return {**found, **asked(args, measured)}
    plan = plan_of(args)
    args.seq_used = plan.seq
    if not plan.trains:
        raise InputError("is no training", where="--method inference", mend="take full, lora or qlora")
    if not args.card and run is None:
        raise InputError("names no card", where="--card", mend="name one (4090, A100 80GB, H200)")
    named = find(args.card) if args.card else None
    tokens_per_s = pace(run, measured, plan, named) if run is not None else 0.0
    real = named or (run.card if run is not None else None)
    if run is not None and args.mfu:
        raise InputError("says nothing beside a run's pace", where="--mfu", mend="leave it out, or --run")
    card = real or find("24GB")
    if plan.gpus > 1 and not args.link:
        raise InputError("names no link between the cards", where="--link", mend='as --link "PCIe 4 x16"')
    took = planner.duration(
        plan,
        card,
        _tokens(args, plan.tokens * plan.accumulate * plan.gpus),
        gb_s=link(args.link) if args.link else 0.0,
        mfu=_mfu(args.mfu) if args.mfu else None,
        tokens_per_s=tokens_per_s,
    )
    memory = estimate(plan)
    return {
        **found,
        "settings": plan.settings(),
        "card": card.name,
        "usable_gib": real.usable_gib if real else None,
        "total_gib": memory.total_gib,
        "fits": memory.fits(real) if real else None,
        "warnings": warnings(plan, real),
        "tflops": card.tflops,
        "flops_a_token": planner.flops_a_token(plan),
        **asdict(took),
        "tokens_per_s": [plan.tokens * plan.accumulate * plan.gpus / one for one in reversed(took.step_s)],
    }


def _tokens(args: argparse.Namespace, a_step: int) -> float:
    """Return the tokens that the options mean, where a step has `a_step`. Raises InputError."""
    given = [name for name in ("tokens", "examples", "steps") if getattr(args, name) is not None]
    if len(given) != 1:
        raise InputError("say how much is trained, once", where="--tokens, --examples or --steps")
    amount = count(getattr(args, given[0]), f"--{given[0]}")
    if args.epochs != 1 and given[0] != "examples":
        raise InputError(
            "says nothing without --examples", where="--epochs", mend=f"leave it out, or --{given[0]}"
        )
    if given[0] == "steps":
        return amount * a_step
    if given[0] == "examples":
        if not 0 < args.epochs < 1e6:
            raise InputError(f"{args.epochs:g} is no number of epochs", where="--epochs")
        return float(amount * args.seq_used * args.epochs)
    return amount


def _mfu(text: str) -> tuple[float, float]:
    low, high = span(text, "--mfu")
    if high > 1:
        raise InputError(f"{text!r} is over 1", where="--mfu", mend="give a share, as 0.3-0.5")
    return low, high
