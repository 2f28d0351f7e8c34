"""The command that measures a server."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from labassist.cli.parsing import Subparsers
    from labassist.ledger.store import Ledger


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli.parsing import command
    from labassist.serving import bench_options

    parser = command(
        sub,
        "bench-serve",
        bench_serve,
        help="measure a server that answers as OpenAI's does, as a recorded run",
        example="labassist bench-serve http://127.0.0.1:8000 --concurrency 1,8\n"
        "labassist bench-serve @last --rate 2 --prompts questions.jsonl\n"
        "labassist bench-serve http://127.0.0.1:8000/v1/completions --requests 500 --csv requests.csv",
    )
    parser.add_argument("server", metavar="URL|RUN", help="a server's URL, or the run of `labassist serve`")
    bench_options.add_to(parser.add_argument_group("what is measured"))
    parser.add_argument("--csv", metavar="FILE", help="write a line a request; - is standard output")
    parser.add_argument("--note", default="", metavar="TEXT", help="a note kept with the run")


def bench_serve(args: argparse.Namespace) -> int:
    """Find the server, measure it in a recorded run, and print what came out."""
    from labassist.cli import runs
    from labassist.cli.ledger import summary
    from labassist.cli.opening import opened
    from labassist.cli.output import emit, say, written
    from labassist.errors import AnswerNo
    from labassist.runs.follow import Interrupted, Interrupts, follow
    from labassist.runs.launch import Plan, launch
    from labassist.serving import bench, bench_text, port

    workspace, ledger = opened(args)
    url, server = found(ledger, args.server)
    there = bench.ready(args, url)
    if server:
        port.expect(ledger, server, there, url)
    out = _result(workspace.root)
    plan = Plan(
        job=bench.JOB,
        kind="command",
        argv=["python", "-m", "labassist.serving.bench", url, *_words(args, workspace.root)]
        + (["--server", server] if server else [])
        + ["--out", str(out.relative_to(workspace.root))],
        mode="fast",
        seed=args.seed,
        threads=1,
        note=written(args.note, "note"),
        outputs=[str(out.relative_to(workspace.root))],
    )
    status = None
    with Interrupts() as interrupts:
        run_id = launch(workspace, ledger, plan, interrupts.defer)
        say(f"run {run_id} started; ctrl-c ends it and prints what there is")
        try:
            document = follow(ledger, run_id, interrupts)
        except Interrupted:
            document, status = ledger.find(run_id), 130
    if not out.is_file():
        runs.show_tail(ledger, run_id)
        emit(document, args.json, lambda: summary(document))
        return runs.trainer_status(document) if status is None else status
    result = _read(out)
    if args.csv:
        _csv(ledger, run_id, args.csv)
    if args.csv != "-":
        emit(result, args.json, lambda: f"{bench_text.text(result)}\n\nrun {run_id}: {plan.outputs[0]}")
    if status is None and not any(load["completed"] for load in result["loads"]):
        raise AnswerNo("no request was answered", where=url)
    return runs.trainer_status(document) if status is None else status


def found(ledger: Ledger, name: str) -> tuple[str, str]:
    """Return the URL of a server and the id of its recorded run, empty where it has none.

    Raises InputError for a run that is no server's, or whose server does not answer yet or any more.
    """
    from labassist import serving
    from labassist.errors import InputError
    from labassist.serving import port
    from labassist.serving.bench_client import target

    if "/" in name or ":" in name:
        asked = target(name)
        return name, port.served_by(ledger, (asked.host, asked.port))
    document = ledger.find(name)
    run = str(document["id"])
    if document["job"] != serving.JOB:
        raise InputError(
            f"is a run of {document['job']}, and no server", where=f"run {run}", mend="name a URL"
        )
    if document["state"] != "running":
        mend = "start it again: labassist serve MODEL"
        raise InputError(f"this server has {document['state']}", where=f"run {run}", mend=mend)
    told = port.ready(ledger, run)
    if told is None:
        raise port.loading(run)
    return str(told["url"]), run


def _words(args: argparse.Namespace, root: Path) -> list[str]:
    """Return the options again, as words; a file inside the workspace relative to it."""
    from pathlib import Path

    words = ["--requests", str(args.requests), "--max-tokens", str(args.max_tokens), "--seed", str(args.seed)]
    words += ["--timeout", str(args.timeout)]
    words += ["--rate", str(args.rate)] if args.rate else []
    words += ["--concurrency", args.concurrency] if args.concurrency else []
    words += ["--model", args.model] if args.model else []
    words += ["--warmup", str(args.warmup)] if args.warmup is not None else []
    words += ["--ignore-eos"] if args.ignore_eos else []
    if args.prompts:
        path = Path(args.prompts).expanduser().resolve()
        words += ["--prompts", str(path.relative_to(root) if path.is_relative_to(root) else path)]
    return words


def _result(root: Path) -> Path:
    """Return a place for the result that is not taken."""
    import datetime

    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return root / "outputs" / "bench" / f"{stamp}.json"


def _read(path: Path) -> dict[str, Any]:
    import json

    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def _csv(ledger: Ledger, run_id: str, where: str) -> None:
    """Write what was recorded of each request, in the order in which they ended."""
    from pathlib import Path

    from labassist.cli.output import say
    from labassist.errors import LedgerError
    from labassist.ledger import curves
    from labassist.ledger.curve_table import chosen, csv_text
    from labassist.serving.bench import COUNTS, REQUEST

    curve = curves.joined(ledger, run_id)
    names = [name for name in chosen(curve, [], drawn=False) if name in REQUEST]
    text = csv_text(curve, names, COUNTS)
    if where == "-":
        print(text, end="")
        return
    try:
        Path(where).expanduser().write_text(text)
    except OSError as error:
        raise LedgerError(f"cannot be written: {error.strerror}", where=where) from error
    say(f"wrote {where}")
