"""The app's screens through Textual's pilot, over ledgers written by hand."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widget import Widget

from labassist.app import actions
from labassist.app.app import LabApp
from labassist.app.screens.base import LabScreen
from labassist.app.screens.choice import ChoiceScreen
from labassist.app.screens.course import CourseScreen
from labassist.app.screens.ledger import LedgerScreen
from labassist.app.screens.run import RunScreen
from labassist.app.widgets.chart import ChartView
from labassist.app.widgets.lines import Lines
from labassist.app.widgets.rows import Rows
from labassist.ledger.environment import machine
from labassist.ledger.store import Ledger
from labassist.runs import life
from labassist.workspace import Workspace

SIZES = [(80, 24), (160, 50), (60, 15)]


def document(number: int, **more: Any) -> dict[str, Any]:
    """A finished run of the first lab's job."""
    here = machine()
    return {
        "id": f"20260101-0000{number:02d}-abc{number:03d}",
        "job": "01-first-loop/train",
        "kind": "job",
        "state": "finished",
        "mode": "exact",
        "seed": 1337,
        "created": "2026-01-01T00:00:00.000Z",
        "ended": "2026-01-01T00:01:00.000Z",
        "argv": ["python", "labs/01-first-loop/train.py"],
        "cwd": ".",
        "machine": {"id": here.id, "host": here.host},
        "code": {"vcs": "git", "commit": "c0ffee" * 6 + "c0ff", "digest": "0" * 64},
        "schema": 1,
        "profile": "tiny",
        "config": {"optim.lr": 10.0**-number, "clip": 1.0},
        "step": 40,
        "total_steps": 40,
        "exit": 0,
        "seconds": 60.0,
        "last": {"loss": 2.5},
        **more,
    }


class Written:
    """A workspace whose ledger a test fills; what it locks stays locked until the end of the test."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.locks: list[int] = []

    def run(self, number: int, losses: list[float] | None = None, log: str = "", **more: Any) -> str:
        """Write a run with a curve and a log."""
        row = document(number, **more)
        with Ledger.open(self.workspace.ledger, create=True) as ledger:
            folder = ledger.run_folder(row["id"])
            folder.mkdir(parents=True)
            (folder / "alive").touch()
            if row["state"] == "running":
                row["machine"]["inode"] = (folder / "alive").stat().st_ino
                del row["ended"], row["exit"]
            self.append(row["id"], 1, losses or [])
            (folder / "log.txt").write_text(log)
            ledger.write("start", row)
        return str(row["id"])

    def append(self, run: str, first: int, losses: list[float]) -> None:
        """Write more of a curve."""
        with (self.workspace.ledger / "runs" / run / "metrics-rank0.jsonl").open("a") as file:
            for step, loss in enumerate(losses, first):
                file.write(
                    json.dumps({"step": step, "t": step / 10, "loss": loss, "grad_norm": 0.5, "lr": 0.001})
                    + "\n"
                )

    def live(self, number: int, losses: list[float], **more: Any) -> str:
        """Write a run that lives: its two locks are held by this process."""
        run = self.run(number, losses, state="running", **more)
        folder = self.workspace.ledger / "runs" / run
        for name in ("alive", "supervised"):
            lock = life.take(folder / name)
            assert lock is not None
            self.locks.append(lock)
        return run


@pytest.fixture
def written(workspace: Workspace) -> Iterator[Written]:
    made = Written(workspace)
    yield made
    for lock in made.locks:
        os.close(lock)


Script = Callable[[Pilot[int], LabApp], Awaitable[None]]


def play(
    workspace: Workspace, script: Script, size: tuple[int, int] = (80, 24), *, plain: bool = False
) -> None:
    """Run the app headless and let the script press its keys."""

    async def main() -> None:
        app = LabApp(workspace, plain=plain)
        async with app.run_test(size=size) as pilot:
            await script(pilot, app)

    asyncio.run(main())


def shown(app: LabApp) -> str:
    """Return the screen as text."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


async def until(pilot: Pilot[int], app: LabApp, *texts: str, deadline: float = 30.0) -> str:
    """Wait until the screen shows every text, and return it."""
    end = time.monotonic() + deadline
    while True:
        screen = shown(app)
        if all(text in screen for text in texts):
            return screen
        assert time.monotonic() < end, f"{texts} did not appear:\n{screen}"
        await pilot.pause(0.05)


def test_a_first_start_greets_and_offers_the_smallest_profile(workspace: Workspace) -> None:
    async def script(pilot: Pilot[int], app: LabApp) -> None:
        screen = await until(pilot, app, "Welcome", "enter run", "0 runs", "01-first-loop/train")
        assert "o open run" not in screen
        await pilot.press("enter")
        await until(pilot, app, "with which numbers?", "▸ tiny", "laptop", "gpu", "steps 120")
        await pilot.press("q")
        await until(pilot, app, "Welcome")
        assert isinstance(app.screen, CourseScreen)

    play(workspace, script)


def test_after_a_finished_run_the_default_profile_is_offered(written: Written) -> None:
    written.run(1, [3.0, 2.5])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        screen = await until(pilot, app, "1 run", "✓ 01-first-loop/train", "2.5", "last finished")
        assert "Welcome" not in screen
        await pilot.press("r")
        await until(pilot, app, "▸ laptop")

    play(written.workspace, script)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_run_is_shown_whole_at_each_size(written: Written, size: tuple[int, int]) -> None:
    run = written.run(1, [4.0 - step / 20 for step in range(40)], log="hello from the trainer\n")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("o")
        screen = await until(
            pilot, app, "run abc001", "✓ finished", "step 40/40", "grad norm", "falling", "y replay"
        )
        assert ("hello from the trainer" in screen) is (size[1] > 20)
        assert "s stop" not in screen
        assert all(len(line) <= size[0] for line in screen.splitlines())
        chart = app.screen.query_one(ChartView).chart
        assert chart.at(40) == pytest.approx(2.05)
        assert run.endswith("abc001")

    play(written.workspace, script, size)


def test_a_live_run_grows_and_is_found_again(written: Written) -> None:
    run = written.live(1, [4.0, 3.9, 3.8])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "Live: abc001", "step 3/40", "loss 3.8")
        await pilot.press("o")
        await until(pilot, app, "▸ running", "step 3/40", "s stop after checkpoint")
        written.append(run, 4, [3.5] * 30)
        await until(pilot, app, "step 33/40", "loss 3.5", "left")
        await pilot.press("question_mark")
        await until(pilot, app, "Keys")
        written.append(run, 34, [1.25] * 5)
        await pilot.pause(1.2)
        await pilot.press("escape")
        await until(pilot, app, "step 38/40")
        assert app.screen.query_one(ChartView).chart.at(34) == 1.25  # nothing was missed behind the help

    play(written.workspace, script)


def test_a_repeated_step_and_a_spike_are_both_there(written: Written) -> None:
    losses = [2.0] * 5000
    losses[2500] = 9.0
    written.run(1, losses, total_steps=5000, step=5000)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("o")
        await until(pilot, app, "step 5,000/5,000", "9 ")
        assert app.screen.query_one(ChartView).chart.at(2501) == 9.0

    play(written.workspace, script)


def test_a_copied_ledger_says_since_when_a_run_is_unseen(written: Written, tmp_path: Path) -> None:
    written.live(1, [4.0, 3.9])
    copy = tmp_path / "copy"
    shutil.copytree(written.workspace.root, copy)
    before = {path: path.stat().st_mtime_ns for path in (copy / "ledger").rglob("*")}

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        screen = await until(pilot, app, "1 run")
        assert "Live:" not in screen
        await pilot.press("o")
        screen = await until(pilot, app, "unseen since 202", "step 2/40")
        assert "s stop" not in screen
        assert "y replay" not in screen
        await pilot.press("l")
        await until(pilot, app, "? unseen")
        await pilot.pause(1.2)

    play(Workspace(copy), script)
    with Ledger.open(copy / "ledger") as ledger:
        assert ledger.runs.all()[0]["state"] == "running"
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.fault
def test_a_read_only_ledger_is_shown_and_left_alone(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.run(1, [3.0, 2.5])
    written.run(2, [3.0], state="running")  # its trainer is dead, and nobody may close it here
    monkeypatch.setattr(Ledger, "readonly", property(lambda self: True))
    before = (written.workspace.ledger / "journal.jsonl").read_bytes()

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        screen = await until(pilot, app, "2 runs", "read-only: nothing is written")
        assert "enter run" not in screen
        await pilot.press("enter", "l")
        await until(pilot, app, "? not closed", "✓ finished", "read-only")
        await pilot.press("down")
        screen = await until(pilot, app, "/ find")
        assert "r replay" not in screen
        await pilot.press("enter")
        screen = await until(pilot, app, "✓ finished", "read-only")
        assert "y replay" not in screen

    play(written.workspace, script)
    assert (written.workspace.ledger / "journal.jsonl").read_bytes() == before


def test_the_ledger_finds_opens_and_goes_back(written: Written) -> None:
    for number in range(1, 6):
        written.run(number, [3.0], state="failed" if number == 3 else "finished", reason="exit status 1")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "5 runs")
        await pilot.press("l")
        screen = await until(pilot, app, "Ledger  5 runs", "✗ failed")
        assert screen.index("abc005") < screen.index("abc001")  # the newest first
        await pilot.press("slash", *"lr<0.05 failed".replace(" ", "_"))
        line = app.screen.query_one("#find")
        line.value = "lr<0.05 failed"  # type: ignore[attr-defined]
        await pilot.press("enter")
        screen = await until(pilot, app, "1 of 5 runs", "find: lr<0.05 failed", "▸ abc003")
        assert "abc004" not in screen
        await pilot.press("enter")
        await until(pilot, app, "run abc003", "✗ failed: exit status 1")
        await pilot.press("q")
        await until(pilot, app, "1 of 5 runs")
        await pilot.press("escape")
        await until(pilot, app, "Ledger  5 runs")
        await pilot.press("slash", *"lr", "greater_than_sign", *"x", "enter")
        await until(pilot, app, "is not a number")
        await pilot.press("escape", "q")
        await until(pilot, app, "enter run")

    play(written.workspace, script)


def test_a_key_before_the_ledger_is_read_waits_for_it(written: Written) -> None:
    written.run(1, [3.0])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await pilot.press("l")
        await until(pilot, app, "Ledger  1 run", "abc001")

    play(written.workspace, script)


def test_ten_thousand_rows_paint_only_those_on_the_screen(workspace: Workspace) -> None:
    with Ledger.open(workspace.ledger, create=True) as ledger:
        ledger.runs.insert_multiple(
            [{**document(1), "id": f"20260101-{at:06d}-{at:06x}"} for at in range(10_000)]
        )

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "10,000 runs")
        made = 0
        cells = LedgerScreen._cells

        def counted(self: LedgerScreen, run: Any) -> Any:
            nonlocal made
            made += 1
            return cells(self, run)

        LedgerScreen._cells = counted  # type: ignore[method-assign, assignment]
        try:
            await pilot.press("l")
            await until(pilot, app, "Ledger  10,000 runs", f"{9_999:06x}")
            await pilot.press("end")
            await until(pilot, app, "at 10,000", "000000")
        finally:
            LedgerScreen._cells = cells  # type: ignore[method-assign]
        assert made < 500

    play(workspace, script)


def test_a_refused_start_says_why_in_one_line(workspace: Workspace) -> None:
    shutil.rmtree(workspace.root / ".git")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "Welcome")
        await pilot.press("enter", "enter")
        await until(pilot, app, "starting 01-first-loop/train")
        screen = await until(pilot, app, "! ", "git")
        assert "Traceback" not in screen
        assert isinstance(app.screen, CourseScreen)

    play(workspace, script)


def test_a_broken_job_file_is_one_row_and_not_the_end(workspace: Workspace) -> None:
    (workspace.labs / "01-first-loop" / "train.toml").write_text("steps = \n")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "0 runs")
        screen = await until(pilot, app, "✗ 01-first-loop/train", "train.toml")
        assert "enter run" not in screen

    play(workspace, script)


def test_a_damaged_ledger_is_said(written: Written) -> None:
    written.run(1)
    (written.workspace.ledger / "view.json").unlink(missing_ok=True)
    journal = written.workspace.ledger / "journal.jsonl"
    journal.write_bytes(b"0" * 64 + journal.read_bytes()[64:])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "! ", "journal.jsonl")

    play(written.workspace, script)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_screen_fits_and_shows_its_way_out(written: Written, size: tuple[int, int]) -> None:
    written.run(1, [3.0, 2.5])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        for keys, way_out in (
            ((), "q quit"),
            (("o",), "esc back"),
            (("l",), "esc back"),
            (("question_mark",), "esc back"),
        ):
            await pilot.press(*keys)
            await until(pilot, app, way_out)
            await pilot.pause(0.3)
            screen = shown(app).splitlines()
            assert way_out in screen[-1]
            assert len(screen) == size[1]
            for widget in app.screen.query("*"):
                assert isinstance(widget, Widget)
                if widget.display and isinstance(widget, (Lines, Rows, ChartView)) and widget.region.area:
                    assert app.screen.region.contains_region(widget.region)

    play(written.workspace, script, size)


def test_ascii_screens_are_ascii(written: Written) -> None:
    written.run(1, [4.0 - step / 20 for step in range(40)], log="na\u00efve caf\u00e9\n")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        for keys, text in (
            ((), "+ 01-first"),
            (("o",), "na?ve caf?"),
            (("l",), "+ finished"),
            (("f1",), "Keys"),
        ):
            await pilot.press(*keys)
            assert (await until(pilot, app, text)).isascii()

    play(written.workspace, script, plain=True)


def test_too_small_a_terminal_says_so(workspace: Workspace) -> None:
    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "Welcome")
        await pilot.resize_terminal(30, 8)
        await until(pilot, app, "needs 40 by 10 cells")
        await pilot.resize_terminal(80, 24)
        await until(pilot, app, "Welcome", "enter run")

    play(workspace, script)


def test_the_help_lists_every_action() -> None:
    for action in actions.ACTIONS:
        assert action.help.endswith(".")
        assert len(action.help) <= 54  # one line at 80 columns
        for key in action.keys.split(","):
            assert key in actions.NAMES or len(key) == 1 or key.startswith(("f", "ctrl+"))
            assert key not in ("ctrl+a", "ctrl+b")  # those of screen and tmux


@pytest.mark.parametrize("name", [actions.COURSE, actions.RUN, actions.LEDGER, actions.HELP, actions.CHOICE])
def test_every_action_of_the_registry_can_be_done(name: str) -> None:
    classes: dict[str, type[LabScreen]] = {
        actions.COURSE: CourseScreen,
        actions.RUN: RunScreen,
        actions.LEDGER: LedgerScreen,
        actions.CHOICE: ChoiceScreen,
    }
    screen = classes.get(name, LabScreen)
    for action in actions.on(name):
        assert callable(getattr(screen, f"action_{action.name}"))
    keys = [key for action in actions.on(name) for key in action.keys.split(",")]
    assert len(keys) == len(set(keys))


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


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_is_refused(workspace: Workspace, term: str) -> None:
    import pty

    main, side = pty.openpty()
    try:
        refused = subprocess.run(
            [sys.executable, "-m", "labassist"],
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
    assert b"cannot draw on this terminal" in refused.stderr


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
