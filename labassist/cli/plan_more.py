"""The rest of `plan`: time, cost, power, decide and claims."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labassist.errors import InputError

if TYPE_CHECKING:
    from labassist.cli.parsing import Parser, Subparsers

_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMbBgG]?)")
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}


def register(inner: Subparsers) -> None:
    """Add the other plans."""
    from labassist.cli.parsing import command
    from labassist.cli.plan import model_options

    parser = command(
        inner,
        "time",
        time,
        help="how long a training takes, as a range, and the share that goes between cards",
        example="labassist plan time --model qwen2.5-7b --seq 2048 --batch 2 --card 4090 --tokens 10M\n"
        "labassist plan time --run @last",
    )
    model_options(parser, needed=False)
    work_options(parser)
    parser = command(
        inner,
        "cost",
        cost,
        help="what it costs: machine hours, people's hours, a buffer; rent against buy",
        example="labassist plan cost --hours 6-16 --card 4090 --people-hours 132\n"
        "labassist plan cost --model qwen2.5-7b --tokens 10M --card H200 --people-hours 40 --buffer 2",
    )
    model_options(parser, needed=False)
    work_options(parser)
    add = parser.add_argument_group("money").add_argument
    add("--hours", metavar="N[-M]", help="machine hours, in place of a model and its tokens")
    add("--price", type=float, metavar="P", help="one card's hour (default: from the price table)")
    add(
        "--people-hours",
        type=float,
        default=0.0,
        metavar="N",
        help="cleaning, debugging, evaluating (default: 0)",
    )
    add("--person", type=float, metavar="P", help="one person's hour (default: from the price table)")
    add("--buffer", type=float, default=3.0, metavar="F", help="factor on machine hours (default: 3)")
    add(
        "--prices",
        type=Path,
        metavar="FILE",
        help="your price table (default: templates/prices.toml, if there)",
    )
    add(
        "--currency",
        metavar="C",
        help="show money in this currency (needs --exchange, unless it is the table's)",
    )
    add("--exchange", type=float, metavar="X", help="units of --currency for one of the table's")
    add("--purchase", type=float, metavar="P", help="price of a card (default: from the price table)")
    add("--resale", type=float, metavar="P", help="what it sells for afterwards (default: half)")
    add(
        "--hours-a-month",
        type=float,
        default=100.0,
        metavar="N",
        help="hours of use, if bought (default: 100)",
    )
    add("--idle-watts", type=float, default=20.0, metavar="W", help="an idle card's draw (default: 20)")
    parser = command(
        inner,
        "power",
        power,
        help="energy, and whether a power supply carries the cards",
        example="labassist plan power --card 4090 --gpus 2 --psu 1200 --hours 10",
    )
    add = parser.add_argument
    add("--card", metavar="NAME", help="the card, for its power limit")
    add("--watts", type=float, metavar="W", help="one card's power limit (default: the card's)")
    add("--gpus", type=int, default=1, metavar="N", help="cards (default: 1)")
    add("--psu", type=float, default=0.0, metavar="W", help="the power supply's rating")
    add("--rail-amps", type=float, default=0.0, metavar="A", help="its 12 V current")
    add("--host-watts", type=float, default=150.0, metavar="W", help="the rest of the machine (default: 150)")
    add("--hours", type=float, default=0.0, metavar="N", help="hours of use, for the energy")
    add(
        "--average-watts",
        type=float,
        default=0.0,
        metavar="W",
        help="one card's measured mean (default: its limit)",
    )
    add("--prices", type=Path, metavar="FILE", help="your price table")
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


def _duration(args: argparse.Namespace) -> dict[str, Any]:
    """Return the document of `plan time`."""
    from dataclasses import asdict

    from labassist.cli.plan import plan_of
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


def _mfu(text: str) -> tuple[float, float]:
    low, high = span(text, "--mfu")
    if high > 1:
        raise InputError(f"{text!r} is over 1", where="--mfu", mend="give a share, as 0.3-0.5")
    return low, high


def time(args: argparse.Namespace) -> int:
    """Say how long."""
    from labassist.cli.output import emit
    from labassist.planner.report import time_text

    answer = _duration(args)
    emit(answer, args.json, lambda: time_text(answer))
    return 0


def cost(args: argparse.Namespace) -> int:
    """Say how much."""
    from labassist.cli.output import emit
    from labassist.planner import cost as planner
    from labassist.planner.report import cost_text

    if args.hours and args.model:
        raise InputError("give --hours or a model, not both", where="--hours")
    took = None if args.hours else _duration(args)
    if took is not None and "hours" not in took:
        raise InputError(
            "names neither hours nor a model", where="--hours", mend="give --hours N, or --model and --tokens"
        )
    hours = span(args.hours, "--hours") if took is None else tuple(took["hours"])
    answer = planner.answer(
        planner.prices(args.prices, _workspace_root(args)),
        hours=(hours[0], hours[1]),
        gpus=args.gpus if args.gpus is not None else 1,
        card=args.card,
        rate=args.price,
        people_hours=args.people_hours,
        person=args.person,
        buffer=args.buffer,
        currency=args.currency,
        exchange=args.exchange,
        purchase=args.purchase,
        resale=args.resale,
        hours_a_month=args.hours_a_month,
        idle_watts=args.idle_watts,
    )
    answer |= {"time": took, "fits": took["fits"] if took else None}
    emit(answer, args.json, lambda: cost_text(answer))
    return 0


def _workspace_root(args: argparse.Namespace) -> Path | None:
    """Return the workspace's folder where there is one: a price table may lie there, but none is needed."""
    from labassist.workspace import Workspace

    if args.workspace:
        return Workspace.find(args.workspace).root
    try:
        return Workspace.find().root
    except InputError:
        return None


def power(args: argparse.Namespace) -> int:
    """Say what the wall and the supply carry; 1 where the supply does not."""
    from dataclasses import asdict

    from labassist.cli.output import emit
    from labassist.planner import cost as money
    from labassist.planner import power as planner
    from labassist.planner.cards import find
    from labassist.planner.report import power_text

    watts = args.watts
    if watts is None:
        card = find(args.card) if args.card else None
        if card is None or not card.watts:
            raise InputError(
                "the card's power is not known", where="--watts", mend="give --watts, or --card by name"
            )
        watts = card.watts
    found = planner.power(
        watts,
        args.gpus,
        hours=args.hours,
        average_watts=args.average_watts,
        host_watts=args.host_watts,
        supply_watts=args.psu,
        rail_amps=args.rail_amps,
    )
    table = money.prices(args.prices, _workspace_root(args))
    answer = {
        **asdict(found),
        "energy_cost": found.energy_kwh * table.electricity,
        "currency": table.currency,
        "as_of": table.as_of,
        "prices": str(table.path),
    }
    emit(answer, args.json, lambda: power_text(answer))
    return 1 if found.fits is False else 0


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
