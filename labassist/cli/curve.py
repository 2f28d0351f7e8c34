"""The command that shows a run's curves: in the terminal, as CSV, as a picture."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers
    from labassist.ledger.curves import Curve


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli.parsing import RUN, command

    parser = command(
        sub,
        "curve",
        curve,
        help="show a run's curves: in the terminal, as CSV or as a picture",
        example="labassist curve @last\nlabassist curve @last loss lr --csv curve.csv --png curve.png",
    )
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("series", nargs="*", metavar="SERIES", help="loss, lr … (default: the losses)")
    parser.add_argument("--csv", metavar="FILE", help="write every value exactly; - is standard output")
    parser.add_argument("--png", metavar="FILE", help="draw a picture (needs Pillow)")
    parser.add_argument("--log", action="store_true", help="a logarithmic axis")
    parser.add_argument(
        "--segment", action="store_true", help="only this run, without what it was resumed from"
    )
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="the curve of this rank (0)")


def curve(args: argparse.Namespace) -> int:
    """Show, write or draw the curves of a run's whole lineage."""
    from pathlib import Path

    from labassist.cli.opening import opened
    from labassist.cli.output import emit, say
    from labassist.errors import InputError, LedgerError
    from labassist.ledger import curves
    from labassist.ledger.curve_table import chosen, csv_text
    from labassist.ledger.seals import altered_curves
    from labassist.record.durable import hand_out
    from labassist.record.protocol import metrics_file
    from labassist.runs.resume import lineage

    _workspace, ledger = opened(args)
    run = ledger.find(args.run)
    run_id = run["id"]
    segments = [run] if args.segment else lineage(ledger, run)
    for line in altered_curves(ledger, segments):
        say(f"warning: {line}")
    if args.segment:
        found = curves.read_curve(ledger.run_folder(run_id) / metrics_file(args.rank))
    else:
        found = curves.joined(ledger, run_id, rank=args.rank)
    if not found.series:
        there = curves.ranks(*(ledger.run_folder(one["id"]) for one in segments))
        if there:
            raise InputError(
                f"it has no curve of rank {args.rank}",
                where=f"run {run_id}",
                mend=f"there is {', '.join(map(str, there))}",
            )
        raise InputError(
            "it has no curve", where=f"run {run_id}", mend="see `labassist show`, `labassist logs`"
        )
    drawn = chosen(found, args.series, drawn=True) if args.png or not args.csv else []
    if args.csv:
        text = csv_text(found, chosen(found, args.series, drawn=False))
        if args.csv == "-":
            print(text, end="")
        else:
            try:
                hand_out(Path(args.csv).expanduser(), text)
            except OSError as error:
                raise LedgerError(f"cannot be written: {error.strerror}", where=args.csv) from error
            say(f"wrote {args.csv}")
    if args.png:
        from labassist.app.picture import draw

        title = f"{ledger.find(run_id)['job']}  {run_id}"
        draw({name: found.series[name] for name in drawn}, title, Path(args.png).expanduser(), log=args.log)
        say(f"wrote {args.png}")
    if args.json or not (args.csv or args.png):
        names = chosen(found, args.series, drawn=not args.json)
        emit(_document(run_id, found, names), args.json, lambda: _chart(found, names, args))
    return 0


def _document(run_id: str, found: Curve, names: list[str]) -> dict[str, Any]:
    from labassist.ledger.curves import encode

    series = {name: [[step, encode(value)] for step, value in found.series[name].items()] for name in names}
    return {"run": run_id, "steps": len(found.steps), "series": series}


def _chart(found: Curve, names: list[str], args: argparse.Namespace) -> str:
    """Return the chart as lines of text, as wide as the terminal."""
    import os
    import shutil
    import sys

    from labassist.app.chart import Chart

    size = shutil.get_terminal_size()
    width = min(size.columns, 160) if sys.stdout.isatty() else 80
    plain = args.ascii or (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    plain = plain or os.environ.get("TERM") == "dumb"
    chart = Chart(width, 18, ascii=plain, log=args.log)
    for name in names:
        chart.extend(((step, float(value)) for step, value in found.series[name].items()), name)
    return "\n".join([chart.legend(), *(row.rstrip() for row in chart.rows())])
