"""A lab with faults in the app: its file is wrong, its check hangs, its run is gone; the screen goes on."""

from __future__ import annotations

import shutil

import pytest
from app_lab import begun, open_lab, to_step
from course_lab import CHECKS, FILES, record
from course_lab import write as write_lab
from pilot import play, until
from textual.pilot import Pilot

from labassist.app import words
from labassist.app.app import LabApp
from labassist.app.screens.course import CourseScreen
from labassist.app.screens.lab import StepScreen
from labassist.workspace import Workspace

pytestmark = pytest.mark.ci


def test_a_refused_guess_stays_to_be_mended_and_its_message_goes_at_the_next_key(
    workspace: Workspace,
) -> None:
    write_lab(workspace)
    begun(workspace, "bet")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await until(pilot, app, "step 2 of 5", "enter guess")
        await pilot.press("enter", *"7x", "enter", "n")
        await until(pilot, app, "! 90-small/bet: '7x' is no number", "7x", "enter guess   esc leave the line")
        await pilot.press("backspace")
        screen = await until(pilot, app, "enter guess   esc leave the line")
        assert "is no number" not in screen
        await pilot.press("enter")
        await until(pilot, app, "Your guess: 7 nats", "step 2 of 5")

    play(workspace, script)


def test_a_step_whose_run_failed_before_its_first_step_shows_its_last_words(workspace: Workspace) -> None:
    write_lab(workspace)
    begun(workspace, "plain")
    run = record(workspace, [], state="failed")
    folder = workspace.ledger / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").write_text("Traceback\nZeroDivisionError: division by zero\n")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await until(pilot, app, f"run {words.short(run)} printed", "ZeroDivisionError", "✗ failed")
        (folder / "log.txt").write_text("")
        await pilot.press("escape")
        await open_lab(pilot, app)
        await until(pilot, app, f"run {words.short(run)} printed nothing", "✗ failed")

    play(workspace, script)


@pytest.mark.fault
def test_a_lab_with_an_error_is_named_with_its_line_and_the_others_work(workspace: Workspace) -> None:
    write_lab(workspace)
    broken = write_lab(
        workspace, "91-broken", lab_toml=FILES["lab.toml"].replace('kind = "read"', 'kind = "reed"')
    )

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "90 A small lab", "✗ 91-broken")
        await pilot.press("end")
        screen = await until(pilot, app, "labs/91-broken/lab.toml:10", "did you mean read?")
        assert "enter open" not in screen
        await pilot.press("enter")
        await until(pilot, app, "read again", "did you mean read?")
        assert isinstance(app.screen, CourseScreen)
        await pilot.press("up", "enter")
        await until(pilot, app, "step 1 of 5", "Read this")
        await pilot.press("escape")
        await until(pilot, app, "✗ 91-broken")
        (broken / "lab.toml").write_text(FILES["lab.toml"])  # the mended file is seen without a key
        await until(pilot, app, "91 A small lab")

    play(workspace, script)


@pytest.mark.fault
@pytest.mark.parametrize(
    "fault",
    [
        "hangs",
        pytest.param("crashes", marks=pytest.mark.slow),
        pytest.param("syntax", marks=pytest.mark.slow),
    ],
)
def test_a_check_that_hangs_or_crashes_leaves_the_screen_alive(workspace: Workspace, fault: str) -> None:
    body = {
        "hangs": "    import time\n    time.sleep(1000)\n",
        "crashes": "    return [][7]\n",
        "syntax": "    return (\n",
    }[fault]
    write_lab(workspace, checks_py=CHECKS.partition("def double")[0] + f"def double(found):\n{body}")
    begun(workspace, "double")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await to_step(pilot, app, 5)
        await pilot.press("c")
        if fault == "hangs":
            await until(pilot, app, "c gives it up", "c give the check up")
            await pilot.press("c")
            await until(pilot, app, "the check was given up", "c check")
            assert not app.desk.errands.busy("check")
        else:
            screen = await until(pilot, app, "! ", "checks.py")
            assert "Traceback" not in screen
        await pilot.press("p")
        await until(pilot, app, "step 4 of 5")
        assert isinstance(app.screen, StepScreen)

    play(workspace, script)


@pytest.mark.fault
def test_a_run_deleted_under_the_lab_is_said(workspace: Workspace) -> None:
    write_lab(workspace)
    begun(workspace, "plain")
    run = record(workspace, [3.0, 2.0])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await to_step(pilot, app, 3)
        await until(pilot, app, "loss 2", f"run {words.short(run)}")
        shutil.rmtree(workspace.ledger / "runs" / run)
        await until(pilot, app, "its folder was taken away")
        await pilot.press("o")
        await until(pilot, app, "its folder is gone")

    play(workspace, script)
