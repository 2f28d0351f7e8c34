"""The lab's screen through the pilot: a step is read, guessed at, run, edited and checked by keys."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from course_lab import CHECKS, DOUBLE, FILES, loaded, record
from course_lab import write as write_lab
from held import hold
from pilot import play, shown, until
from rich.cells import cell_len
from textual.pilot import Pilot

from labassist.app import words
from labassist.app.app import LabApp
from labassist.app.coursefacts import verdict_of
from labassist.app.editor import argv
from labassist.app.markdown import drawn
from labassist.app.screens.course import CourseScreen
from labassist.app.screens.lab import StepScreen
from labassist.app.widgets.chart import ChartView
from labassist.course import progress
from labassist.course.load import step_of
from labassist.errors import InputError
from labassist.ledger.store import Ledger
from labassist.workspace import Workspace

pytestmark = pytest.mark.ci


async def to_step(pilot: Pilot[int], app: LabApp, number: int) -> None:
    """Go to a step by its name in the list of all commands."""
    await until(pilot, app, "step ", " of 5")
    await pilot.press("colon", *f"step: {number}", "enter")
    await until(pilot, app, f"step {number} of 5")


async def open_lab(pilot: Pilot[int], app: LabApp, lab: str = "90 A small lab") -> None:
    """Open a lab from the course by its name in the list of all commands."""
    await until(pilot, app, lab)
    await pilot.press("colon", *f"lab: {lab[:2]}", "enter")
    await until(pilot, app, "step ", " of ")


def begun(workspace: Workspace, upto: str) -> None:
    """Do the steps before `upto` by what the commands do."""
    course, lab = loaded(workspace)
    with Ledger.open(workspace.ledger, create=True) as ledger:
        for step in lab.steps[: [one.id for one in lab.steps].index(upto)]:
            if step.kind == "read":
                progress.done(ledger, lab, step)
            elif step.kind == "predict":
                progress.guess(course, ledger, lab, step_of(lab, step.id), "3.0")
    if upto in ("fast", "double"):
        record(workspace, [3.0, 2.0])


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


def test_a_hint_stays_in_sight_when_a_check_takes_some_of_the_room(workspace: Workspace) -> None:
    folder = write_lab(workspace)
    (folder / "steps" / "fast.md").write_text("# fast\n\n" + "".join(f"- point {at}\n" for at in range(18)))
    begun(workspace, "fast")
    record(workspace, [1.5, 2.0], **{"optim.lr": 2.0})

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await until(pilot, app, "step 4 of 5", "point 1")
        await pilot.press("a")
        await until(pilot, app, "c check")
        await pilot.press("h")
        await until(pilot, app, "hint 1 of 3  a nudge")
        await pilot.press("c")
        await until(pilot, app, "Check ✗ the loss falls", "not yet", "hint 1 of 3  a nudge")
        await pilot.press("home")
        await until(pilot, app, "point 0")
        await pilot.resize_terminal(80, 22)
        await pilot.pause(0.1)
        await until(pilot, app, "A faster one")

    play(workspace, script)


@pytest.mark.parametrize("size", [(80, 24), (60, 15), (110, 24), (160, 50)], ids=str)
def test_a_long_command_and_a_long_check_fit_beside_the_curve(
    workspace: Workspace, size: tuple[int, int]
) -> None:
    more = "".join(f', "model.some_long_name_{at}={at}"' for at in range(6))
    long = ", ".join(f"'a thing of many words that is number {at} and takes a row or two'" for at in range(4))
    write_lab(
        workspace,
        lab_toml=FILES["lab.toml"].replace('set = ["optim.lr=2.0"]', f'set = ["optim.lr=2.0"{more}]'),
        checks_py=CHECKS.replace(
            'step {step}")]',
            f'step {{step}}"), *(Criterion(name, False, "1", "2", "here") for name in ({long}))]',
        ),
    )
    toml = workspace.labs / "90-small" / "train.toml"
    added = "".join(f"some_long_name_{at} = 0\n" for at in range(6))
    toml.write_text(FILES["train.toml"].replace("[optim]", f"[model]\n{added}[optim]"))
    begun(workspace, "fast")
    names = {f"model.some_long_name_{at}": at for at in range(6)}
    record(workspace, [3.0 - at / 20 for at in range(40)], **{"optim.lr": 2.0}, **names)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await to_step(pilot, app, 4)
        await pilot.press("a")
        await until(pilot, app, "c check")
        await pilot.press("c")
        await until(pilot, app, "Check ✗ a thing of many", "not yet" if size[0] > 60 else "w shows")
        check = app.screen.query_one("#check")
        assert check.styles.height is not None
        assert check.outer_size.height == check.styles.height.value
        assert check.region.bottom <= size[1] - 2
        assert app.screen.query_one("#text").size.height >= 4
        assert app.screen.query_one(ChartView).display is (size == (160, 50))
        assert ("o shows its curve" in shown(app)) is (size != (160, 50))

    play(workspace, script, size)


def test_what_passed_is_said_briefly_where_the_curve_has_no_room_otherwise(workspace: Workspace) -> None:
    more = ", ".join(f"'thing {at} is as it has to be'" for at in (1, 2))
    write_lab(
        workspace,
        checks_py=CHECKS.replace(
            'step {step}")]',
            f'step {{step}}"), *(Criterion(name, True, "a number " * 6, "one of 17", "here") for name in ({more}))]',
        ),
    )
    begun(workspace, "fast")
    losses = [3.0, *([9.0, 2.0] * 8), *[6.0 - at / 20 for at in range(40)]]  # the health takes two rows
    record(workspace, losses, **{"optim.lr": 2.0})

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await to_step(pilot, app, 4)
        await pilot.press("a", "c")
        screen = await until(pilot, app, "✗ the loss falls", "expected below 3.0", "got 4.05")
        assert "✓ thing 1 is as it has to be   got one of 17   here" in screen
        assert "✓ thing 2 is as it has to be   got one of 17   here" in screen
        assert app.screen.query_one(ChartView).size.height >= 3
        await pilot.resize_terminal(160, 50)
        await until(pilot, app, "expected a number a number", "got one of 17")

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


def test_the_highlight_stays_where_it_was_put_also_back_on_the_next_lab(workspace: Workspace) -> None:
    write_lab(workspace)
    write_lab(workspace, "91-other")
    begun(workspace, "plain")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "▸ 2-3   ▸ 90 A small lab")
        await pilot.press("down")
        await until(pilot, app, "▸ 2-3   · 91 A small lab")
        app.screen.catch_up()  # type: ignore[attr-defined]
        await until(pilot, app, "▸ 2-3   · 91 A small lab")
        await pilot.press("up")
        await until(pilot, app, "▸ 2-3   ▸ 90 A small lab")
        app.screen.catch_up()  # type: ignore[attr-defined]
        await pilot.pause(0.1)
        await until(pilot, app, "▸ 2-3   ▸ 90 A small lab")

    play(workspace, script)


def test_a_step_whose_run_has_no_curve_shows_what_it_printed_and_all_its_numbers(
    workspace: Workspace,
) -> None:
    write_lab(workspace)
    begun(workspace, "plain")
    run = record(workspace, [])
    folder = workspace.ledger / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics-rank0.jsonl").write_text('{"step": 1, "t": 0.1, "wrong": 9.0, "low_percent": 8.1}\n')
    (folder / "log.txt").write_text("".join(f"line {number}\n" for number in range(30)))

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await open_lab(pilot, app)
        await to_step(pilot, app, 3)
        screen = await until(pilot, app, "step 3 of 5", f"run {words.short(run)}, the end of what it printed")
        assert "line 29" in screen and "line 25" in screen and "line 20" not in screen
        assert "wrong 9" in screen and "low_percent 8.1" in screen
        assert not app.screen.query_one(ChartView).display
        await pilot.press("w")
        assert "falling" not in await until(pilot, app, "Where from", "low_percent")

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


def test_what_a_check_waits_for_comes_before_what_has_passed() -> None:
    criteria = [
        {"name": f"number {at}", "ok": at != 5, "expected": "1", "got": "1", "source": "here"}
        for at in range(6)
    ]
    step = {
        "check": {"missing": "", "ok": False, "stale": False, "criteria": criteria},
        "run": None,
        "edit": None,
    }
    said = ["".join(text for text, _ in line) for line in verdict_of(step, words.signs(plain=False))]
    assert said[0].startswith("Check ✗ number 5")
    assert [line[6:16] for line in said[1:]] == [f"✓ number {at}" for at in range(5)]


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


def test_markdown_is_drawn_in_lines_that_fit() -> None:
    text = """\
# A heading

A paragraph with `code`, **strong** and *stressed* words and a [page](x.md), long enough
to be folded more than once.

- an item whose text goes on
  in a second line
1. first

      weights   14.2 GiB
      peak      71.2

```
labassist run x
```
> quoted
"""
    lines = drawn(text, 40, words.UNICODE)
    rows = ["".join(text for text, _ in line) for line in lines]
    assert rows[0] == "A heading"
    assert all(len(row) <= 40 for row in rows)
    assert "· an item whose text goes on in a second" in rows
    assert "  line" in rows
    assert "1. first" in rows
    assert "      weights   14.2 GiB" in rows
    assert drawn("  " + "x" * 38, 40, words.UNICODE) == [[("  " + "x" * 38, "code")]]
    assert "  labassist run x" in rows
    assert "| quoted" in rows
    kinds = {text: kind for line in lines for text, kind in line}
    assert (kinds["code"], kinds["strong"], kinds["stressed"]) == ("code", "strong", "strong")
    assert "*" not in "".join(rows)
    assert drawn("中文" * 30, 21, words.UNICODE)[0] == [("中文" * 5, "plain")]


def test_a_table_is_drawn_in_columns_and_its_last_one_is_folded() -> None:
    table = "Before\n| name | does |\n|------|------|\n| torch | numbers and their gradients |\n| 词 | text |\nAfter"
    rows = ["".join(part for part, _ in line).rstrip() for line in drawn(table, 24, words.UNICODE)]
    assert rows == [
        "Before",
        "name   does",
        "torch  numbers and their",
        "       gradients",
        "词     text",
        "After",
    ]
    tools = (Path(__file__).parent.parent / "labs/04-toolchain/steps/tools.md").read_text()
    said = ["".join(part for part, _ in line) for line in drawn(tools, 78, words.UNICODE)]
    assert not any("|" in row for row in said)


def test_a_text_in_wide_characters_is_drawn_by_its_own_rules() -> None:
    """No space between two rows of it, none around its stress, and no row that begins with a comma."""
    text = "把它们变\n小。一次*运行*（run）读入 train.py\n里的数字，字符、字符、字符、字符、（字符）和 x。"
    for width in range(12, 60):
        rows = ["".join(part for part, _ in line) for line in drawn(text, width, words.UNICODE)]
        assert "".join(rows).replace(" ", "") == text.replace("\n", "").replace(" ", "").replace("*", "")
        assert max(map(cell_len, rows)) <= width
        assert not any(row.startswith(tuple("，。、）")) or row.endswith("（") for row in rows)
    assert drawn(text, 200, words.UNICODE)[0][0] == ("把它们变小。一次", "plain")
    assert ("运行", "strong") in drawn(text, 200, words.UNICODE)[0]


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
