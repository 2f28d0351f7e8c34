"""What may happen to the app while it is open: sizes that change, runs that vanish, a ledger that others write."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys

import pytest
from pilot import Written, play, shown, until, written_ledger  # noqa: F401 - a fixture
from textual.pilot import Pilot

from labassist.app.app import LabApp
from labassist.app.pace import NORMAL, SLOW
from labassist.app.screens.help import HelpScreen
from labassist.app.screens.lab import StepScreen
from labassist.app.screens.ledger import LedgerScreen
from labassist.app.screens.run import RunScreen
from labassist.app.widgets.chart import ChartView
from labassist.ledger.store import Ledger
from labassist.workspace import Workspace

pytestmark = [pytest.mark.fault, pytest.mark.ci]

STORM = 30
"""Sizes that a screen is given one right after the other."""


SCREENS = [
    ((), "2 runs"),
    pytest.param(("r",), "✓ finished", marks=pytest.mark.slow),
    (("l", "space", "down", "d"), "u next series"),
    pytest.param(("r", "2"), "[2 log]", marks=pytest.mark.slow),
    pytest.param(("l",), "Ledger  2 runs", marks=pytest.mark.slow),
    pytest.param(("m",), "Host", marks=pytest.mark.slow),
]
"""Keys that lead to a screen, and what it then shows."""


@pytest.mark.parametrize(("keys", "shows"), SCREENS, ids=str)
def test_a_storm_of_resizes_ends_in_a_whole_screen(
    written: Written, keys: tuple[str, ...], shows: str
) -> None:
    written.run(1, [4.0 - step / 20 for step in range(40)], log="a line\n" * 50)
    written.run(2, [3.0])
    sizes = random.Random(7)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "2 runs")
        await pilot.press(*keys)
        before = await until(pilot, app, shows)
        for _ in range(STORM):
            await pilot.resize_terminal(sizes.randrange(1, 200), sizes.randrange(1, 60))
        await pilot.resize_terminal(80, 24)
        last = before.splitlines()[-1].split("   ")[-1].strip()
        screen = await until(pilot, app, last)
        lines = screen.splitlines()
        assert lines[0].split()[:1] == before.splitlines()[0].split()[:1]
        assert len(lines) == 24
        assert all(len(line) <= 80 for line in lines)

    play(written.workspace, script)


@pytest.mark.parametrize("what", ["record", "folder"])
def test_a_run_deleted_under_its_screen_is_said_and_what_was_read_stays(written: Written, what: str) -> None:
    run = written.run(1, [3.0, 2.5, 2.0])
    written.run(2, [3.0])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "2 runs")
        await pilot.press("l")
        await until(pilot, app, "▸ abc002")
        await pilot.press("down", "enter")
        await until(pilot, app, "run abc001", "✓ finished", "loss 2")
        if what == "record":
            with Ledger.open(written.workspace.ledger) as ledger:
                ledger.runs.remove(doc_ids=[1])
                assert ledger.run(run) is None
        else:
            shutil.rmtree(written.workspace.ledger / "runs" / run)
        screen = await until(pilot, app, f"its {what} is gone", f"its {what} was taken away")
        assert app.screen.query_one(ChartView).chart.at(3) == 2.0
        assert ("r replay" in screen) is (what == "folder")
        await pilot.press("2", "3", "4", "5", "6", "1", "w")
        await until(pilot, app, "Where from")
        await pilot.press("escape", "a")  # what has no record is not audited
        if what == "folder":
            await until(pilot, app, "Audit of run abc001", "missing")
            await pilot.press("escape")
        await pilot.press("escape")
        await until(pilot, app, "Ledger  1 run" if what == "record" else "Ledger  2 runs")

    play(written.workspace, script)


def test_a_ledger_that_another_process_writes_is_followed(written: Written) -> None:
    written.run(1, [3.0])
    code = """
import sys
from pathlib import Path
from labassist.ledger.store import Ledger
with Ledger.open(Path(sys.argv[1])) as ledger:
    first = ledger.runs.all()[0]
    for number in range(2, 301):
        ledger.write("start", {**first, "id": f"20260102-{number:06d}-{number:06x}"})
        if number % 50 == 0:
            ledger.save_view()
"""

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("l")
        await until(pilot, app, "Ledger  1 run", "▸ abc001")
        writer = subprocess.Popen([sys.executable, "-c", code, str(written.workspace.ledger)])
        while writer.poll() is None:
            await pilot.press("s")
            await pilot.pause(0.05)
        screen = await until(pilot, app, "Ledger  300 runs")
        assert "! " not in screen
        assert writer.returncode == 0
        assert app.screen.query_one("Rows").here["id"].endswith("abc001")  # type: ignore[attr-defined]

    play(written.workspace, script)


def test_a_ledger_taken_away_altogether_is_said(written: Written) -> None:
    written.run(1, [3.0])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        shutil.rmtree(written.workspace.ledger)
        screen = await until(pilot, app, "the ledger was moved or deleted; put it")
        assert "internal error" not in screen
        await pilot.press("l", "enter")
        await pilot.pause(0.5)
        assert "internal error" not in shown(app)

    play(written.workspace, script)


@pytest.mark.fault
def test_a_workspace_taken_away_is_said_and_one_that_comes_back_is_gone_on_with(written: Written) -> None:
    written.run(1, [3.0])
    root = written.workspace.root

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        away = root.rename(root.with_name("away"))
        await until(pilot, app, "the workspace was moved or deleted; put it back")
        away.rename(root)
        written.run(2, [2.0])
        await until(pilot, app, "2 runs")

    play(written.workspace, script)


def test_a_slow_link_looks_and_draws_seldom(workspace: Workspace) -> None:
    assert SLOW.look > 3 * NORMAL.look
    assert SLOW.chart > 3 * NORMAL.chart
    app = LabApp(workspace, slow=True)
    assert app.pace is SLOW
    assert app.animation_level == "none"


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8])
def test_a_screen_taken_away_before_its_parts_came_is_no_error(written: Written, turns: int) -> None:
    run = written.run(1, [3.0])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        for screen in (LedgerScreen(), RunScreen(run), StepScreen("01-first-loop"), HelpScreen("lab", None)):
            app.push_screen(screen)
            for _ in range(turns):  # of the loop: so far has the screen come
                await asyncio.sleep(0)
            app.pop_screen()
            await until(pilot, app, "enter open")

    play(written.workspace, script)
