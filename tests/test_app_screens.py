"""The app's screens through Textual's pilot, over ledgers written by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from course_lab import write as write_lab
from held import hold
from pilot import SIZES, Written, play, shown, until, written_ledger  # noqa: F401 - a fixture
from textual.pilot import Pilot

from labassist.app.app import LabApp
from labassist.app.screens.choice import ChoiceScreen
from labassist.app.screens.course import CourseScreen
from labassist.app.screens.jobs import JobsScreen
from labassist.app.screens.lab import StepScreen
from labassist.app.widgets.chart import ChartView
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
