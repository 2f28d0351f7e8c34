"""`plan cost` and `plan power`: what a training costs, and what the wall and the supply carry."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from labassist.cli.plan_options import model_options, span, work_options
from labassist.cli.plan_time import duration
from labassist.errors import InputError

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers

PRICES = "your price table (default: templates/prices.toml where there is one, else labassist's own)"


def register(inner: Subparsers) -> None:
    """Add the commands."""
    from labassist.cli.parsing import command

    parser = command(
        inner,
        "cost",
        cost,
        help="what it costs: machine hours, people's hours, a buffer; rent against buy",
        example="labassist plan cost --hours 6-16 --card 4090 --people-hours 132\n"
        "labassist plan cost --model qwen2.5-7b --tokens 10M --card H200 --people-hours 40 --buffer 2\n"
        "labassist plan cost --run @last --steps 10k --price 0.45",
    )
    model_options(parser)
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
        help=PRICES,
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
    add("--prices", type=Path, metavar="FILE", help=PRICES)


def cost(args: argparse.Namespace) -> int:
    """Say how much."""
    from labassist.cli.output import emit
    from labassist.planner import cost as planner
    from labassist.planner.report import cost_text

    if args.hours is not None:
        _hours_alone(args)
    took = None if args.hours is not None else duration(args)
    gpus, card = args.gpus if args.gpus is not None else 1, args.card
    if took is None:
        hours = span(args.hours, "--hours")
    elif "asked" in took:
        # A run alone: its pace, on the cards that it had.
        hours = (took["asked"]["seconds"] / 3600,) * 2
        gpus, card = took["run"]["gpus"], took["run"]["card"]
        if card is None and args.price is None:
            raise InputError(
                "what the run was on has no price in a table",
                where="--price",
                mend="give what an hour of it costs",
            )
    elif "hours" in took:
        hours = (took["hours"][0], took["hours"][1])
    else:
        raise InputError(
            "names neither hours nor a model",
            where="--hours",
            mend="give --hours N, --model and --tokens, or --run and --steps",
        )
    answer = planner.answer(
        planner.prices(args.prices, _workspace_root(args)),
        hours=hours,
        gpus=gpus,
        card=card,
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
    answer |= {"time": took, "fits": took.get("fits") if took else None}
    emit(answer, args.json, lambda: cost_text(answer))
    return 0


def _hours_alone(args: argparse.Namespace) -> None:
    """Raise InputError on options of a training beside hours that are given: they would change nothing."""
    from labassist.planner.plan import Plan

    if args.model:
        raise InputError("give --hours or a model, not both", where="--hours")
    for name in (*Plan.__dataclass_fields__, "tokens", "examples", "steps", "link", "mfu", "run"):
        if name not in ("model", "gpus") and getattr(args, name, None) is not None:
            raise InputError(
                "says nothing beside --hours: these are the hours, whatever is trained",
                where=f"--{name.replace('_', '-')}",
                mend="leave it out, or give --model in place of --hours",
            )


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
