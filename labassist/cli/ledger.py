"""Commands that read the ledger and replay from it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers
    from labassist.ledger.store import Ledger

MOST_CURVES = 8
"""Differing curves that `diff` prints a line for."""


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli.parsing import RUN, command

    parser = command(
        sub,
        "runs",
        runs,
        help="list the recorded runs, oldest first",
        example="labassist runs --where state=failed",
    )
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="EXPR",
        help="KEY=VALUE, KEY!=VALUE, KEY>N, KEY<=N …, KEY~PART; may be repeated",
    )
    parser.add_argument("--sort", metavar="KEY", help="sort by a key of the record, as last.loss")

    parser = command(sub, "show", show, help="print one run's record", example="labassist show @last")
    parser.add_argument("run", metavar="RUN", help=RUN)

    parser = command(
        sub,
        "note",
        note,
        help="keep a note with a run",
        example='labassist note @last "clip off, oscillates"',
    )
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("text", metavar="TEXT", help="kept below what was noted before")

    parser = command(
        sub,
        "replay",
        replay,
        help="re-run the recorded code and config, and say whether the result is the same",
        example="labassist replay @last",
    )
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--segment", action="store_true", help="only this segment, from its checkpoint")
    parser.add_argument("--force", action="store_true", help="compare although it cannot be exact here")
    parser.add_argument(
        "--tolerance",
        default="",
        choices=("fp32", "bf16", "fp16"),
        help="differences within the rounding of this type are WITHIN_NOISE",
    )
    parser.add_argument(
        "--current-labassist",
        action="store_true",
        help="import the installed labassist, not the recorded one",
    )

    parser = command(
        sub,
        "diff",
        diff,
        help="what differs between two runs, and the first step at which",
        example="labassist diff @-2 @last",
    )
    parser.add_argument("a", metavar="A", help=RUN)
    parser.add_argument("b", metavar="B", help=RUN)


def runs(args: argparse.Namespace) -> int:
    """List runs."""
    from labassist.cli.opening import opened
    from labassist.cli.output import emit
    from labassist.ledger.names import by_creation
    from labassist.ledger.search import select

    _workspace, ledger = opened(args)
    found = select(by_creation(ledger.runs.all()), args.where, args.sort)
    nothing = "no run matches" if args.where else "no runs yet"
    emit({"runs": found}, args.json, lambda: runs_table(ledger, found) if found else nothing)
    return 0


def runs_table(ledger: Ledger, documents: list[dict[str, Any]]) -> str:
    """Return runs as a table: what a person looks for first stands left."""
    from labassist.cli.output import table
    from labassist.runs.live_line import number

    rows = []
    for document in documents:
        step, loss = _progress(ledger, document)
        verdict = document.get("verdict") or {}
        kind = (
            " (replay)" if document.get("replay_of") else " (resumed)" if document.get("resumed_from") else ""
        )
        rows.append(
            [
                document["id"],
                document["job"] + kind,
                document["mode"],
                _state(ledger, document) + (" !" if document.get("health") else ""),
                step,
                number(loss),
                verdict.get("verdict", ""),
                _short(document.get("note", "")),
            ]
        )
    return table(["id", "job", "mode", "state", "steps", "loss", "verdict", "note"], rows, whole=("id",))


def _progress(ledger: Ledger, document: dict[str, Any]) -> tuple[int, Any]:
    """Return the last step and loss; of a run that is not closed, from the end of its curve."""
    if document["state"] != "running":
        return document.get("step", 0), document.get("last", {}).get("loss", "")
    from labassist.ledger.curves import last_row

    row = last_row(ledger.run_folder(document["id"]) / "metrics-rank0.jsonl")
    return row.get("step", 0), row.get("loss", "")


def _short(note: str, width: int = 40) -> str:
    first = " ".join(note.split())
    return first if len(first) <= width else first[: width - 1] + "…"


def _state(ledger: Ledger, document: dict[str, Any]) -> str:
    """Return a run's state; of one that only another machine can judge, when it was last seen."""
    from labassist.ledger.environment import machine
    from labassist.runs import life
    from labassist.runs.absorb import iso

    if document["state"] == "running":
        folder = ledger.run_folder(document["id"])
        if life.life(folder, document, machine().id) == "unseen":
            return f"unseen since {iso(life.last_sign(folder))[:16]}Z"
    return str(document["state"])


def summary(document: dict[str, Any]) -> str:
    """Return a run in a few lines, as it is printed when a run has ended."""
    from labassist.ledger.curves import held_out
    from labassist.runs.live_line import number

    lines = [f"run {document['id']}  {document['job']}  {document['mode']}  {document['state']}"]
    steps = f"  step {document.get('step', 0)}"
    if document.get("total_steps") and document["total_steps"] >= document.get("step", 0):
        steps += f" of {document['total_steps']}"
    last = document.get("last", {})
    values = [f"{name} {number(last[name])}" for name in ("loss", held_out(last)) if name in last]
    money = (
        [f"{document['cost']:.2f} {document.get('currency', '')}".rstrip()] if document.get("cost") else []
    )
    lines.append("  ".join([steps, *values, f"{document.get('seconds', 0):.1f} s", *money]))
    if document.get("reason"):
        lines.append(f"  {document['reason']}")
    if document.get("health"):
        lines.append(f"  unhealthy: {document['health']}")
    lines += [f"  warning: {warning}" for warning in document.get("warnings", [])]
    lines += [f"  {notice}" for notice in document.get("idle", [])]
    if document.get("on_end_failed"):
        lines.append(f"  the command at its end failed: {document['on_end_failed']}")
    return "\n".join(lines)


def show(args: argparse.Namespace) -> int:
    """Print one record: as JSON, or key by key."""
    from labassist.cli.opening import opened
    from labassist.cli.output import emit

    _workspace, ledger = opened(args)
    document = ledger.find(args.run)
    more = {**_seeds(ledger, document), **_served(ledger, document)}
    emit(document, args.json, lambda: "\n".join([*_pairs(document), *_pairs(more)]))
    return 0


def _served(ledger: Ledger, document: dict[str, Any]) -> dict[str, Any]:
    """Return how many answers a server has kept, and what they came from; nothing of another run."""
    from labassist.serving import chain

    if not chain.is_server(document):
        return {}
    count = {} if document.get("answers") else {"answers": chain.answered(ledger, document)}
    return {**count, "chain": chain.line(ledger, document)}


def _seeds(ledger: Ledger, document: dict[str, Any]) -> dict[str, Any]:
    """Return who seeded what, as the run's trainer told; it is kept with the flags of its randomness."""
    kept = ledger.objects.get_json(document["randomness"]) if document.get("randomness") else {}
    return {"seeds": kept["seeds"]} if kept.get("seeds") else {}


def _pairs(document: dict[str, Any], prefix: str = "") -> list[str]:
    lines = []
    for key, value in document.items():
        if isinstance(value, dict) and value:
            lines += _pairs(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, item in enumerate(value):
                lines += _pairs(item, f"{prefix}{key}.{number}.")
        else:
            lines.append(f"{prefix}{key}  {value}")
    return lines


def note(args: argparse.Namespace) -> int:
    """Add a note to a run."""
    from labassist.cli.opening import opened
    from labassist.cli.output import emit, written
    from labassist.errors import InputError
    from labassist.ledger.room import MAX_NOTE_BYTES

    text = written(args.text.strip(), "note")
    if not text:
        raise InputError("the note is empty", where="note", mend='write labassist note RUN "what I saw"')
    _workspace, ledger = opened(args)
    run_id = ledger.find(args.run)["id"]

    def change(run: dict[str, Any]) -> dict[str, Any]:
        before = run.get("note", "")
        whole = f"{before}\n{text}" if before else text
        if len(whole.encode()) > MAX_NOTE_BYTES:
            raise InputError(
                f"with it the notes of this run have {len(whole.encode()):,} bytes, over {MAX_NOTE_BYTES:,}",
                where="note",
                mend="keep what is long in a file, and name the file",
            )
        return {**run, "note": whole}

    document = ledger.change("note", run_id, change)
    ledger.save_view()
    emit(document, args.json, lambda: f"noted with run {run_id}")
    return 0


def replay(args: argparse.Namespace) -> int:
    """Replay a run; the exit status is the verdict."""
    from labassist.cli.opening import opened
    from labassist.cli.output import emit, say
    from labassist.ledger.verdict import EXIT
    from labassist.runs.follow import Interrupted, Interrupts, follow
    from labassist.runs.replay import Options
    from labassist.runs.replay import replay as run_again

    workspace, ledger = opened(args)
    options = Options(args.segment, args.force, args.tolerance, args.current_labassist)
    try:
        with Interrupts() as interrupts:
            replayed = run_again(
                workspace,
                ledger,
                args.run,
                options,
                lambda run: follow(ledger, run, interrupts),
                say,
                interrupts.defer,
            )
    except Interrupted:
        say("interrupted: no verdict")
        return 130
    emit(replayed.document(), args.json, lambda: _verdict_text(replayed.document()))
    return EXIT[replayed.verdict.verdict]


def _verdict_text(answer: dict[str, Any]) -> str:
    compared = answer["compared"]
    lines = [
        f"{answer['verdict']}  run {answer['replay_of']}"
        + (f" against its replay {answer['run']}" if answer["run"] else ""),
        f"  compared {compared['steps']} steps, {compared['series']} series, {compared['tensors']} tensors",
    ]
    first = answer["first_difference"]
    if first:
        if "step" in first:
            lines.append(
                f"  first difference at step {first['step']}: {first['series']} {first['a']} / {first['b']}"
            )
        else:
            lines.append("  first difference: " + ", ".join(f"{key} {value}" for key, value in first.items()))
    lines += [f"  {cause}" for cause in answer["likely_causes"]]
    return "\n".join(lines)


def diff(args: argparse.Namespace) -> int:
    """Print what differs between two runs."""
    from labassist.cli.opening import opened
    from labassist.cli.output import emit
    from labassist.ledger.diff import diff as differences

    workspace, ledger = opened(args)
    found = differences(ledger, workspace.root, args.a, args.b)
    emit(found, args.json, lambda: _diff_text(found))
    return 0


def _diff_text(found: dict[str, Any]) -> str:
    lines = [f"a {found['a']}", f"b {found['b']}"]
    if found["same"]:
        return "\n".join([*lines, "nothing differs"])
    for part in ("config", "environment", "data"):
        if found[part]:
            lines.append(part)
            side = _input if part == "data" else _side
            lines += [f"  {key}: {side(pair['a'])} / {side(pair['b'])}" for key, pair in found[part].items()]
    if not found["code"]["same"]:
        lines.append("code")
        lines += [f"  {line}" for line in found["code"]["patch"].splitlines()]
        lines += [f"  {found['code']['note']}"] if "note" in found["code"] else []
    lines += _curve_lines(found["curves"])
    first = found["checkpoints"]["first_difference"]
    if first:
        equal, compared = found["checkpoints"]["equal"], found["checkpoints"]["compared"]
        what = f"tensor {first['tensor']}" if first["tensor"] else "there on one side only"
        lines.append(
            f"checkpoints: {equal} of {compared} tensors are equal; first difference at step {first['step']}: {what}"
        )
    return "\n".join(lines)


def _curve_lines(curves: dict[str, Any]) -> list[str]:
    """Return a line for each series that differs, the earliest first, and of very many the first ones."""
    from labassist.errors import some
    from labassist.ledger.verdict import MOST_SERIES, ORDER

    def place(name: str) -> tuple[int, int, str]:
        rank = ORDER.index(name) if name in ORDER else len(ORDER)
        return curves[name]["first_difference"]["step"], rank, name

    unlike = sorted((name for name, series in curves.items() if series["first_difference"]), key=place)
    both = [name for name in unlike if curves[name]["compared"]]
    lines = []
    for name in both[:MOST_CURVES]:
        series, first = curves[name], curves[name]["first_difference"]
        where = f"first difference at step {first['step']}: {_side(first['a'])} / {_side(first['b'])}"
        lines.append(f"curve {name}: {series['equal']} of {series['compared']} steps are equal; {where}")
    if (more := len(both) - MOST_CURVES) > 0:
        step = curves[both[MOST_CURVES]]["first_difference"]["step"]
        lines.append(f"and {more} more curves, the first at step {step} (--json has each)")
    for side in ("a", "b"):
        alone = [n for n in unlike if n not in both and curves[n]["first_difference"][side] is not None]
        if alone:
            lines.append(f"curves of {side} only: {some(alone, MOST_SERIES)}")
    return lines


def _input(value: dict[str, Any] | None) -> str:
    """Return an input in words: where it lies, how large it is, what it holds."""
    if value is None:
        return "-"
    split = f", {value['split']}" if value.get("split") else ""
    return f"{value['path']} ({value['bytes']:,} bytes, {value['sha256'][:12]}{split})"


def _side(value: Any) -> str:
    return "-" if value is None else str(value)
