"""Commands about checkpoints: is one whole, does a resume from it equal an unbroken run, what does each state do."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli.parsing import Parser, command

    group = sub.add_parser(
        "ckpt",
        help="resume diagnostics: check, prove, ablate",
        description="Resume diagnostics.",
        epilog="example:\n  labassist ckpt check outputs/checkpoint-500",
    )
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
    parser.add_argument("path", metavar="PATH", help="a checkpoint, or a folder of checkpoints")
    parser.add_argument("--plan", metavar="FILE", help="TOML or JSON with what the resume is to do")
    parser.add_argument("--quick", action="store_true", help="sizes and structure only, no checksums")


def check(args: argparse.Namespace) -> int:
    """Check one checkpoint or a folder of them; the exit status is the verdict."""
    from pathlib import Path

    from labassist.cli.output import emit
    from labassist.resume.check import EXIT
    from labassist.resume.check import check as inspect
    from labassist.resume.memory import memory
    from labassist.resume.plan import read_plan

    plan = read_plan(Path(args.plan)) if args.plan else None
    answer = inspect(Path(args.path), plan, verify=not args.quick, memory=memory())
    emit(answer.document(), args.json, lambda: _text(answer.document()))
    return EXIT[answer.verdict]


def _text(document: dict[str, Any]) -> str:
    from labassist.cli.output import paint, table

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
        lines.append(f"  {one['severity']}: {one['message']}" + (f"  [{where}]" if where else ""))
        if one["severity"] != "info":
            lines.append(f"      {one['consequence']}")
            lines.append(f"      mend: {one['mend']}")
    return "\n".join(lines)
