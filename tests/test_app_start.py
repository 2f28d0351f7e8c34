"""The app's start: what it refuses without a terminal or a language that can be drawn, and what it need not load."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from course_lab import write as write_lab
from pilot import SIZES, Written, play, shown, until, written_ledger  # noqa: F401 - a fixture
from textual.pilot import Pilot

from labassist.app.app import LabApp
from labassist.workspace import Workspace


def test_the_second_start_has_the_labs_in_its_first_frame(workspace: Workspace) -> None:
    write_lab(workspace)

    async def first(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "90 A small lab")

    async def second(pilot: Pilot[int], app: LabApp) -> None:
        app.desk.errands.drop("labs")
        assert "90 A small lab" in shown(app)

    play(workspace, first)
    play(workspace, second)


def start_without_terminal(workspace: Workspace, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "labassist"],
        cwd=workspace.root,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_terminal_it_refuses_with_the_mend(workspace: Workspace) -> None:
    refused = start_without_terminal(workspace)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "needs a terminal" in refused.stderr
    assert "labassist --help" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("term", "options", "said"),
    [
        ("dumb", (), b"cannot draw on this terminal"),
        ("", (), b"cannot draw on this terminal"),
        ("xterm", ("--ascii", "--lang", "zh"), b"Chinese texts cannot be drawn in ASCII; leave --ascii out"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    workspace: Workspace, term: str, options: tuple[str, ...], said: bytes
) -> None:
    import pty

    main, side = pty.openpty()
    try:
        refused = subprocess.run(
            [sys.executable, "-m", "labassist", *options],
            cwd=workspace.root,
            env={**os.environ, "TERM": term},
            stdin=side,
            stdout=side,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(main)
        os.close(side)
    assert refused.returncode == 2
    assert said in refused.stderr


def test_the_first_frame_needs_nothing_heavy(workspace: Workspace) -> None:
    code = """
import asyncio, sys
from pathlib import Path
from labassist.app.app import LabApp
from labassist.workspace import Workspace
HEAVY = ("torch", "transformers", "numpy", "git", "pynvml", "psutil", "tinydb", "msgspec")

async def main():
    app = LabApp(Workspace(Path(sys.argv[1])))
    app.desk.start = lambda: None
    async with app.run_test() as pilot:
        await pilot.pause()
        print([name for name in HEAVY if name in sys.modules])

async def whole():
    app = LabApp(Workspace(Path(sys.argv[1])))
    async with app.run_test() as pilot:
        while app.machine is None or app.runs is None:
            await pilot.pause(0.05)
        await pilot.press("l", "question_mark")
        await pilot.pause(0.7)
        print([name for name in ("torch", "transformers", "numpy", "git") if name in sys.modules])

asyncio.run(main())
asyncio.run(whole())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(workspace.root)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]
