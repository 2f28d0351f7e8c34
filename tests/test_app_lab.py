"""The lab's screen through the pilot: a step is read, guessed at, run, edited and checked by keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from app_lab import begun, open_lab, to_step
from course_lab import CHECKS, DOUBLE, FILES, loaded, record
from course_lab import write as write_lab
from held import hold
from pilot import play, until
from textual.pilot import Pilot

from labassist.app import words
from labassist.app.app import LabApp
from labassist.app.editor import argv
from labassist.app.screens.course import CourseScreen
from labassist.app.widgets.chart import ChartView
from labassist.course import progress
from labassist.course.load import step_of
from labassist.errors import InputError
from labassist.ledger.store import Ledger
from labassist.workspace import Workspace

pytestmark = pytest.mark.ci


def test_reading_guessing_and_going_on(workspace: Workspace) -> None:
    write_lab(workspace)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        screen = await until(pilot, app, "step 1 of 5  ▸····", "Read this", "n read, next")
        assert "c check" not in screen
        await pilot.press("n")
        screen = await until(pilot, app, "step 2 of 5  ✓▸···", "Predict first: How low?", "enter guess")
        assert "n next" not in screen
        await pilot.press("n")
        await until(pilot, app, "step 2 of 5", "its question has no answer yet: enter answers; : goes to any")
        await pilot.press("enter")
        await until(pilot, app, "enter guess   esc leave the line")
        await pilot.press(*"2.5", "enter")
        await until(pilot, app, "Your guess: 2.5 nats", "n next")
        await pilot.press("n")
        await until(pilot, app, "step 3 of 5", "$ labassist run 90-small/train --profile tiny", "space run")
        await pilot.press("n")
        await until(pilot, app, "step 3 of 5", "it has no run yet: space runs it; : goes to any step")
        await pilot.press("p", "p")
        await until(pilot, app, "step 1 of 5", "n next")
        await pilot.press("escape")
        await until(pilot, app, "▸ 2-3   ▸ 90 A small lab", "2/5", "next step 3 of 5")
        assert isinstance(app.screen, CourseScreen)

    play(workspace, script)


def test_keys_pressed_while_something_is_kept_are_taken_when_it_is(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lab(workspace)
    go = hold("run", tmp_path, monkeypatch)

    async def reads_and_guesses(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await until(pilot, app, "step 1 of 5", "n read, next")
        await pilot.press("n", "enter")
        await until(pilot, app, "step 2 of 5", "enter guess   esc leave the line")
        await pilot.press(*"2,5", "enter", "n")
        await until(pilot, app, "step 3 of 5", "$ labassist run 90-small/train --profile tiny")
        await to_step(pilot, app, 4)
        for key in ("a", "h", "b", "space"):
            app.simulate_key(key)  # all at once, as a slow machine gets them
        await until(pilot, app, "Your guess: a, fall", "hint 1 of 3  a nudge", "starting labassist run")
        go.touch()

    play(workspace, reads_and_guesses)


def test_a_run_is_locked_until_a_letter_is_pressed_and_its_check_shows_the_criteria(
    workspace: Workspace,
) -> None:
    write_lab(workspace)
    begun(workspace, "fast")
    record(workspace, [2.0, 1.5], **{"optim.lr": 2.0})

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        screen = await until(pilot, app, "step 4 of 5", "[a] fall  [b] rise", "a b guess")
        assert "space run" not in screen
        assert "c check" not in screen
        await pilot.press("space", "c")  # nothing: the guess comes first
        await pilot.press("b")
        await until(pilot, app, "Your guess: b, rise", "c check", "run again")
        assert app.screen.query_one(ChartView).chart.at(2) == 1.5
        await pilot.press("left", "left")
        await until(pilot, app, "step 1  loss 2.0")
        await pilot.press("c")
        await until(pilot, app, "Check ✓ the loss falls", "expected below 2.0", "got 1.5", "n next", "passed")
        await until(pilot, app, "measured: ✗ a, from 2.0 to 1.5")
        await pilot.press("w")
        await until(pilot, app, "your guess", "measured", "the loss falls")

    play(workspace, script)


def test_an_edit_fails_takes_hints_opens_the_editor_and_passes(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", "vi")
    folder = write_lab(workspace)
    begun(workspace, "double")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await to_step(pilot, app, 5)
        await until(pilot, app, "edit  labs/90-small/double.py:5", "hint (0 of 1)")
        await pilot.press("c")
        screen = await until(pilot, app, "✗ not yet", "Check ✗ 4 becomes 8   expected 8   got 4   double.py")
        assert "n next" not in screen
        await pilot.press("n")
        await until(pilot, app, "its check has not passed: c checks, e edits; : goes to any step")
        await pilot.press("h")
        await until(pilot, app, "hint 1 of 1  times two", "hint (1 of 1)")
        # The pilot has no terminal to lend: the screen names file and line, and stays.
        await pilot.press("e")
        await until(pilot, app, "double.py:5: the editor needs a terminal")
        (folder / "double.py").write_text(DOUBLE.replace("return x  # your turn", "return x * 2"))
        await pilot.press("c")
        await until(pilot, app, "✓ done", "Check ✓ 4 becomes 8", "n back to the course")

    play(workspace, script)


def test_a_run_whose_file_was_edited_after_its_check_asks_for_a_new_run(workspace: Workspace) -> None:
    edit = (
        'edit = { file = "train.toml", find = "lr = 0.1" }\n[steps.check]\nalter = [{ criterion = "the loss'
    )
    folder = write_lab(workspace, lab_toml=FILES["lab.toml"].replace(edit.partition("\n")[2], edit))
    begun(workspace, "fast")
    record(workspace, [1.5, 2.0], **{"optim.lr": 2.0})

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await until(pilot, app, "step 4 of 5", "edit  labs/90-small/train.toml:3")
        await pilot.press("a")
        await until(pilot, app, "c check")
        await pilot.press("c")
        await until(pilot, app, "Check ✗ the loss falls", "got 2.0")
        (folder / "train.toml").write_text(
            "# smaller\n" + FILES["train.toml"].replace("lr = 0.1", "lr = 0.01")
        )
        await pilot.press("escape")
        await open_lab(pilot, app)
        await to_step(pilot, app, 4)
        screen = await until(pilot, app, "train.toml:4", "Check ! changed: space runs it again")
        assert "✗ the loss falls" not in screen

    play(workspace, script)


def test_what_ends_during_a_check_begins_the_check_again(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, passes = hold("runs", tmp_path, monkeypatch), tmp_path / "passes"
    waits = f"import os, time\n    while not os.path.exists({str(passes)!r}): time.sleep(0.01)\n    "
    run = 'run = { job = "train", profile = "tiny", set = ["optim.lr=2.0"] }'
    assert run in FILES["lab.toml"]
    write_lab(
        workspace,
        lab_toml=FILES["lab.toml"].replace(run, 'run = { command = ["runs"] }'),
        checks_py=CHECKS.replace('run = found.run("fast")', f'{waits}run = found.run("plain")').replace(
            "def measured_fast", "def unused"
        ),
    )
    begun(workspace, "fast")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await until(pilot, app, "step 4 of 5", "$ labassist runs")
        await pilot.press("a")
        await until(pilot, app, "c check")
        await pilot.press("c", "space")
        await until(pilot, app, "space give it up")
        go.touch()
        await until(pilot, app, "space run", "c give the check up")
        passes.touch()
        await until(pilot, app, "Check ✓ the loss falls", "passed; n goes on")

    play(workspace, script)


def test_each_press_of_the_hint_key_counts(workspace: Workspace) -> None:
    write_lab(workspace)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await to_step(pilot, app, 4)
        await pilot.press("h", "h")
        await until(pilot, app, "hint (2 of 3)", "hint 2 of 3  more")
        await pilot.press("h", "h", "h")
        await until(pilot, app, "hint (3 of 3)", "nearly the answer")

    play(workspace, script)


def test_the_editor_is_the_learners_own_at_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a file.py"
    assert argv(path, 7, {"EDITOR": "vim -n"}) == ["vim", "-n", "+7", str(path)]
    assert argv(path, 7, {"VISUAL": "code", "EDITOR": "vim"}) == ["code", "--wait", "--goto", f"{path}:7"]
    assert argv(path, 7, {"EDITOR": "hx"}) == ["hx", f"{path}:7"]
    found = tmp_path / "bin" / "vi"
    found.parent.mkdir()
    found.write_text("#!/bin/sh\n")
    found.chmod(0o755)
    assert argv(path, 7, {"PATH": str(found.parent)}) == ["vi", "+7", str(path)]
    with pytest.raises(InputError, match=r"a file\.py:7: no editor here"):
        argv(path, 7, {"PATH": str(tmp_path)})


def test_a_new_start_goes_on_in_the_lab_that_was_worked_on_last(workspace: Workspace) -> None:
    write_lab(workspace)
    write_lab(workspace, "91-other")
    begun(workspace, "plain")
    _, other = loaded(workspace, "91-other")
    with Ledger.open(workspace.ledger, create=True) as ledger:
        progress.done(ledger, other, step_of(other, "intro"))

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "▸ 2-3   ▸ 91 A small lab", "91 A small lab  For tests", "next step 2 of 5")
        await pilot.press("enter")
        await until(pilot, app, "step 2 of 5")

    play(workspace, script)


def test_copying_a_steps_command(workspace: Workspace) -> None:
    write_lab(workspace)
    begun(workspace, "plain")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await until(pilot, app, "step 3 of 5")
        await pilot.press("y")
        await until(pilot, app, "copied; also in .labassist/clipboard.txt")
        assert app.clipboard == "labassist run 90-small/train --profile tiny"

    play(workspace, script)


def test_a_price_and_limits_are_typed_once_and_go_with_what_is_started(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the form before any job and in a lab's step; what cannot be is said in a line."""
    write_lab(workspace)
    begun(workspace, "plain")
    go = hold("run", tmp_path, monkeypatch)
    go.touch()

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "90 A small lab")
        await pilot.press("colon", *"start a job", "enter")
        await until(pilot, app, "a run of any of them is recorded")
        await pilot.press("colon", *"job: 90-small", "enter")
        await until(pilot, app, "with which numbers?", "$ price, limits")
        await pilot.press("dollar_sign", *"cost=3", "enter")
        await until(pilot, app, "! cost needs the price of an hour; add price=0.45")
        await pilot.press("home", *"price=0.45 hours=8 ", "enter")  # what was refused is mended
        await until(
            pilot, app, "Start 90-small/train", "0.45 USD an hour, stopped with a checkpoint at 8 h or 3"
        )
        await pilot.press("enter")
        await until(pilot, app, "run ", "90-small/train", "esc back")
        await pilot.press("escape", "escape")
        await open_lab(pilot, app)
        await to_step(pilot, app, 3)  # which that run may have done
        await until(pilot, app, "step 3 of 5", "0.45 USD an hour", "space run")
        await pilot.press("dollar_sign", "end", *["backspace"] * 25, *"price=0.5", "enter")
        await until(pilot, app, "0.5 USD an hour")
        go.unlink()
        await pilot.press("space")
        await until(pilot, app, "starting labassist run")
        go.touch()
        while len(app.runs.runs if app.runs else ()) < 2:
            await pilot.pause(0.05)
        assert app.runs is not None
        await until(pilot, app, f"run {words.short(app.runs.runs[-1]['id'])}")

    play(workspace, script)
    with Ledger.open(workspace.ledger) as ledger:
        first, second = ledger.runs
    assert (first["price"], first["currency"], first["max_hours"], first["max_cost"]) == (0.45, "USD", 8, 3)
    assert (second["price"], "max_hours" in second, "max_cost" in second) == (0.5, False, False)
