"""What the terminal app costs: first frame, memory, opening the ledger, CPU and bytes beside a live run.

    python bench/app.py [--runs 10000] [--seconds 20] [--json FILE]

Each figure is taken from the app in a pseudo-terminal of 80 by 24, the run is a process that appends to a run's
files as a trainer does, twenty steps a second.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import random
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

LIMITS = {
    "first_frame_s": 0.35,
    "rss_empty_mb": 70.0,
    "rss_ledger_mb": 150.0,
    "ledger_open_s": 1.0,
    "cpu_share": 0.02,
    "output_kib_10s": 60.0,
    "slow_link_kib_10s": 6.0,
}


class App:
    """The app in a pseudo-terminal."""

    def __init__(self, workspace: Path, *options: str, columns: int = 80, lines: int = 24) -> None:
        self.began = time.perf_counter()
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", LC_ALL="C.UTF-8")
            os.chdir(workspace)
            os.execv(sys.executable, [sys.executable, "-m", "labassist", *options])
        self.seen = b""

    def read(self, seconds: float) -> int:
        """Take what is written in this time; return its bytes."""
        end = time.perf_counter() + seconds
        count = 0
        while (left := end - time.perf_counter()) > 0:
            if select.select([self.terminal], [], [], left)[0]:
                chunk = os.read(self.terminal, 65536)
                count += len(chunk)
                self.seen = (self.seen + chunk)[-200_000:]
        return count

    def wait(self, *texts: bytes, deadline: float = 60.0) -> float:
        """Return the seconds since the start at which all texts had been written since the last wait."""
        end = time.perf_counter() + deadline
        self.seen = b""
        while not all(text in self.seen for text in texts):
            if time.perf_counter() > end:
                raise RuntimeError(f"{texts} did not appear: {self.seen[-2000:]!r}")
            if select.select([self.terminal], [], [], 0.05)[0]:
                self.seen += os.read(self.terminal, 65536)
        return time.perf_counter() - self.began

    def press(self, keys: bytes) -> float:
        """Type; return when."""
        os.write(self.terminal, keys)
        return time.perf_counter() - self.began

    def rss_mb(self) -> float:
        """Resident memory, in MB of 10^6 bytes."""
        line = next(
            row for row in Path(f"/proc/{self.pid}/status").read_text().splitlines() if "VmRSS" in row
        )
        return int(line.split()[1]) * 1024 / 1e6

    def cpu_s(self) -> float:
        """Processor time used so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Kill it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


def new_workspace(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "labassist", "new", str(folder)], check=True, capture_output=True)
    return folder


def document(run: str, state: str, created: str, number: int) -> dict[str, Any]:
    """A run document as large as those of a real job."""
    config = {f"part{at}.number{at}": at * 1.5 for at in range(20)}
    config |= {"optim.lr": 10 ** -(2 + number % 3), "steps": 2000, "clip": 1.0}
    return {
        "id": run,
        "job": "01-first-loop/train",
        "kind": "job",
        "state": state,
        "mode": "exact",
        "seed": number,
        "created": created,
        "argv": ["python", "labs/01-first-loop/train.py"],
        "cwd": ".",
        "machine": {"id": "bench", "host": "bench"},
        "code": {"vcs": "git", "commit": f"{number:040x}", "digest": f"{number:064x}"},
        "schema": 1,
        "profile": "tiny",
        "config": config,
        "versions": {"python": "3.11.7", "torch": "2.13.0+cpu", "cpu": "x86_64"},
        "step": 2000,
        "total_steps": 2000,
        "tokens_per_step": 768,
        "ended": created,
        "exit": 0,
        "seconds": 120.0,
        "last": {"loss": 1.5 + number % 7 / 10, "lr": 1e-4, "grad_norm": 0.7, "val_loss": 1.6},
    }


def fill(workspace: Path, runs: int) -> None:
    """Write a ledger of finished runs."""
    from labassist.ledger.store import Ledger

    with Ledger.open(workspace / "ledger", create=True) as ledger:
        rows = [
            document(f"2026{1 + at % 9:02d}01-{at:06d}-{at:06x}", "finished", "2026-01-01T00:00:00.000Z", at)
            for at in range(runs)
        ]
        ledger.runs.insert_multiple(rows)
        ledger.save_view()


def live_run(workspace: Path) -> subprocess.Popen[bytes]:
    """Start a process that holds a run's locks and appends to its curve, events and log as a trainer does."""
    from labassist.ledger.environment import machine
    from labassist.ledger.store import Ledger
    from labassist.runs import life

    run = "20270101-000000-11fe00"
    with Ledger.open(workspace / "ledger", create=True) as ledger:
        folder = ledger.run_folder(run)
        folder.mkdir(parents=True)
        here = machine()
        kept = document(run, "running", time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()), 0)
        del kept["ended"], kept["exit"]
        locks = [life.take(folder / name) for name in ("alive", "supervised")]
        kept["machine"] = {"id": here.id, "host": here.host, "inode": (folder / "alive").stat().st_ino}
        ledger.write("start", kept)
    fds = [lock for lock in locks if lock is not None]
    child = subprocess.Popen([sys.executable, __file__, "--child", str(folder)], pass_fds=fds)
    for fd in fds:
        os.close(fd)
    return child


def train(folder: Path) -> None:
    """Append twenty steps a second until killed; this is the child that plays the trainer."""
    noise = random.Random(7)
    began = time.monotonic()
    with (folder / "metrics-rank0.jsonl").open("ab", 0) as curve, (folder / "log.txt").open("ab", 0) as log:
        for step in range(1, 2001):
            loss = 1.5 + 2.5 * 0.995**step + noise.gauss(0, 0.05)
            row = {
                "step": step,
                "t": time.monotonic() - began,
                "loss": loss,
                "lr": 1e-3,
                "grad_norm": abs(noise.gauss(1, 0.3)),
            }
            curve.write(json.dumps(row).encode() + b"\n")
            if step % 40 == 0:
                log.write(f"step {step:6d}  loss {loss:.4f}\n".encode())
            time.sleep(0.05)


def measure(runs: int, seconds: float, scratch: Path) -> dict[str, float]:
    figures: dict[str, float] = {}
    empty = new_workspace(scratch / "empty")
    app = App(empty)
    figures["first_labs_s"] = app.wait(b"first loop")  # the first start ever has to ask for the labs
    app.read(1.0)
    app.close()
    frames = []
    for _ in range(11):
        app = App(empty)
        frames.append(app.wait(b"first loop"))
        app.close()
    figures["first_frame_s"] = statistics.median(frames)
    app = App(empty)
    app.wait(b"Welcome")
    app.read(3.0)
    figures["rss_empty_mb"] = app.rss_mb()
    app.close()

    full = new_workspace(scratch / "full")
    fill(full, runs)
    app = App(full)
    app.wait(f"{runs:,}".encode())
    app.read(1.0)
    pressed = app.press(b"l")
    figures["ledger_open_s"] = app.wait(b"Ledger", b"finished") - pressed
    app.read(1.0)
    app.press(b"\x1b[6~" * 20)
    app.read(2.0)
    figures["rss_ledger_mb"] = app.rss_mb()
    app.close()
    app = App(full)
    app.press(b"l")
    figures["ledger_open_from_start_s"] = app.wait(b"Ledger", b"finished")
    app.close()

    live = new_workspace(scratch / "live")
    trainer = live_run(live)
    try:
        app = App(live)
        app.wait(b"Live:")
        app.press(b"r")
        app.wait(b"grad norm")
        app.read(3.0)
        cpu, began = app.cpu_s(), time.perf_counter()
        written = app.read(seconds)
        figures["cpu_share"] = (app.cpu_s() - cpu) / (time.perf_counter() - began)
        figures["output_kib_10s"] = written / 1024 * 10 / seconds
        figures["rss_live_mb"] = app.rss_mb()
        app.close()
        app = App(live, "--slow-link")
        app.wait(b"Live:")
        app.press(b"r")
        app.wait(b"grad norm")
        app.read(3.0)
        figures["slow_link_kib_10s"] = app.read(seconds) / 1024 * 10 / seconds
        app.close()
    finally:
        trainer.kill()
        trainer.wait()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file too")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        train(args.child)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(args.runs, args.seconds, Path(scratch))
    ok = True
    for name, figure in figures.items():
        limit = LIMITS.get(name)
        passed = limit is None or figure < limit
        ok = ok and passed
        word = "    " if limit is None else "PASS" if passed else "FAIL"
        print(f"{word} {name} {figure:.3f}" + (f" (limit {limit:g})" if limit is not None else ""))
    if args.json:
        Path(args.json).write_text(
            json.dumps({"ok": ok, "figures": figures, "limits": LIMITS}, indent=1) + "\n"
        )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
