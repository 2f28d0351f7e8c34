"""What a command line asks to run: a job or a command, with its settings, threads and limits of money."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labassist.runs.jobs import Job
    from labassist.runs.launch import Plan
    from labassist.runs.terms import Terms
    from labassist.workspace import Workspace


def terms_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of money: price, limits, what is done at the end."""
    add = parser.add_argument_group("money").add_argument
    add("--price", metavar="P", help="what an hour of this machine costs, in your price table's currency")
    add(
        "--max-hours",
        type=float,
        metavar="H",
        help="stop it after so many hours, a training with a checkpoint",
    )
    add(
        "--max-cost",
        type=float,
        metavar="C",
        help="stop it when so much is spent, a training with a checkpoint",
    )
    add(
        "--on-end",
        metavar="CMD",
        help="a shell command to run once when it has ended, with LABASSIST_RUN, _JOB, _STATE, _REASON and _EXIT",
    )


def chosen_terms(
    args: argparse.Namespace, workspace: Workspace, before: dict[str, Any] | None = None
) -> Terms:
    """Return the price and the limits that a command line gives."""
    from labassist.runs.terms import terms

    return terms(
        workspace.root,
        price=args.price,
        max_hours=args.max_hours,
        max_cost=args.max_cost,
        on_end=args.on_end,
        before=before,
    )


def plan(args: argparse.Namespace, workspace: Workspace) -> Plan:
    """Return what a command line with a JOB, or a command after `--`, asks to run."""
    from labassist.errors import InputError

    if args.rest is not None and args.job:
        raise InputError("give a JOB or a command after --, not both", where=args.command)
    if args.rest is None and not args.job:
        raise InputError("no JOB and no command", where=args.command, mend="give LAB/JOB, or -- CMD …")
    if not 0 <= args.seed < 2**63:
        raise InputError("a seed is a whole number from 0 to 2^63 - 1", where=f"--seed {args.seed}")
    return _command_plan(args, workspace) if args.job is None else _job_plan(args, workspace)


def _job_plan(args: argparse.Namespace, workspace: Workspace) -> Plan:
    from labassist.cli.output import say, written
    from labassist.runs.jobs import load_job, resolve
    from labassist.runs.launch import Plan
    from labassist.runs.preflight import preflight

    job = load_job(workspace, args.job)
    if args.card:
        _rehearse(args, job)
    config = resolve(job, args.profile, args.config, args.sets)
    for note in preflight(
        workspace, job, config, lambda profile: resolve(job, profile, args.config, args.sets)
    ):
        say(f"note: {note}")
    return Plan(
        job=job.name,
        kind="job",
        argv=["python", str(job.script.relative_to(workspace.root))],
        mode=args.mode,
        seed=args.seed,
        threads=chosen_threads(args.threads, config.flat.get("threads")),
        profile=config.profile,
        nested=config.nested,
        flat=config.flat,
        note=written(args.note, "note"),
    )


def _rehearse(args: argparse.Namespace, job: Job) -> None:
    """Make `--card` the setting of the job that it stands for. Raises InputError where the job has none."""
    from labassist.errors import InputError
    from labassist.planner.cards import find

    if "card" not in job.spec.defaults:
        raise InputError(
            f"{job.name} has no setting `card`, so that it cannot hold itself to one",
            where=f"--card {args.card}",
            mend="leave --card out; labassist plan memory says what fits",
        )
    find(args.card)
    args.sets = [*args.sets, f"card={args.card}"]


def _command_plan(args: argparse.Namespace, workspace: Workspace) -> Plan:
    from labassist.cli.output import written
    from labassist.errors import InputError
    from labassist.runs.command import plan_command

    if not args.rest:
        raise InputError("no command after --", where="run", mend="labassist run -- python my_train.py")
    options = {"--profile": args.profile, "--config": args.config, "--set": args.sets, "--card": args.card}
    for option, given in options.items():
        if given:
            raise InputError("belongs to jobs, and this is a command", where=option, mend="take it out")
    return plan_command(
        workspace,
        args.rest,
        mode=args.mode,
        seed=args.seed,
        threads=chosen_threads(args.threads, 0),
        note=written(args.note, "note"),
        outputs=args.out,
    )


MOST_THREADS_A_CORE = 4
"""More threads than this a core only take turns, and slow the whole machine down."""


def chosen_threads(option: int | None, configured: object) -> int:
    """Return the thread count: the option, else the job's, else one a core."""
    from labassist.errors import InputError
    from labassist.record.environment import cores

    wanted = option if option is not None else configured if isinstance(configured, int) else 0
    if option == 0 or wanted < 0:
        raise InputError("at least one thread is needed", where=f"--threads {wanted}")
    if wanted > MOST_THREADS_A_CORE * cores():
        raise InputError(
            f"{wanted} threads on {cores()} cores would only slow this machine down",
            where="threads",
            mend=f"take at most {MOST_THREADS_A_CORE * cores()}",
        )
    return wanted or cores()
