"""The supervisor of one run: a detached process that starts the trainer, watches it and closes its record.

Whoever starts it has taken the run's `supervised` lock and passes it on, so there is never a second one.
With the `alive` lock too it starts the trainer, without it watches one that lives. It stays in its own
session, so a lost SSH link does not reach it, and it may be killed at any time: the run's shim, or the next
labassist process, has the run adopted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from labassist import own
from labassist.errors import LabError
from labassist.ledger import room, secrets
from labassist.ledger.store import Ledger
from labassist.runs import ending, life
from labassist.runs.absorb import Absorber, now
from labassist.runs.launch import ARGV
from labassist.runs.meter import Meter

GRACE_S = 60.0
"""Seconds between the request to stop and the kill, unless LABASSIST_GRACE says otherwise."""

_POLL_S = 0.2


def main(argv: list[str] | None = None) -> int:
    """Start or adopt the run, and return when its record is closed."""
    parser = argparse.ArgumentParser(prog="labassist.runs.supervise")
    parser.add_argument("ledger", type=Path)
    parser.add_argument("run")
    parser.add_argument("--supervised", type=int, required=True, metavar="FD", help="the lock, taken for us")
    parser.add_argument("--alive", type=int, metavar="FD", help="start the trainer, and hand it this lock")
    parser.add_argument("--unwatched-since", metavar="TIME", help="adopt a trainer that nobody watched")
    args = parser.parse_args(argv)
    folder = args.ledger / "runs" / args.run
    command = json.loads(os.environ.pop(ARGV, "[]"))
    stop = _StopRequest()
    _own(args.supervised)
    child = None
    if args.alive is not None:
        order = json.loads((folder / "order.json").read_text())
        adopt = own.start("labassist.runs.recover", str(args.ledger))
        child = _start(folder, order, command, args.alive, adopt)
        os.close(args.alive)
    if args.unwatched_since:
        _note_gap(Ledger.open(args.ledger), args.run, f"{args.unwatched_since}/{now()}")
    return _watch(args.ledger, args.run, child, stop)


class _StopRequest:
    """SIGTERM to the supervisor means: a checkpoint, and the end, within the grace time."""

    def __init__(self) -> None:
        self._signalled = False
        self.deadline = 0.0
        self._passed_on = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _ask(self, _number: int, _frame: object) -> None:
        self._signalled = True

    def serve(self, folder: Path) -> None:
        """Pass the request on once, and kill what is still alive when the grace time is over."""
        if self._signalled:
            self._signalled = False
            life.ask_to_stop(folder)
        if not life.stop_asked(folder):
            return
        if not self._passed_on:
            pids = life.pids(folder)
            # The shim passes the request on; where it died before its trainer, the trainer gets it itself.
            waiting = next((pids[who] for who in ("shim", "trainer") if _exists(pids.get(who))), None)
            if waiting is None:
                return
            grace = float(os.environ.get("LABASSIST_GRACE", GRACE_S))
            self.deadline = time.monotonic() + grace
            self._passed_on = True
            _say(f"asked to stop: the trainer has {grace:g} s for a checkpoint")
            with contextlib.suppress(ProcessLookupError):
                os.kill(waiting, signal.SIGTERM)
        elif time.monotonic() > self.deadline:
            _say("the grace time is over: killing the trainer")
            life.kill(folder)


def _exists(pid: int | None) -> bool:
    """Say whether a process is there and not only waiting to be reaped."""
    if pid is None:
        return False
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _own(supervised: int) -> None:
    """Write our pid into the lock we hold; the descriptor stays open for our whole life."""
    os.set_inheritable(supervised, False)
    os.ftruncate(supervised, 0)
    os.pwrite(supervised, str(os.getpid()).encode(), 0)


def _note_gap(ledger: Ledger, run_id: str, gap: str) -> None:
    def change(run: dict[str, Any]) -> dict[str, Any]:
        return {**run, "adopted": room.added(run.get("adopted", []), gap)}

    ledger.change("adopt", run_id, change)
    _say(f"adopted: nobody watched during {gap}")


def _start(
    folder: Path, order: dict[str, Any], command: list[str], alive: int, adopt: list[str]
) -> subprocess.Popen[bytes]:
    """Start the shim with our environment, and tell it the trainer's: what it adopts with is not the trainer's."""
    shim = Path(__file__).with_name("shim.py")
    keep = "1" if order["kind"] == "job" else "0"
    # `python` is whichever interpreter runs labassist: a path would not mean the same elsewhere.
    argv = [sys.executable, *command[1:]] if command[0] == "python" else command
    told = json.dumps({"env": _environment(order["env"]), "adopt": adopt}).encode()
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(shim), str(folder), str(alive), keep, "--", *argv],
            cwd=order["cwd"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(alive,),
        )
    finally:
        os.close(log)
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # a shim that was killed: the run ends without a marker
        child.stdin.write(told)
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    return child


def _environment(changes: dict[str, str | None]) -> dict[str, str]:
    """Return our environment with the order's changes; None takes a variable away (a replay must).

    Where a secret belongs the order has a reference to our own variable of that name.
    """
    merged = {**os.environ, **secrets.fill(changes, os.environ)}
    return {name: value for name, value in merged.items() if value is not None}


def _watch(
    ledger_folder: Path, run_id: str, child: subprocess.Popen[bytes] | None, stop: _StopRequest
) -> int:
    folder = ledger_folder / "runs" / run_id
    ledger = Ledger.open(ledger_folder)
    order = json.loads((folder / "order.json").read_text())
    absorber = Absorber(ledger, run_id, Path(order["root"]))
    meter = Meter(ledger, run_id, order)
    trouble = ""
    # The lock is looked for by its path: while somebody has moved the workspace away, the shim itself says that it lives.
    while life.held(folder / "alive") or (child is not None and child.poll() is None):
        if child is not None:
            child.poll()
        try:
            stop.serve(folder)
            absorber.poll()
            meter.poll()
            os.utime(folder / "supervised")
        except (LabError, OSError) as error:
            # A full disk, most likely. The trainer's own files are what counts; try again, and say it once.
            if str(error) != trouble:
                trouble = str(error)
                _say(trouble)
        time.sleep(_POLL_S)
    if child is not None:
        child.wait()
    meter.close()
    absorber.finalise(vanished="the trainer vanished without an exit status")
    ending.after(ledger, run_id)
    return 0


def _say(line: str) -> None:
    print(f"{now()} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
