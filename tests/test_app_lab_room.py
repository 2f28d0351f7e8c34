"""Room on the lab's screen: what is long fits, what is waited for stays in sight, the highlight stays where it was put."""

from __future__ import annotations

import pytest
from app_lab import begun, open_lab, to_step
from course_lab import CHECKS, FILES, record
from course_lab import write as write_lab
from pilot import play, shown, until
from textual.pilot import Pilot

from labassist.app import words
from labassist.app.app import LabApp
from labassist.app.coursefacts import verdict_of
from labassist.app.widgets.chart import ChartView
from labassist.workspace import Workspace

pytestmark = pytest.mark.ci


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
