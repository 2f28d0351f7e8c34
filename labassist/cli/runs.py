"""Commands that start, follow, stop and go on with runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers
    from labassist.ledger.store import Ledger
    from labassist.runs.follow import Interrupts


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli.parsing import RUN, THREADS, command
    from labassist.cli.run_plan import terms_options

    parser = command(
        sub,
        "run",
        run,
        help="start a recorded run of a lab's job, or of any command after --",
        example="labassist run 01-first-loop/train --profile tiny\n"
        "labassist run 01-first-loop/train --set optim.lr=0.002 --seed 7\n"
        "labassist run --out model.bin -- python my_train.py",
        takes_rest="a command to record in place of a job, with its arguments",
    )
    parser.add_argument("job", nargs="?", metavar="JOB", help="LAB/JOB, as 01-first-loop/train")
    parser.add_argument("--profile", metavar="NAME", help="numbers to start from: tiny, laptop, gpu …")
    parser.add_argument("--config", metavar="FILE", help="a TOML file of overrides")
    parser.add_argument(
        "--set", action="append", default=[], metavar="K=V", dest="sets", help="one override; may be repeated"
    )
    parser.add_argument(
        "--card",
        metavar="24GB",
        help="rehearse a smaller card: a job takes no more of this one (--set card=…)",
    )
    parser.add_argument("--seed", type=int, default=1337, metavar="N", help="seed of every generator (1337)")
    parser.add_argument(
        "--mode",
        choices=("exact", "fast"),
        default="exact",
        help="exact (default) can be replayed bit for bit; fast takes the quickest kernels",
    )
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help=THREADS,
    )
    parser.add_argument("--detach", action="store_true", help="print the run's id and return at once")
    parser.add_argument("--note", default="", metavar="TEXT", help="a note kept with the run")
    parser.add_argument(
        "--out",
        action="append",
        default=[],
        metavar="PATH",
        help="a file or folder that it makes, compared by a replay; may be repeated",
    )
    terms_options(parser)

    parser = command(
        sub,
        "resume",
        resume,
        help="go on from a run's last complete checkpoint, as a new segment",
        example="labassist resume @last",
    )
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument(
        "--set", action="append", default=[], metavar="K=V", dest="sets", help="one override; may be repeated"
    )
    parser.add_argument("--detach", action="store_true", help="print the run's id and return at once")
    parser.add_argument("--note", default="", metavar="TEXT", help="a note kept with the run")
    terms_options(parser)

    parser = command(
        sub, "stop", stop, help="ask a run for a checkpoint and its end", example="labassist stop @last"
    )
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--wait", action="store_true", help="return when its record is closed")

    parser = command(
        sub, "logs", logs, help="print what a run's trainer printed", example="labassist logs @last -f"
    )
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")

    command(sub, "attach", attach, help="list live runs", example="labassist attach")


def run(args: argparse.Namespace) -> int:
    """Start a run and, unless detached, follow it to its end."""
    from labassist.cli.opening import opened
    from labassist.cli.output import piped, say
    from labassist.cli.run_plan import chosen_terms, plan
    from labassist.runs.follow import Interrupts
    from labassist.runs.launch import launch

    workspace, ledger = opened(args)
    wanted = plan(args, workspace)
    wanted.terms = chosen_terms(args, workspace)
    if wanted.kind == "command" and piped():
        say(
            "note: what is piped in does not reach the command, which outlives this one and has an empty standard "
            "input; let it read a file: labassist run -- sh -c 'COMMAND < FILE'"
        )
    with Interrupts() as interrupts:
        return started(args, ledger, launch(workspace, ledger, wanted, interrupts.defer), interrupts)


def resume(args: argparse.Namespace) -> int:
    """Start the next segment and, unless detached, follow it to its end."""
    from labassist.cli.opening import opened
    from labassist.cli.output import say, written
    from labassist.cli.run_plan import chosen_terms
    from labassist.runs.follow import Interrupts
    from labassist.runs.resume import resume as go_on

    workspace, ledger = opened(args)
    with Interrupts() as interrupts:
        resumed = go_on(
            workspace,
            ledger,
            args.run,
            args.sets,
            written(args.note, "note"),
            terms=lambda before: chosen_terms(args, workspace, before),
            committing=interrupts.defer,
        )
        for note in resumed.notes:
            say(f"note: {note}")
        where = f" of run {resumed.origin.run}"
        none = " (no checkpoint was complete)" if resumed.origin.step == 0 else ""
        say(f"resumed from step {resumed.origin.step}{where}{none}")
        return started(args, ledger, resumed.run, interrupts)


def started(args: argparse.Namespace, ledger: Ledger, run_id: str, interrupts: Interrupts) -> int:
    """Follow the run that was just started, print its record, and return the trainer's status."""
    from labassist.cli.ledger import summary
    from labassist.cli.output import emit, say
    from labassist.errors import LedgerError
    from labassist.ledger.kept import say_too_large
    from labassist.runs.follow import Interrupted, follow

    hint = (
        f"stop it with: labassist stop {run_id}"
        if args.detach
        else "ctrl-c asks for a checkpoint and stops it"
    )
    say(f"run {run_id} started; {hint}")
    for line in say_too_large(ledger.find(run_id)["code"].get("extra", ""), ledger.objects):
        say(f"note: {line}")
    if args.detach:
        emit(ledger.run(run_id), args.json, lambda: run_id)
        return 0
    status = None
    try:
        document = follow(ledger, run_id, interrupts)
    except Interrupted:
        document = ledger.find(run_id)
        status = 130
    except LedgerError:
        # The record cannot be closed (a full disk): what the trainer said stands in its log alone.
        show_tail(ledger, run_id)
        raise
    if document["state"] == "failed":
        show_tail(ledger, run_id)
    emit(document, args.json, lambda: summary(document))
    return trainer_status(document) if status is None else status


def trainer_status(document: dict[str, Any]) -> int:
    """Return the status of a run as a shell has it: the exit status, or 128 + signal; 1 where it is lost."""
    if document.get("signal") is not None:
        return 128 + int(document["signal"])
    status = document.get("exit")
    return 1 if status is None else int(status)


def show_tail(ledger: Ledger, run_id: str) -> None:
    """Print the last lines of a run's log."""
    from labassist.cli.output import say
    from labassist.runs.logs import tail

    for line in tail(ledger.run_folder(run_id) / "log.txt", 8):
        say(f"  | {line}")


def stop(args: argparse.Namespace) -> int:
    """Ask a live run to stop."""
    from labassist.cli.opening import opened
    from labassist.cli.output import emit, say
    from labassist.errors import AnswerNo
    from labassist.runs import life

    _workspace, ledger = opened(args)
    document = ledger.find(args.run)
    if not life.ask_to_stop(ledger.run_folder(document["id"])):
        raise AnswerNo(f"it is not alive ({document['state']})", where=f"run {document['id']}")
    before = life.began_elsewhere(ledger.run_folder(document["id"]))
    if before:
        say(
            f"warning: it began when this workspace was at {before}, where it looks for the request and writes its "
            "checkpoints: if it was moved, move it back until the run has ended"
        )
    if args.wait:
        from labassist.runs.follow import follow

        document = follow(ledger, document["id"])
        emit(document, args.json, lambda: f"run {document['id']} {document['state']}")
        return 0
    emit({"run": document["id"], "asked": True}, args.json, lambda: f"asked run {document['id']} to stop")
    return 0


def logs(args: argparse.Namespace) -> int:
    """Print a run's log, with secrets and control sequences taken out."""
    import sys
    import time

    from labassist.cli.opening import opened
    from labassist.cli.output import emit
    from labassist.errors import InputError
    from labassist.runs import life
    from labassist.runs.logs import Log

    _workspace, ledger = opened(args)
    run_id = ledger.find(args.run)["id"]
    folder = ledger.run_folder(run_id)
    if not folder.is_dir():
        raise InputError("the run's folder is gone, and its log with it", where=str(folder))
    log = Log(folder / "log.txt")
    lines: list[str] = []
    while True:
        alive = life.held(folder / "alive")
        for line in log.poll(whole=not alive):
            if args.json:
                lines.append(line)
            else:
                sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if not args.follow or not alive:
            break
        time.sleep(0.25)
    if args.json:
        emit({"run": run_id, "lines": lines}, True, str)
    return 0


def attach(args: argparse.Namespace) -> int:
    """List live runs with their last step."""
    from labassist.cli.ledger import runs_table
    from labassist.cli.opening import opened
    from labassist.cli.output import emit
    from labassist.ledger.environment import machine
    from labassist.runs import life

    _workspace, ledger = opened(args)
    live = [
        document
        for document in ledger.running()
        if life.life(ledger.run_folder(document["id"]), document, machine().id) == "alive"
    ]
    emit({"runs": live}, args.json, lambda: runs_table(ledger, live) if live else "no run is alive")
    return 0
