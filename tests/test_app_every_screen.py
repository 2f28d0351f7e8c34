"""What holds on every screen: it fits, shows its way out, is ASCII where only that is drawn, and the help tells all."""

from __future__ import annotations

import pytest
from course_lab import write as write_lab
from pilot import SIZES, Written, play, shown, until, written_ledger  # noqa: F401 - a fixture
from textual.pilot import Pilot
from textual.widget import Widget

from labassist.app import actions
from labassist.app.app import LabApp
from labassist.app.screens.audit import AuditScreen
from labassist.app.screens.base import LabScreen
from labassist.app.screens.choice import ChoiceScreen
from labassist.app.screens.commands import CommandsScreen
from labassist.app.screens.compare import CompareScreen
from labassist.app.screens.course import CourseScreen
from labassist.app.screens.help import HelpScreen
from labassist.app.screens.jobs import JobsScreen
from labassist.app.screens.lab import StepScreen
from labassist.app.screens.ledger import LedgerScreen
from labassist.app.screens.machine import MachineScreen
from labassist.app.screens.run import RunScreen
from labassist.app.screens.where import WhereScreen
from labassist.app.widgets.chart import ChartView
from labassist.app.widgets.lines import Lines
from labassist.app.widgets.pager import Pager
from labassist.app.widgets.prompt import Prompt
from labassist.app.widgets.rows import Rows
from labassist.workspace import Workspace

WAYS = (
    ((), "q quit"),
    (("r",), "esc back"),
    (("2",), "esc back"),
    (("3",), "esc back"),
    (("4",), "esc back"),
    (("5",), "esc back"),
    (("6",), "esc back"),
    (("w",), "esc back"),
    (("escape", "l"), "esc back"),
    (("slash",), "esc leave the line"),
    (("escape", "space", "down", "d"), "esc back"),
    (("escape", "a"), "esc back"),
    (("escape", "m"), "esc back"),
    (("escape", "colon"), "esc back"),
    (("escape", "question_mark"), "esc back"),
    (("escape", "escape", "escape", "s"), "esc back"),
    (("end", "enter"), "esc back"),
    (("escape", "escape", "end", "enter"), "esc back"),
)
"""Keys that lead from screen to screen, and the way out that each then shows."""


@pytest.mark.parametrize(
    "size", [SIZES[0], *(pytest.param(size, marks=pytest.mark.slow) for size in SIZES[1:])], ids=str
)
def test_every_screen_fits_and_shows_its_way_out(written: Written, size: tuple[int, int]) -> None:
    write_lab(written.workspace)
    written.run(1, [3.0, 2.5])
    written.run(2, [3.0, 2.4])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "2 runs", "00 ")
        for keys, way_out in WAYS:
            await pilot.press(*keys)
            await until(pilot, app, way_out)
            await pilot.pause(0.3)
            screen = shown(app).splitlines()
            assert way_out in screen[-1], keys
            assert len(screen) == size[1]
            for widget in app.screen.query("*"):
                assert isinstance(widget, Widget)
                shows = isinstance(widget, (Lines, Rows, ChartView, Pager))
                if widget.display and shows and widget.region.area:
                    assert app.screen.region.contains_region(widget.region), (keys, widget)
        assert isinstance(app.screen, StepScreen)

    play(written.workspace, script, size)


def test_ascii_screens_are_ascii(written: Written) -> None:
    write_lab(written.workspace)
    written.run(1, [4.0 - step / 20 for step in range(40)], log="na\u00efve caf\u00e9\n")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        for keys, text in (
            ((), "90 A small lab"),
            (("r",), "na?ve caf?"),
            (("2",), "[2 log]"),
            (("3",), "[3 config]"),
            (("5",), "segments"),
            (("w",), "Where from"),
            (("escape", "l"), "+ finished"),
            (("a",), "Audit of run"),
            (("escape", "m"), "Host"),
            (("escape", "colon"), "All that can be done"),
            (("escape", "f1"), "Keys"),
            (("escape", "escape", "escape", "s"), "Jobs"),
            (("escape", "end", "enter"), "step 1 of 5"),
        ):
            await pilot.press(*keys)
            assert (await until(pilot, app, text)).isascii(), keys

    play(written.workspace, script, plain=True)


def test_too_small_a_terminal_says_so(workspace: Workspace) -> None:
    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "Welcome")
        await pilot.resize_terminal(30, 8)
        await until(pilot, app, "needs 40 by 10 cells")
        await pilot.resize_terminal(80, 24)
        await until(pilot, app, "Welcome", "enter open")

    play(workspace, script)


def test_the_help_lists_every_action() -> None:
    for action in actions.ACTIONS:
        assert action.help.endswith(".")
        assert len(action.help) <= 51  # one line at 80 columns
        for key in action.keys.split(","):
            assert key in actions.NAMES or len(key) == 1 or key.startswith(("f", "ctrl+", "left", "right"))
            assert key not in ("ctrl+a", "ctrl+b")  # those of screen and tmux


def test_the_help_says_what_is_copied_on_each_screen() -> None:
    said = {
        screen: next(one.help for one in actions.on(screen) if one.name == "copy")
        for screen in ("Lab", "Run", "Ledger")
    }
    assert "command" in said["Lab"] and "id" in said["Run"] and said["Run"] == said["Ledger"]


@pytest.mark.parametrize("width", [80, 160])
def test_no_sentence_of_the_help_is_cut(workspace: Workspace, width: int) -> None:
    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "0 runs")
        for part in (Rows, Pager, ChartView, Prompt):
            app.push_screen(HelpScreen(actions.EXPERIMENT, part.__new__(part)))
            screen = await until(pilot, app, "Keys", part.KEYS[-1][1])
            for action in actions.ACTIONS:
                assert action.help in screen or not set(action.screens) & set(actions.MAIN)
            assert "Experiment " in screen
            assert "~" not in screen.replace("job~train", "")
            await pilot.press("escape")

    play(workspace, script, (width, 250))


CLASSES: dict[str, type[LabScreen]] = {
    screen.NAME: screen
    for screen in (
        CourseScreen,
        StepScreen,
        JobsScreen,
        ChoiceScreen,
        RunScreen,
        LedgerScreen,
        CompareScreen,
        AuditScreen,
        MachineScreen,
        WhereScreen,
        CommandsScreen,
        HelpScreen,
    )
}


@pytest.mark.parametrize("name", CLASSES)
def test_every_action_of_the_registry_can_be_done(name: str) -> None:
    for action in actions.on(name):
        assert callable(getattr(CLASSES[name], f"action_{action.method}"))
    keys = [key for action in actions.on(name) for key in action.keys.split(",")]
    assert len(keys) == len(set(keys))
