"""Commands about checkpoints: is one whole, does a resume from it equal an unbroken run, what does each state do."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    from labassist.cli.parsing import Parser, Subparsers

Answer = TypeVar("Answer")


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli.parsing import Parser, command, common

    group = sub.add_parser(
        "ckpt",
        help="resume diagnostics: check, prove, ablate",
        description="Resume diagnostics.",
        epilog="example:\n  labassist ckpt check outputs/checkpoint-500",
    )
    common(group)
    inner = group.add_subparsers(
        title="commands", metavar="COMMAND", dest="ckpt_command", parser_class=Parser, required=True
    )
    parser = command(
        inner,
        "check",
        check,
        help="say whether all that an exact resume needs is in a checkpoint, without loading it",
        example="labassist ckpt check outputs/checkpoint-500 --plan plan.toml",
    )
    parser.add_argument(
        "path",
        metavar="PATH",
        help="a checkpoint, a folder of checkpoints, or a run: its id, @last, its folder",
    )
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="TOML or JSON with what the resume is to do: any of max_steps, num_train_epochs, "
        "per_device_train_batch_size, gradient_accumulation_steps, world_size, dataset_length, packing, "
        "zero_stage, precision, seed",
    )
    parser.add_argument("--quick", action="store_true", help="sizes and structure only, no checksums")

    parser = command(
        inner,
        "prove",
        prove,
        help="run a job unbroken and interrupted, and say whether the resumed run is the same bit for bit",
        example="labassist ckpt prove 01-first-loop/train --profile tiny --at 50\n"
        "labassist ckpt prove --kill -- python my_train.py\n"
        "labassist ckpt prove -- torchrun --standalone --nproc-per-node 2 my_train.py",
        takes_rest="a training script in place of a job; its output_dir must hold no checkpoints of other runs",
    )
    _run_options(parser)
    parser.add_argument(
        "--at",
        type=int,
        action="append",
        default=[],
        metavar="STEP",
        help="step of an interruption; may be repeated, in rising order (default: once, half way)",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--kill", action="store_true", help="kill the trainer there, without a warning")
    how.add_argument(
        "--vanish",
        action="store_true",
        help="kill all that runs and watches it, as a rented box that goes away",
    )

    parser = command(
        inner,
        "ablate",
        ablate,
        help="resume with each of the six states left out in turn, and show what each is worth",
        example="labassist ckpt ablate 01-first-loop/train --profile tiny --drop optimizer --drop rng",
    )
    _run_options(parser)
    parser.add_argument("--at", type=int, metavar="STEP", help="step of the interruption (default: half way)")
    parser.add_argument(
        "--drop",
        action="append",
        default=[],
        metavar="STATE",
        help="leave out only this one: model, optimizer, scheduler, scaler, rng or data_position; may be repeated "
        "(default: each of the six)",
    )


def _run_options(parser: Parser) -> None:
    """Add what says which runs are made; the names and meanings are those of `labassist run`."""
    from labassist.cli.parsing import THREADS

    parser.add_argument("job", nargs="?", metavar="JOB", help="LAB/JOB, as 01-first-loop/train")
    parser.add_argument("--profile", metavar="NAME", help="numbers to start from: tiny, laptop, gpu …")
    parser.add_argument("--config", metavar="FILE", help="a TOML file of overrides")
    parser.add_argument(
        "--set", action="append", default=[], metavar="K=V", dest="sets", help="one override; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=1337, metavar="N", help="seed of every generator (1337)")
    parser.add_argument("--threads", type=int, metavar="N", help=THREADS)
    parser.set_defaults(mode="exact", note="", out=[], card="")


def check(args: argparse.Namespace) -> int:
    """Check one checkpoint or a folder of them; the exit status is the verdict."""
    from pathlib import Path

    from labassist.cli.output import emit
    from labassist.resume.check import EXIT
    from labassist.resume.check import check as inspect
    from labassist.resume.memory import memory
    from labassist.resume.plan import read_plan

    plan = read_plan(Path(args.plan)) if args.plan else None
    answer = inspect(_place(args), plan, verify=not args.quick, memory=memory())
    emit(answer.document(), args.json, lambda: _text(answer.document()))
    return EXIT[answer.verdict]


def _place(args: argparse.Namespace) -> Path:
    """Return what is to be checked: a path as it is, or where the checkpoints of a run lie."""
    from pathlib import Path

    from labassist.errors import InputError
    from labassist.record.inspect import committed, folder_of, read_manifest

    path = Path(args.path)
    if not args.path.strip():
        raise InputError("an empty path", where="PATH", mend="give a checkpoint, a folder of them, or a run")
    folder = path.resolve() if (path / "order.json").is_file() else None
    if folder is None and not path.exists() and (args.path.startswith("@") or len(path.parts) == 1):
        folder = _run_folder(args)
    if folder is None:
        return path
    whole = committed(folder)
    if not whole:
        raise InputError(
            "this run left no whole checkpoint", where=f"run {folder.name}", mend="give a folder with one"
        )
    last = list(whole.values())[-1]
    return last.parent if last.is_dir() else folder_of(last, read_manifest(last))


def _run_folder(args: argparse.Namespace) -> Path | None:
    """Return the folder of the run that is meant, None where there is no workspace, or no such run and no `@`."""
    from labassist.errors import InputError
    from labassist.ledger.store import Ledger
    from labassist.workspace import Workspace

    try:
        ledger = Ledger.open(Workspace.find(args.workspace).ledger, create=True)
        return ledger.run_folder(ledger.find(args.path)["id"])
    except InputError:
        if args.path.startswith("@"):
            raise
        return None


def prove(args: argparse.Namespace) -> int:
    """Make the three runs and compare them; the exit status is the verdict, as for `replay`."""
    from functools import partial

    from labassist.cli.output import emit
    from labassist.ledger.verdict import EXIT
    from labassist.resume.experiment import How
    from labassist.resume.prove import prove as run_all

    how: How = "vanish" if args.vanish else "kill" if args.kill else "stop"
    proved = _experiment(args, partial(run_all, how=how))
    if proved is None:
        return 130
    document = proved.document()
    emit(document, args.json, lambda: _proved(document))
    return EXIT[proved.verdict.verdict]


def _proved(document: dict[str, Any]) -> str:
    runs, compared = document["runs"], document["compared"]
    lines = [
        f"{document['verdict']}  {document['job']}  resumed from step {document['resumed_from']['step']}",
        f"  uninterrupted {runs['uninterrupted']}, interrupted {runs['interrupted']} "
        f"at step {document['interrupted_at']}, resumed {runs['resumed']}",
        f"  went on from {', '.join(str(one['resumed_from']) for one in document['interruptions'])}",
        f"  compared {compared['steps']} steps, {compared['series']} series, {compared['tensors']} tensors, "
        f"{len(document['rng'])} states of the random generators",
    ]
    first = document["first_difference"]
    if first and "step" in first:
        rank = f" of rank {first['rank']}" if "rank" in first else ""
        lines.append(
            f"  first difference at step {first['step']}{rank}: {first['series']} {first['a']} / {first['b']}"
        )
    elif first:
        lines.append("  first difference: " + ", ".join(f"{key} {value}" for key, value in first.items()))
    later = [f"{name} from step {one['step']}" for name, one in document["differences"].items()]
    if len(later) > 1:
        lines.append(f"  differing: {', '.join(later)}")
    if document["culprit"]:
        lines.append(f"  culprit: {document['culprit']}")
    return "\n".join(lines + [f"  {cause}" for cause in document["likely_causes"]])


def ablate(args: argparse.Namespace) -> int:
    """Resume without each state in turn; 0 when the answer is there, whatever it is."""
    from functools import partial

    from labassist.cli.output import emit
    from labassist.resume.ablate import ablate as run_all

    found = _experiment(args, partial(run_all, states=args.drop))
    if found is None:
        return 130
    document = found.document()
    emit(document, args.json, lambda: _ablated(document))
    return 0


def _experiment(args: argparse.Namespace, make: Callable[..., Answer]) -> Answer | None:
    """Return what `make` finds out with runs of the job or command that is asked for; None after a ctrl-c."""
    from labassist.cli.opening import opened
    from labassist.cli.output import say
    from labassist.cli.run_plan import plan
    from labassist.resume.watch import watched
    from labassist.runs.follow import Interrupted, follow

    workspace, ledger = opened(args)
    wanted = plan(args, workspace)
    if wanted.kind == "command":
        wanted.argv = watched(wanted.argv, wanted.script)
    try:
        return make(workspace, ledger, wanted, at=args.at, follow=lambda run: follow(ledger, run), say=say)
    except Interrupted:
        say("interrupted: no answer")
        return None


def _ablated(document: dict[str, Any]) -> str:
    from labassist.cli.output import table

    rows = []
    for row in document["states"]:
        first = "" if row["first_divergent_step"] is None else row["first_divergent_step"]
        peak, final = (_effect(row[key]) for key in ("peak", "final"))
        rows.append([row["state"] or "(nothing)", row["verdict"], first, peak, final, row["meaning"]])
    origin = document["resumed_from"]["step"]
    head = f"{document['job']}  resumed from step {origin}, against run {document['uninterrupted']}"
    shown = table(["dropped", "verdict", "differs at", "peak", "final", "meaning"], rows)
    return "\n".join([head, shown, *_overlay(document)])


def _effect(effect: dict[str, Any] | None) -> str:
    return f"{effect['difference']:+.4f}" if effect else ""


def _overlay(document: dict[str, Any]) -> list[str]:
    """Draw the losses after the resume over each other; the steps are counted from the resume."""
    import os

    from labassist.app.chart import Chart

    steps = document["curves"]["steps"]
    if not steps:
        return []
    encoding = (os.environ.get("LC_ALL") or os.environ.get("LANG") or "").lower()
    chart = Chart(76, 12, ascii="utf" not in encoding, total=len(steps), x_name="step after the resume")
    for name, losses in document["curves"]["loss"].items():
        for step, loss in zip(steps, losses, strict=True):
            if isinstance(loss, int | float):
                chart.append(step - steps[0], loss, name)
    return ["", *chart.rows(), chart.legend()]


def _text(document: dict[str, Any]) -> str:
    from labassist.cli.output import paint, table
    from labassist.errors import harmless

    if "checkpoints" in document:
        lines = [_text(one) for one in document["checkpoints"]]
        best = document["resume_from"]
        return "\n\n".join([*lines, f"resume from: {best}" if best else "none of them can be resumed"])
    path = f"{document['path']}  " if "path" in document else ""
    facts = [document["format"], document["framework_version"]]
    facts += [f"step {document['step']}"] if document["step"] is not None else []
    facts += [f"{document['world_size']} ranks"] if (document["world_size"] or 1) > 1 else []
    styles = {"EXACT": "green", "DEGRADED": "yellow", "BROKEN": "red"}
    verdict = paint(document["verdict"], styles[document["verdict"]])
    lines = [f"{path}{verdict}  {'  '.join(fact for fact in facts if fact)}"]
    rows = [[f"  {state}", presence.replace("_", " ")] for state, presence in document["states"].items()]
    lines += table(["  state", "is"], rows).splitlines()
    for one in document["findings"]:
        where = " ".join(part for part in (one["path"], one["state"] or "") if part)
        lines.append(harmless(f"  {one['severity']}: {one['message']}" + (f"  [{where}]" if where else "")))
        if one["severity"] != "info":
            lines.append(f"      {one['consequence']}")
            lines.append(f"      mend: {one['mend']}")
    return "\n".join(lines)
