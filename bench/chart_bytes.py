"""Count what a live chart writes to the terminal: at most 60 KiB in 10 s at 80x24, points arriving at 2 Hz.

A Textual app with one chart as large as the screen allows runs in a pseudo-terminal and gets 100 points twice a
second (a noisy, falling loss with rare spikes). Every byte counts, the first paint included. Run with PYTHONPATH
at the repository's root:

    python bench/chart_bytes.py [--seconds 10] [--ascii] [--json]
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import pty
import random
import select
import signal
import struct
import sys
import termios
import time

BAR = 60 * 1024
COLUMNS, LINES = 80, 24
POINTS_EACH = 100
SECONDS_EACH = 0.5


def loss(step: int, noise: random.Random) -> float:
    return 1.4 + 2.8 * math.exp(-step / 500) + noise.gauss(0, 0.05) + (1.5 if step % 701 == 700 else 0.0)


def show(plain: bool) -> None:
    """Run the app; this is the child in the pseudo-terminal."""
    from textual.app import App, ComposeResult
    from textual.widgets import Static

    from labassist.app.widgets.chart import ChartView

    class Live(App[None]):
        CSS = "ChartView { border: solid $primary; } Static { height: 1; }"

        def compose(self) -> ComposeResult:
            yield ChartView(total=2000)
            yield Static(" s stop after checkpoint   n note   q quit")

        def on_mount(self) -> None:
            self.noise = random.Random(7)
            self.step = 0
            self.query_one(ChartView).ascii = plain
            self.set_interval(SECONDS_EACH, self.more)

        def more(self) -> None:
            steps = range(self.step + 1, self.step + POINTS_EACH + 1)
            self.query_one(ChartView).extend((step, loss(step, self.noise)) for step in steps)
            self.step = steps[-1]

    Live().run()


def count(seconds: float, plain: bool) -> tuple[int, int]:
    """Return the bytes written in `seconds` from the first one on, and how many of them in the first second.

    Raises RuntimeError when the app did not live and draw to the end: a dead app writes few bytes.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        command = [sys.executable, __file__, "--child", *(["--ascii"] if plain else [])]
        os.execv(sys.executable, command)
    written = first = 0
    last = 0.0
    dots = 0
    began: float | None = None
    try:
        while began is None or time.monotonic() - began < seconds:
            ready, _, _ = select.select([terminal], [], [], 0.1)
            if ready:
                try:
                    output = os.read(terminal, 65536)
                except OSError:  # the app closed the terminal
                    break
                chunk = len(output)
                # The first two bytes of half of the braille characters; "|" is the commonest one in ASCII.
                dots += output.count(b"|" if plain else b"\xe2\xa1") + output.count(b"\xe2\xa3")
                began = began or time.monotonic()
                written += chunk
                last = time.monotonic()
                first += chunk if last - began < 1.0 else 0
    finally:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    if os.WTERMSIG(status) != signal.SIGKILL or time.monotonic() - last > 3 * SECONDS_EACH or dots < 200:
        raise RuntimeError(f"the app ended, stopped or drew next to nothing ({dots} characters of the line)")
    return written, first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--ascii", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        show(options.ascii)
        return 0
    written, first = count(options.seconds, options.ascii)
    passed = written <= BAR * options.seconds / 10
    if options.json:
        print(
            json.dumps(
                {"passed": passed, "bytes": written, "first_second": first, "seconds": options.seconds}
            )
        )
    else:
        word = "PASS" if passed else "FAIL"
        print(
            f"{word} {written / 1024:.1f} KiB in {options.seconds:g} s (first second {first / 1024:.1f} KiB)"
        )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
