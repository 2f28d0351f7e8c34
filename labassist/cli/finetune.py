"""Commands of fine-tuning: merge an adapter, take a run away as a script."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from labassist.cli.parsing import Subparsers
    from labassist.errors import InputError

JOB = "finetune/merge"
"""What a merge is called in the ledger."""


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli.parsing import command

    parser = command(
        sub,
        "merge",
        merge,
        help="merge an adapter into its 16-bit base, as a recorded run",
        example="labassist merge @last --out outputs/merged\nlabassist merge outputs/my-adapter --base Qwen/Qwen2.5-7B",
    )
    parser.add_argument(
        "adapter", metavar="ADAPTER", help="an adapter's folder, or a run: its last checkpoint"
    )
    parser.add_argument(
        "--base",
        metavar="MODEL",
        default="",
        help="the 16-bit base (default: what it was trained on; insists on this one)",
    )
    parser.add_argument("--out", metavar="DIR", help="where to write it (default: outputs/merged-RUN)")
    parser.add_argument("--detach", action="store_true", help="print the run's id and return at once")
    parser.add_argument("--note", default="", metavar="TEXT", help="a note kept with the run")


def merge(args: argparse.Namespace) -> int:
    """Find the adapter and start the recorded merge."""
    from pathlib import Path

    from labassist.cli import runs
    from labassist.cli.opening import opened
    from labassist.cli.output import say, written
    from labassist.errors import InputError
    from labassist.finetune.merge import find_adapter
    from labassist.record.environment import cores
    from labassist.record.protocol import DEFAULT_SEED
    from labassist.runs.command import plan_command
    from labassist.runs.follow import Interrupts
    from labassist.runs.launch import launch
    from labassist.runs.resume import last_checkpoint

    workspace, ledger = opened(args)
    place = Path(args.adapter).expanduser()
    name = place.name
    if not place.is_dir():
        document = ledger.find(args.adapter)
        _origin, checkpoint = last_checkpoint(ledger, document, [])
        if checkpoint is None:
            raise no_adapter(document)
        place, name = checkpoint, document["id"].rpartition("-")[2]
    adapter = find_adapter(place.resolve())
    root = workspace.root
    inside = adapter.relative_to(root) if adapter.is_relative_to(root) else adapter
    out = Path(args.out).expanduser() if args.out else root / "outputs" / f"merged-{name}"
    if out.exists():
        raise InputError("is there already", where=str(out), mend="name another folder with --out")
    words = ["python", "-m", "labassist.finetune.merge", str(inside), "--out", str(out)]
    plan = plan_command(
        workspace,
        [*words, *(["--base", args.base] if args.base else [])],
        mode="exact",
        seed=DEFAULT_SEED,
        threads=cores(),
        note=written(args.note, "note"),
        outputs=[str(out)],
    )
    plan.job = JOB
    with Interrupts() as interrupts:
        run = launch(workspace, ledger, plan, interrupts.defer)
        status = runs.started(args, ledger, run, interrupts)
    if ledger.find(run)["state"] == "finished":
        for line in outcome(out, run):
            say(line)
    return status


def no_adapter(document: dict[str, Any]) -> InputError:
    """Return why a run without a checkpoint has nothing to merge: it may yet come, or it is no training."""
    from labassist.errors import InputError

    where, what = f"run {document['id']}", "it has left no checkpoint"
    if document["state"] == "running":
        return InputError(what, where=where, mend="let it run on")
    mend = "merge wants a LoRA training that has left one, as of 07-qlora/sft, or an adapter's folder"
    return InputError(f"{what}: it is a {document['state']} run of {document['job']}", where=where, mend=mend)


def outcome(out: Path, run: str) -> list[str]:
    """Return where a merged model lies, how near it is to base + adapter, what speaks against its base, what is next."""
    from labassist.finetune import lineage

    told = lineage.read(out)
    checked = told["checked"]
    lines = [f"warning: {told['warning']}"] if told["warning"] else []
    return [
        *lines,
        f"merged into {out}: its logits differ from base + adapter by {checked['relative']:.2%} "
        f"(bound {checked['bound']:.0%})",
        f"serve it with: labassist serve {run}",
    ]


def export_script(args: argparse.Namespace) -> int:
    """Write a run as a plain TRL script; on stdout without -o."""
    from pathlib import Path

    from labassist.cli.opening import opened
    from labassist.cli.output import emit
    from labassist.errors import InputError
    from labassist.finetune.script import script

    workspace, ledger = opened(args)
    if len(args.runs) != 1:
        raise InputError("a script is made of one run", where="export --to script", mend="name one run")
    document = ledger.find(args.runs[0])
    path = Path(args.output).expanduser() if args.output else None
    text = script(document, workspace.root, path.name if path else "train.py")
    if path is not None:
        path.write_text(text, encoding="utf-8")
    told = {"path": str(path) if path else None, "run": document["id"], "script": text}
    emit(told, args.json, lambda: f"wrote {path}: python {path}" if path else text)
    return 0
