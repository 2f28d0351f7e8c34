"""The pace of a recorded run, for plans of the same model, method and card."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labassist.errors import InputError

if TYPE_CHECKING:
    from labassist.ledger.store import Ledger
    from labassist.planner.cards import Card
    from labassist.planner.plan import Plan
    from labassist.planner.time import Calibration
    from labassist.workspace import Workspace

SAME_SIZE = 0.1
"""Share by which the model of a run may differ from the planned one and still say its pace."""


@dataclass(frozen=True)
class Trained:
    """What a recorded run trained, and on what."""

    run: dict[str, Any]
    plan: Plan | None
    """None where its job has no memory table, or the command was not a job."""
    numbers: int
    """Trained parameters, as the trainer said; 0: it did not."""
    gpu: str
    """The GPU's name; empty on a CPU."""
    ranks: int
    """Processes that trained together, one a GPU."""

    @property
    def card(self) -> Card | None:
        """The GPU as the table has it."""
        from labassist.planner.cards import of_gpu

        return of_gpu(self.gpu)

    @property
    def model(self) -> str:
        """In words: the model where it is known, else what was trained of it."""
        if self.plan is None:
            return (
                f"{_millions(self.numbers)} trained numbers" if self.numbers else "a model that is not told"
            )
        return f"a {_millions(self.plan.model.parameters)} model, {self.plan.method},"

    def is_like(self, plan: Plan, card: Card | None) -> bool:
        """Say whether its pace is that of a plan: the same size of model, method and card."""
        own, wanted = self.numbers, plan.trainable
        if self.plan is not None:
            if self.plan.method != plan.method:
                return False
            own, wanted = self.plan.model.parameters, plan.model.parameters
        if abs(own - wanted) > SAME_SIZE * wanted:
            return False
        if card is None:
            return True
        mine = self.card
        # A card that is given as a size is any card of that size.
        return mine is not None and (
            mine.name == card.name or (not card.tflops and abs(mine.total_mib / card.total_mib - 1) < 0.03)
        )


def _millions(count: int) -> str:
    if count >= 1e9:
        return f"{count / 1e9:.1f}B"
    if count >= 1e7:
        return f"{count / 1e6:.0f}M"
    return f"{count / 1e6:.2g}M" if count >= 1e5 else f"{count:,}"


def _trained(workspace: Workspace, ledger: Ledger, run: dict[str, Any]) -> Trained:
    """Return what a run's record says of the model and the card."""
    from labassist.runs.jobs import load_job
    from labassist.runs.preflight import needed

    plan, device = None, "auto"
    if run["kind"] == "job":
        with suppress(InputError):  # a job that is gone, or is not estimated: then the trainer's word counts
            job = load_job(workspace, run["job"])
            if job.memory:
                needs = needed(workspace.root, job, run.get("config", {}))
                plan, device = needs.plan, needs.device
    folder = ledger.run_folder(run["id"])
    versions = run.get("versions", {})
    on_cpu = device == "cpu" or str(versions.get("torch", "")).endswith("+cpu")
    numbers = 0
    with suppress(FileNotFoundError), (folder / "events-rank0.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            if '"hello"' in line:
                numbers = int(json.loads(line).get("parameters", 0))
                break
    return Trained(
        run,
        plan,
        numbers,
        "" if on_cpu else str(versions.get("gpu", "")).rpartition("x ")[2],
        max(1, len(list(folder.glob("metrics-rank*.jsonl")))),
    )


def calibration(args: argparse.Namespace) -> tuple[Trained, Calibration]:
    """Return the named run and its pace. Raises InputError where it has too few steps."""
    from labassist.cli.opening import opened
    from labassist.ledger.curves import read_curve
    from labassist.planner.time import LEAST_STEPS, calibrate

    if args.calibrate < LEAST_STEPS:
        raise InputError(
            f"{args.calibrate} steps are too few to say a pace",
            where="--calibrate",
            mend=f"give {LEAST_STEPS} or more",
        )
    workspace, ledger = opened(args)
    run = ledger.find(args.run)
    curve = read_curve(ledger.run_folder(run["id"]) / "metrics-rank0.jsonl")
    measured = calibrate(dict(curve.t), run.get("tokens_per_step", 0), steps=args.calibrate)
    return _trained(workspace, ledger, run), measured


def pace(trained: Trained, measured: Calibration, plan: Plan, card: Card | None) -> float:
    """Return a GPU's tokens a second, as a run measured them, for a plan.

    Raises InputError where the run is of another model, method or card, and where the pace would be more
    arithmetic than the card can do.
    """
    from labassist.planner.time import flops_a_token

    run = trained.run["id"]
    if not measured.tokens_per_s:
        raise InputError(
            f"run {run} does not say how many tokens a step has", where="--run", mend="leave --run out"
        )
    mend = "name a run of the same model, method and card, or leave --run out"
    if not trained.is_like(plan, card):
        raise InputError(
            f"run {run} is of {trained.model} on {trained.gpu or 'a CPU'}; its pace says nothing of "
            f"{plan.model.name} ({_millions(plan.model.parameters)}), {plan.method}"
            + (f", on {card.name}" if card else ""),
            where="--run",
            mend=mend,
        )
    each = measured.tokens_per_s / trained.ranks
    reached = each * flops_a_token(plan) / 1e12
    known = card if card is not None and card.tflops else trained.card
    if known is not None and known.tflops and reached > known.tflops:
        raise InputError(
            f"run {run} does {each:,.0f} tokens a second: of {plan.model.name} these were {reached:,.0f} TFLOP/s, "
            f"and {known.name} has {known.tflops:g}",
            where="--run",
            mend=mend,
        )
    return each


def asked(args: argparse.Namespace, measured: Calibration) -> dict[str, Any]:
    """Return how long --steps or --tokens take as the run itself goes; nothing where neither is given.

    Raises InputError on an option that says nothing without a model.
    """
    from labassist.cli.plan_options import count
    from labassist.planner.plan import Plan

    for name in (*Plan.__dataclass_fields__, "card", "link", "mfu", "examples"):
        if name != "model" and getattr(args, name, None) is not None:
            raise InputError(
                "says nothing without a model: a run alone is as it was",
                where=f"--{name.replace('_', '-')}",
                mend="give --model too, or leave it out",
            )
    given = [name for name in ("tokens", "steps") if getattr(args, name) is not None]
    if not given:
        return {}
    if len(given) > 1:
        raise InputError("say how much is trained, once", where="--tokens or --steps")
    amount = count(getattr(args, given[0]), f"--{given[0]}")
    steps = amount
    if given[0] == "tokens":
        if not measured.tokens_per_s:
            raise InputError(
                "the run does not say how many tokens a step has", where="--tokens", mend="give --steps"
            )
        steps = amount / (measured.tokens_per_s * measured.step_s)
    return {"asked": {given[0]: amount, "seconds": steps * measured.step_s}}
