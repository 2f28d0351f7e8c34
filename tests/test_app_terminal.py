"""The app in a real terminal: what a person types, what a lost connection does, what is left behind."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import labassist
from leash import Leash
from terminal import APP, Terminal, needs_tmux, start_tiny, terminal

from labassist.ledger.store import Ledger
from labassist.workspace import Workspace

pytestmark = [pytest.mark.slow, needs_tmux, pytest.mark.ci]

SIZES = [(80, 24), (160, 50)]
JOB = "01-first-loop/train"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: a socket's path has at most 107 characters."""
    made = Path(tempfile.mkdtemp(prefix="lab"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def leash(workspace: Workspace) -> Leash:
    """The workspace's job, and a replay of it, waits at step 58 where it is started on the leash."""
    return Leash(workspace.root)


def start_again(shown: Terminal) -> None:
    """Start the app again in a terminal that a kill -9 has left in raw mode."""
    shown.type("stty sane; clear; " + APP)
    shown.keys("C-j")


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "160x50"])
def test_golden_path_by_keys_alone(
    folder: Path, workspace: Workspace, leash: Leash, size: tuple[int, int]
) -> None:
    with terminal(folder, workspace.root, APP, size=size, env=leash.env) as shown:
        shown.wait("Welcome")
        start_tiny(shown)
        shown.wait("running", "s stop after checkpoint")
        leash.free()
        shown.wait("✓ finished", "step 120/120", "r replay", deadline=240)
        leash.upto(58)
        shown.keys("r")
        shown.wait("replaying")
        leash.free()
        screen = shown.wait("✓ BITWISE", "compared 120 steps", deadline=240)
        assert "█" in screen  # in large letters too
        shown.keys("q")
        shown.wait("enter run", "BITWISE")
        shown.keys("l")
        shown.wait("Ledger  2 runs", "finished", "BITWISE")
        shown.keys("q")
        shown.wait("enter run")
        shown.keys("q")
        shown.wait("q quit")
        shown.keys("q")
        shown.wait("shell>")
        assert shown.flag("alternate_on") == "0"
    with Ledger.open(workspace.ledger) as ledger:
        replay = ledger.runs.all()[-1]
        assert replay["verdict"]["verdict"] == "BITWISE"
        assert replay["verdict"]["steps"] == 120


@pytest.fixture
def recorded(leash: Leash) -> Leash:
    """One run is recorded; a replay of it that is started on the leash waits at step 58 of 120."""
    labassist("run", JOB, "--profile", "tiny", cwd=leash.lab)
    return leash


def test_the_ledger_replays_with_progress_and_verdict(
    folder: Path, workspace: Workspace, recorded: Leash
) -> None:
    with terminal(folder, workspace.root, APP, env=recorded.env) as shown:
        shown.wait("1 run")
        shown.keys("l")
        shown.wait("Ledger  1 run", "r replay")
        shown.keys("r")
        shown.wait("replaying", "58/120", deadline=120)
        recorded.free()
        shown.wait("✓ BITWISE", "compared 120 steps", deadline=240)


@pytest.mark.fault
def test_a_killed_app_comes_back_to_the_same_run(folder: Path, workspace: Workspace, leash: Leash) -> None:
    with terminal(folder, workspace.root, APP, env=leash.env) as shown:
        start_tiny(shown)
        before = shown.wait("running", "step ")
        run = re.search(r"run (\w{6})", before)
        assert run
        os.kill(shown.pid(), signal.SIGKILL)
        shown.wait("shell>")
        start_again(shown)
        shown.wait("Live: " + run[1])
        shown.keys("r")
        shown.wait(f"run {run[1]}", "running")
        leash.free()
        shown.wait("✓ finished", "step 120/120", deadline=240)
    with Ledger.open(workspace.ledger) as ledger:
        (document,) = ledger.runs.all()
        assert document["state"] == "finished"
        assert document["step"] == 120


@pytest.mark.fault
def test_a_replay_survives_the_app(folder: Path, workspace: Workspace, recorded: Leash) -> None:
    with terminal(folder, workspace.root, APP, env=recorded.env) as shown:
        shown.wait("1 run")
        shown.keys("r")
        shown.wait("r replay")
        shown.keys("r")
        shown.wait("losses so far, each equal", deadline=120)
        os.kill(shown.pid(), signal.SIGKILL)
        shown.wait("shell>")
        start_again(shown)
        shown.wait("enter open", "2 runs")
        recorded.free()
        shown.keys("l")
        shown.wait("Ledger")
        shown.keys("Down")
        shown.keys("Enter")
        shown.wait("BITWISE", "compared 120 steps", deadline=240)


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM], ids=["SIGHUP", "SIGTERM"])
def test_a_signal_restores_the_terminal(folder: Path, workspace: Workspace, number: signal.Signals) -> None:
    with terminal(folder, workspace.root, APP + "; echo left with $?") as shown:
        shown.wait("enter open")
        assert shown.flag("alternate_on") == "1"
        assert "-echo " in shown.settings()
        os.kill(shown.pid(), number)
        shown.wait(f"left with {128 + number}")
        assert shown.flag("alternate_on") == "0"
        assert shown.flag("cursor_flag") == "1"
        assert "-echo " not in shown.settings()
        assert "-icanon" not in shown.settings()


@pytest.mark.fault
def test_a_terminal_that_is_gone_ends_the_app(workspace: Workspace) -> None:
    """No SIGHUP comes where the terminal is not the app's own: only the end of the input tells."""
    master, slave = pty.openpty()
    app = subprocess.Popen(
        [sys.executable, "-m", "labassist"],
        cwd=workspace.root,
        stdin=slave,
        stdout=slave,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"},
    )
    os.close(slave)
    seen = b""
    end = time.monotonic() + 30
    while b"labassist" not in seen:
        assert time.monotonic() < end, seen
        if select.select([master], [], [], 0.5)[0]:
            seen += os.read(master, 65536)
    os.close(master)
    try:
        app.wait(timeout=20)
    finally:
        app.kill()


@pytest.mark.fault
def test_a_terminal_that_tells_no_size_is_drawn_on_once(workspace: Workspace) -> None:
    child, terminal = pty.fork()  # 0 by 0, as `script` and containers without one leave it
    if child == 0:
        os.chdir(workspace.root)
        os.execve(sys.executable, [sys.executable, "-m", "labassist"], {**os.environ, "TERM": "xterm"})
    drawn, shown = 0, b""
    while b"Welcome" not in shown:
        shown += os.read(terminal, 65536)
    end = time.monotonic() + 5
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            drawn += len(os.read(terminal, 65536))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(terminal)
    assert drawn < 60_000, "it is drawn again and again"  # the machine's line each second is a few hundred


@pytest.mark.fault
def test_resizing_to_little_and_back(folder: Path, workspace: Workspace) -> None:
    with terminal(folder, workspace.root, APP) as shown:
        shown.wait("enter open", "Welcome")
        shown.resize(60, 15)
        shown.wait("01 The first loop", "enter open", "q quit")
        shown.resize(30, 8)
        shown.wait("needs 40 by 10 cells")
        shown.resize(160, 50)
        shown.wait("what it is about", "enter open", "Welcome")
        shown.resize(80, 24)
        shown.wait("01 The first loop", "enter open", "Welcome")
        shown.keys("q")
        shown.wait("shell>")


@pytest.mark.fault
def test_suspended_and_brought_back(folder: Path, workspace: Workspace) -> None:
    with terminal(folder, workspace.root, APP) as shown:
        shown.wait("enter open")
        shown.keys("C-z")
        shown.wait("shell>")
        shown.type("fg")
        shown.keys("Enter")
        shown.wait("enter open", "01 The first loop")
        shown.keys("q")
        shown.wait("shell>")


@pytest.mark.fault
def test_a_bug_ends_the_app_in_one_line_and_its_traceback_is_kept(folder: Path, workspace: Workspace) -> None:
    (folder / "broken.py").write_text(
        "from labassist.app.screens.base import LabScreen\n"
        "from labassist.cli.main import main\n"
        "LabScreen.action_machine = lambda self: 1 / 0\n"
        "raise SystemExit(main([]))\n"
    )
    with terminal(folder, workspace.root, f"{sys.executable} {folder / 'broken.py'}") as shown:
        shown.wait("enter open", "01 The first loop")
        shown.keys("m")
        screen = shown.wait(
            "a bug in labassist ended the app: ZeroDivisionError", "runs and replays go on", "shell>"
        )
        assert "Traceback" not in screen and "locals" not in screen
        assert shown.flag("alternate_on") == "0"
    kept = workspace.cache / "app-error.txt"
    assert "ZeroDivisionError" in kept.read_text() and "action_machine" in kept.read_text()


def test_the_language_of_the_texts_is_chosen_at_the_start(folder: Path, workspace: Workspace) -> None:
    with terminal(folder, workspace.root, f"{APP} --lang zh") as shown:
        shown.wait("enter open", "01 The first loop")
        shown.type(":")
        shown.wait("All that can be done")
        shown.type("lab: 01")
        shown.wait("▸ lab: 01 The first loop")
        shown.keys("Enter")
        shown.wait("step 1 of 12", "语言模型")


def test_an_ascii_terminal_gets_ascii(folder: Path, workspace: Workspace) -> None:
    labassist("run", JOB, "--profile", "tiny", cwd=workspace.root)
    with terminal(folder, workspace.root, APP, env={"LC_ALL": "C", "LANG": "C"}) as shown:
        assert shown.wait("enter open", "01 The first loop").isascii()
        shown.keys("r")
        assert shown.wait("+ finished", "step 120/120").isascii()
        shown.keys("l")
        assert shown.wait("Ledger  1 run").isascii()
        shown.keys("?")
        assert shown.wait("Keys").isascii()


@pytest.mark.fault
def test_two_apps_on_one_workspace_see_one_run(folder: Path, workspace: Workspace, leash: Leash) -> None:
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    with (
        terminal(folder / "a", workspace.root, APP, env=leash.env) as one,
        terminal(folder / "b", workspace.root, APP) as other,
    ):
        other.wait("enter open")
        start_tiny(one)
        one.wait("running")
        other.wait("Live:")
        other.keys("r")
        other.wait("running", "step ")
        leash.free()
        for shown in (one, other):
            shown.wait("✓ finished", "step 120/120", deadline=240)


@pytest.mark.fault
@pytest.mark.parametrize("term", ["screen", "linux", "vt100", "xterm-16color", "NO_COLOR"])
def test_poor_terminals_are_drawn_on(folder: Path, workspace: Workspace, term: str) -> None:
    """Every state is words and signs: what is read off the screen here has no colours in it."""
    started = f"NO_COLOR=1 {APP}" if term == "NO_COLOR" else f"TERM={term} {APP}"
    with terminal(folder, workspace.root, started) as shown:
        shown.wait("Welcome", "enter open", "01 The first loop")
        shown.keys("m")
        screen = shown.wait("Host", "memory", "where from")
        coloured = re.findall(
            r"\x1b\[[0-9;]*?((?:[34]8;[25]|[34][0-7])(?:;|m))", shown.tmux("capture-pane", "-p", "-e")
        )
        assert bool(coloured) is (term not in ("vt100", "NO_COLOR"))
        assert screen.isascii() is (term in ("linux", "vt100"))
        shown.keys("q")
        shown.wait("q quit")
        shown.keys("q")
        shown.wait("shell>")
        assert shown.flag("alternate_on") == "0"


def test_a_mouse_clicks_and_scrolls_unless_it_is_left_to_the_terminal(
    folder: Path, workspace: Workspace
) -> None:
    with terminal(folder, workspace.root, APP) as shown:
        shown.wait("enter open")
        assert shown.flag("mouse_any_flag") == "1"
        shown.keys("C-c")
        shown.wait("shell>")
        assert shown.flag("mouse_any_flag") == "0"
        for option in ("--no-mouse", "--slow-link"):
            shown.type(f"clear; {APP} {option}")
            shown.keys("Enter")
            shown.wait("enter open")
            assert shown.flag("mouse_any_flag") == "0"
            shown.keys("C-c")
            shown.wait("shell>")
