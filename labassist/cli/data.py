"""Commands on training data: lint."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli.parsing import Parser, command, common

    parent = sub.add_parser(
        "data",
        help="training data: what is wrong with it, line by line",
        description="Training data: what is wrong with it, line by line.",
        epilog="example:\n  labassist data lint labs/07-qlora/tickets.jsonl --model embedded",
    )
    common(parent)
    inner: Subparsers = parent.add_subparsers(
        title="actions", metavar="ACTION", dest="action", required=True, parser_class=Parser
    )
    parser = command(
        inner,
        "lint",
        lint,
        help="check a JSONL file strictly; with a model, its lengths in tokens and what is trained on",
        example="labassist data lint my.jsonl\nlabassist data lint my.jsonl --model embedded --limit 1024 --line 12",
    )
    parser.add_argument("file", metavar="FILE", help=".jsonl, or .txt for plain text")
    parser.add_argument(
        "--model", metavar="MODEL", help="whose tokens: embedded, a folder or a downloaded hub id"
    )
    parser.add_argument(
        "--limit", type=int, default=2048, metavar="N", help="tokens of a sample: a job's `length` (2048)"
    )
    parser.add_argument(
        "--line", type=int, default=0, metavar="N", help="the sample to show (default: the first)"
    )


def lint(args: argparse.Namespace) -> int:
    """Check a file; 1 where a line must be mended."""
    from labassist.cli.output import emit, say
    from labassist.data import lint as linter
    from labassist.data import rows
    from labassist.errors import harmless

    found = rows.inspect(args.file)
    told = linter.answer(found)
    if args.model and found.samples:
        from labassist.finetune import models
        from labassist.finetune.lint import token_facts
        from labassist.workspace import Workspace

        base = models.prepare(args.model, Workspace.find(args.workspace).root, say=say)
        more = token_facts(found.samples, base, args.limit, args.line)
        told |= more | {"warnings": told["warnings"] + more["warnings"]}
    emit(told, args.json, lambda: harmless(linter.text(told)))
    return 0 if told["ok"] else 1
