"""The app's screens through Textual's pilot, over ledgers written by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from course_lab import write as write_lab
from held import hold
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
from labassist.ledger.store import Ledger
from labassist.workspace import Workspace


def test_a_first_start_greets_and_enter_opens_the_first_lab(workspace: Workspace) -> None:
    write_lab(workspace)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        screen = await until(pilot, app, "Welcome", "enter open", "0 runs", "90 A small lab")
        assert "r open run" not in screen
        await pilot.press("enter")
        await until(pilot, app, "step 1 of ", "▸")
        assert isinstance(app.screen, StepScreen)
        await pilot.press("q")
        await until(pilot, app, "Welcome")
        assert isinstance(app.screen, CourseScreen)

    play(workspace, script)


def test_the_second_start_has_the_labs_in_its_first_frame(workspace: Workspace) -> None:
    write_lab(workspace)

    async def first(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "90 A small lab")

    async def second(pilot: Pilot[int], app: LabApp) -> None:
        app.desk.errands.drop("labs")
        assert "90 A small lab" in shown(app)

    play(workspace, first)
    play(workspace, second)


def test_a_job_is_started_without_a_lab_and_a_gpu_is_not_offered(workspace: Workspace) -> None:
    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "s start a job", "CPU")
        await pilot.press("s")
        await until(pilot, app, "Jobs", "01-first-loop/train", "enter run")
        app.screen.query_one(Rows)._go(_job(app, "01-first-loop/train"))
        await pilot.press("enter")
        await until(pilot, app, "with which numbers?", "▸ tiny", "laptop", "steps 120")
        if app.machine and not app.machine.sample.gpus:
            screen = await until(pilot, app, "needs a GPU: ")
            assert "steps 5,000" not in screen
            await pilot.press("end")
            screen = await until(pilot, app, "▸ gpu")
            assert "enter start" not in screen
            await pilot.press("enter")
            assert isinstance(app.screen, ChoiceScreen)

    play(workspace, script)


def _job(app: LabApp, name: str) -> int:
    return next(at for at, row in enumerate(app.screen.query_one(Rows).rows) if row.name == name)


def test_after_a_finished_run_the_default_profile_is_offered(written: Written) -> None:
    written.run(1, [3.0, 2.5])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        screen = await until(pilot, app, "1 run")
        assert "Welcome" not in screen
        await pilot.press("s")
        await until(pilot, app, "✓ 01-first-loop/train", "2.5")
        app.screen.query_one(Rows)._go(_job(app, "01-first-loop/train"))
        await until(pilot, app, "last finished")
        await pilot.press("r")
        await until(pilot, app, "▸ laptop")

    play(written.workspace, script)


@pytest.mark.parametrize("width", [80, 100, 112, 124, 160])
def test_names_are_whole_at_every_width(written: Written, width: int) -> None:
    write_lab(written.workspace)
    written.run(1, [3.0])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "· 90 A small lab ", "1 run")
        assert ("For tests " in shown(app).partition("───")[0]) is (width >= 124)
        await pilot.press("s")
        await until(pilot, app, "00-should-you-train/decide ")
        await pilot.press("escape", "l")
        await until(pilot, app, "01-first-loop/train ")

    play(written.workspace, script, (width, 24))


def test_the_ledger_says_at_80_columns_which_runs_are_replays_or_went_on(written: Written) -> None:
    first = written.run(1, [3.0])
    written.run(2, [3.0], resumed_from={"run": first, "step": 1})
    written.run(3, [3.0], replay_of=first)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "3 runs")
        await pilot.press("l")
        await until(pilot, app, "resumed from abc001 ", "replay of abc001 ", "01-first-loop/train ")

    play(written.workspace, script)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_run_is_shown_whole_at_each_size(written: Written, size: tuple[int, int]) -> None:
    run = written.run(1, [4.0 - step / 20 for step in range(40)], log="hello from the trainer\n")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("r")
        screen = await until(
            pilot, app, "run abc001", "✓ finished", "step 40/40", "grad norm", "falling", "r replay"
        )
        assert ("hello from the trainer" in screen) is (size[1] > 20)
        assert "s stop" not in screen
        assert all(len(line) <= size[0] for line in screen.splitlines())
        chart = app.screen.query_one(ChartView).chart
        assert chart.at(40) == pytest.approx(2.05)
        assert run.endswith("abc001")

    play(written.workspace, script, size)


def test_a_held_out_loss_is_drawn_beside_the_loss_at_every_evaluation(written: Written) -> None:
    run = written.run(1, [4.0 - step / 20 for step in range(40)])
    with (written.workspace.ledger / "runs" / run / "metrics-rank0.jsonl").open("a") as file:
        for step in (10, 20, 30, 40):
            file.write(f'{{"step": {step}, "t": 4.1, "eval_loss": {4.0 - step / 40}}}\n')
        file.write('{"step": 40, "t": 4.2, "val_loss": 3.1}\n')

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("r")
        await until(
            pilot, app, "loss ⠒⠒ 2.05  eval loss ⠒ ⠒ 3", "val loss 3.1", "held-out loss 3 (step", "its best"
        )
        drawn = app.screen.query_one(ChartView).chart
        assert [drawn.at(step, "eval loss") for step in (10, 20, 30, 40)] == [3.75, 3.5, 3.25, 3.0]

    play(written.workspace, script, (160, 50))


@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=str)
def test_a_run_without_a_curve_gives_its_room_to_the_log(written: Written, size: tuple[int, int]) -> None:
    run = written.run(1, log="".join(f"line {number}\n" for number in range(12)), last={})
    folder = written.workspace.ledger / "runs" / run
    (folder / "metrics-rank0.jsonl").write_text('{"step": 1, "t": 0.1, "wrong": 9.0, "low_percent": 8.1}\n')

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("r")
        screen = await until(pilot, app, run[-6:], "wrong 9", "low_percent 8.1", "line 11")
        assert "line 3" in screen, screen
        assert "v average" not in screen and "next series" not in screen

    play(written.workspace, script, size)


def test_a_job_that_lives_and_has_no_step_yet_says_so_and_a_command_does_not(written: Written) -> None:
    written.live(1, [], last={}, step=0)
    written.live(2, [], last={}, step=0, kind="command")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "2 runs")
        await pilot.press("r")
        screen = await until(pilot, app, "run abc002", "▸ running")
        assert "no step yet" not in screen
        await pilot.press("escape", "l", "down", "enter")
        await until(pilot, app, "run abc001", "no step yet: it is getting ready")

    play(written.workspace, script)


def test_a_run_without_a_loss_draws_what_it_has(written: Written) -> None:
    run = written.run(1, last={})
    folder = written.workspace.ledger / "runs" / run
    rows = [f'{{"step": {at}, "t": {at}, "bytes": {at * 3.0}}}\n' for at in range(1, 4)]
    (folder / "metrics-rank0.jsonl").write_text("".join(rows))

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("r")
        await until(pilot, app, "bytes 9", "v average")
        assert app.screen.query_one(ChartView).chart.at(3, "bytes") == 9.0

    play(written.workspace, script)


def test_a_live_run_grows_and_is_found_again(written: Written) -> None:
    run = written.live(1, [4.0, 3.9, 3.8])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "Live: abc001", "step 3/40", "loss 3.8")
        await pilot.press("r")
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
        await pilot.press("r")
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
        await pilot.press("r")
        screen = await until(pilot, app, "unseen since 202", "step 2/40")
        assert "s stop" not in screen
        assert "r replay" not in screen
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
    # A command of its own would not know that: it may write here.
    monkeypatch.setattr(LabApp, "read_course", lambda self: None)
    before = (written.workspace.ledger / "journal.jsonl").read_bytes()

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        screen = await until(pilot, app, "2 runs", "read-only: nothing is written")
        assert "enter run" not in screen
        app.course = {
            "week": 1,
            "weeks": 7,
            "hours": 120.0,
            "plan_hours": 130.0,
            "money": 1234.5,
            "labs": [],
            "next": "",
        }
        app.screen.refresh_lines()  # type: ignore[attr-defined]
        assert "read-only: nothing is written" in await until(pilot, app, "120.0 of ~130 h")
        app.course = None
        await pilot.press("enter", "l")
        await until(pilot, app, "? unclosed", "✓ finished", "read-only")
        await pilot.press("down")
        screen = await until(pilot, app, "/ find")
        assert "r replay" not in screen
        await pilot.press("enter")
        screen = await until(pilot, app, "✓ finished", "read-only")
        assert "r replay" not in screen

    play(written.workspace, script)
    assert (written.workspace.ledger / "journal.jsonl").read_bytes() == before


def test_a_refused_start_says_why_in_one_line(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(workspace.root / ".git")
    go = hold("run", tmp_path, monkeypatch)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "Welcome")
        await pilot.press("s")
        await until(pilot, app, "01-first-loop/train")
        app.screen.query_one(Rows)._go(_job(app, "01-first-loop/train"))
        await pilot.press("enter", "enter")
        await until(pilot, app, "starting 01-first-loop/train")
        go.touch()
        screen = await until(pilot, app, "! ", "git")
        assert "Traceback" not in screen
        assert isinstance(app.screen, JobsScreen)

    play(workspace, script)


def test_a_broken_job_file_is_one_row_with_its_runs_and_not_the_end(written: Written) -> None:
    workspace = written.workspace
    (workspace.labs / "01-first-loop" / "train.toml").write_text("steps = \n")
    written.run(1, [3.0, 2.5])
    written.run(2, [3.0, 2.5])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "2 runs")
        await pilot.press("s")
        screen = await until(pilot, app, "✗ 01-first-loop/train")
        (row,) = [line for line in screen.splitlines() if "01-first-loop/train" in line]
        assert row.split()[-3:] == ["2", "2.5", "-"]
        app.screen.query_one(Rows)._go(_job(app, "01-first-loop/train"))
        screen = await until(pilot, app, "train.toml")
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
