"""A real terminal for tests: a tmux server of their own, typed into and read from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here")

APP = f"{sys.executable} -m labassist"


class Terminal:
    """One tmux window. Waiting is for text on the screen, with a deadline, never for seconds."""

    def __init__(self, socket: Path, columns: int, lines: int) -> None:
        self._socket = socket
        self._size = (columns, lines)

    def tmux(self, *words: str) -> str:
        return subprocess.run(
            ["tmux", "-S", str(self._socket), "-f", "/dev/null", *words],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout

    def start(self, command: str, cwd: Path, env: Mapping[str, str]) -> None:
        """Start a shell, without anyone's dotfiles, and type the command into it."""
        columns, lines = self._size
        given = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        size = ["-x", str(columns), "-y", str(lines)]
        shell = "exec env PS1='shell> ' sh"
        self.tmux("new-session", "-d", *size, "-c", str(cwd), *given, shell)
        self.tmux("set", "-g", "status", "off")
        self.tmux("set", "-g", "default-terminal", "tmux-256color")
        self.wait("shell>")
        self.type(command)
        self.keys("Enter")

    def keys(self, *names: str) -> None:
        """Press keys, by tmux's names: q, Enter, Escape, C-c."""
        self.tmux("send-keys", *names)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    def resize(self, columns: int, lines: int) -> None:
        self.tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def wait(self, *texts: str, deadline: float = 60.0) -> str:
        """Return the screen once it shows every text; fail with what it shows instead."""
        end = time.monotonic() + deadline
        while True:
            shown = self.screen()
            missing = [text for text in texts if text not in shown]
            if not missing:
                return shown
            if time.monotonic() > end:
                raise AssertionError(f"{missing} did not appear; the screen shows:\n{shown}")
            time.sleep(0.1)

    def wait_gone(self, text: str, deadline: float = 60.0) -> str:
        """Return the screen once it does not show the text any more."""
        end = time.monotonic() + deadline
        while text in (shown := self.screen()):
            if time.monotonic() > end:
                raise AssertionError(f"{text!r} did not go away; the screen shows:\n{shown}")
            time.sleep(0.1)
        return shown

    def pid(self, program: str = "labassist") -> int:
        """Return the pid of the app that runs in front."""
        shell = int(self.tmux("display-message", "-p", "#{pane_pid}"))
        for child in children(shell):
            if program.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
        raise AssertionError(f"no {program} in front; the screen shows:\n{self.screen()}")

    def settings(self) -> str:
        """Return the terminal's own flags, as `stty -a` has them."""
        tty = self.tmux("display-message", "-p", "#{pane_tty}").strip()
        return subprocess.run(["stty", "-a", "-F", tty], capture_output=True, text=True, check=True).stdout

    def flag(self, name: str) -> str:
        """Return one of tmux's pane flags, as alternate_on or cursor_flag."""
        return self.tmux("display-message", "-p", f"#{{{name}}}").strip()


def children(pid: int) -> list[int]:
    """Return the pids of all descendants."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent == pid:
                found += [int(entry.name), *children(int(entry.name))]
    return found


def start_tiny(shown: Terminal) -> None:
    """Start the first lab's job from the Course screen by keys alone."""
    shown.wait("s start a job", "01 The first loop")
    shown.keys("s")
    shown.wait("Jobs", "enter run")
    shown.keys(":")
    shown.wait("All that can be done")
    shown.type("01-first-loop/train")
    shown.wait("▸ job: 01-first-loop/train")
    shown.keys("Enter")
    shown.wait("with which numbers?", "▸ tiny")
    shown.keys("Enter")


@contextmanager
def terminal(
    folder: Path,
    cwd: Path,
    command: str,
    *,
    size: tuple[int, int] = (80, 24),
    env: Mapping[str, str] | None = None,
) -> Iterator[Terminal]:
    """Open a terminal of this size with a command in it, and close it at the end."""
    socket = folder / "t"
    given = {
        name: os.environ[name]
        for name in ("HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "PATH", "PYTHONPATH")
        if name in os.environ
    }
    given |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", **(env or {})}
    made = Terminal(socket, *size)
    try:
        made.start(command, cwd, given)
        yield made
    finally:
        subprocess.run(["tmux", "-S", str(socket), "kill-server"], capture_output=True, check=False)
