"""The ledger's screen and those that it opens: find, sort, mark, compare, audit; and a run's tabs and cursor."""

from __future__ import annotations

from typing import Any

from pilot import Written, document, play, until, until_gone, written_ledger  # noqa: F401 - a fixture
from rich.cells import cell_len
from textual.pilot import Pilot

from labassist.app import words
from labassist.app.app import LabApp
from labassist.app.runsort import sorted_by
from labassist.app.screens.audit import audit_page
from labassist.app.screens.compare import difference_page
from labassist.app.screens.ledger import LedgerScreen
from labassist.app.widgets.chart import ChartView
from labassist.app.widgets.pager import Pager
from labassist.ledger.store import Ledger
from labassist.workspace import Workspace


def said(lines: list[words.Line]) -> str:
    return "\n".join("".join(text for text, _ in line) for line in lines)


def test_the_ledger_finds_opens_and_goes_back(written: Written) -> None:
    for number in range(1, 6):
        written.run(number, [3.0], state="failed" if number == 3 else "finished", reason="exit status 1")

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "5 runs")
        await pilot.press("l")
        screen = await until(pilot, app, "Ledger  5 runs", "✗ failed")
        assert screen.index("abc005") < screen.index("abc001")  # the newest first
        await pilot.press("slash")
        screen = await until(pilot, app, "enter find   esc leave the line")
        assert "r replay" not in screen  # it would be typed
        await pilot.press(*"lr<0.05", "space", *"failed", "enter")
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
        await until(pilot, app, "enter open")

    play(written.workspace, script)


def test_a_runs_profile_is_shown_at_80_cells_and_found_by_its_name(written: Written) -> None:
    written.run(1, [3.0], profile="borrowed")
    written.run(2, [3.0])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await pilot.press("l")
        await until(pilot, app, "Ledger  2 runs", "seed 1337", "profile tiny")
        await pilot.press("slash", *"borrowed", "enter")
        screen = await until(pilot, app, "1 of 2 runs", "abc001", "seed 1337", "profile borrowed")
        assert "abc002" not in screen

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


def test_sorted_by_a_column_what_has_no_value_comes_last() -> None:
    runs = [
        {**document(1), "last": {"loss": 2.0}, "step": 5},
        {**document(2), "last": {"loss": "nan:7ff8000000000000"}, "step": 9},
        {**document(3), "last": {}, "step": 7},
        {**document(4), "last": {"loss": 1.0}, "step": 7},
    ]

    def order(column: str) -> str:
        return "".join(run["id"][-1] for run in sorted_by(runs, column))

    assert order("when") == "4321"
    assert order("loss") == "4132"
    assert order("steps") == "2431"


def test_a_note_in_wide_characters_is_cut_at_its_cell_and_says_so(written: Written) -> None:
    written.run(1, note="损失在第十九步跳高，之后又落下去了：" * 12)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("l")
        screen = await until(pilot, app, "损失在第十九步")
        assert next(row for row in screen.splitlines() if "profile tiny" in row).endswith(" …")
        await pilot.resize_terminal(160, 50)
        screen = await until(pilot, app, "note")
        row = next(row for row in screen.splitlines() if "abc001 " in row and "损失" in row)
        assert row.endswith("~")
        assert cell_len(row) <= 159
        await pilot.press("enter")
        screen = await until(pilot, app, "note  损失", "finished")
        assert " …" in screen

    play(written.workspace, script)


def test_the_ledger_sorts_by_the_next_column(written: Written) -> None:
    for number, loss in ((1, 1.5), (2, 3.5), (3, 2.5)):
        written.run(number, [loss], last={"loss": loss})

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "3 runs")
        await pilot.press("l")
        screen = await until(pilot, app, "when-", "abc003")
        assert screen.index("abc003") < screen.index("abc002") < screen.index("abc001")
        await pilot.press("s")
        screen = await until(pilot, app, "loss+")
        assert screen.index("abc001") < screen.index("abc003") < screen.index("abc002")
        assert "▸ abc003" in screen  # the highlight stays on its run

    play(written.workspace, script)


def test_two_marked_runs_are_compared_with_their_curves_in_one_chart(written: Written) -> None:
    with Ledger.open(written.workspace.ledger, create=True) as ledger:
        nothing = ledger.objects.put(b"{}")
    surroundings = {"environment": nothing, "hardware": nothing}
    first = written.run(1, [3.0, 2.5, 2.0], **surroundings)
    second = written.run(2, [3.0, 2.5, 1.5], **surroundings)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "2 runs")
        await pilot.press("l")
        screen = await until(pilot, app, "▸ abc002")
        assert "d compare" not in screen
        await pilot.press("space", "down", "space")
        await until(pilot, app, "abc002*", "abc001*", "marked abc002 abc001", "d compare")
        await pilot.press("d")
        await until(pilot, app, "A abc001", "B abc002", "they differ")
        page = app.screen.query_one(Pager).text
        assert "optim.lr  0.1 -> 0.01" in page
        assert "first difference at step 3" in page
        assert "loss  2 / 1.5 at step 3; 2 of 3 equal" in page
        assert "the same" in page
        chart = app.screen.query_one(ChartView).chart
        assert (chart.at(3, "A abc001 loss"), chart.at(3, "B abc002 loss")) == (2.0, 1.5)
        await pilot.press("left", "left")
        await until(pilot, app, "step 2  A abc001 loss 2.5  B abc002 loss 2.5")
        await pilot.press("u")
        await until(pilot, app, "A abc001 grad norm")
        assert first < second

    play(written.workspace, script)


def test_differences_are_named_and_what_is_the_same_too() -> None:
    found = {
        "same": False,
        "config": {"clip": {"a": 1.0, "b": "off"}, "seed": {"a": 1337, "b": None}},
        "code": {"same": False, "patch": "--- a\n+++ b\n-x\n+y", "note": "recorded by hash only: big.bin"},
        "environment": {},
        "data": {},
        "curves": {
            "loss": {"compared": 9, "equal": 4, "first_difference": {"step": 5, "a": 1.25, "b": "inf"}},
            "lr": {"compared": 9, "equal": 9, "first_difference": None},
        },
        "checkpoints": {"compared": 4, "equal": 3, "first_difference": {"step": 8, "tensor": "model/w"}},
    }
    text = said(difference_page(found, words.UNICODE))
    assert "clip  1 -> off" in text
    assert "seed  1,337 -> -" in text
    assert "first difference at step 5" in text
    assert "loss  1.25 / inf at step 5; 4 of 9 equal" in text
    assert "first at step 8, model/w" in text
    assert "the same  data, environment, series lr" in text
    assert "recorded by hash only: big.bin" in text
    assert text.endswith("-x\n+y")


def test_an_audit_names_the_file_and_the_tensor() -> None:
    problem = {
        "code": "checkpoint-altered",
        "message": "tensor model/wte.weight is not what was written",
        "run": "20260101-000001-abc001",
        "path": "runs/20260101-000001-abc001/checkpoints/step-00000120/model.safetensors",
        "tensor": "model/wte.weight",
        "line": 0,
    }
    found = {"ok": False, "head": "ab" * 32, "checked": {"checkpoints": 4}, "problems": [problem]}
    for plain in (False, True):
        text = said(audit_page(found, words.signs(plain), plain=plain))
        assert text.isascii() is plain
        assert "checkpoint-altered" in text
        assert "tensor  model/wte.weight" in text
        assert "ledger/runs/20260101-000001-abc001/checkpoints/step-00000120/model.safetensors" in text
        assert "4 checkpoints" in text


def test_an_audit_by_keys_shows_what_is_wrong(written: Written) -> None:
    written.run(1, [3.0])  # ended, and was never sealed

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("l")
        await until(pilot, app, "a audit")
        await pilot.press("a")
        await until(pilot, app, "Audit of run abc001", "seals-missing", "problem")
        await pilot.press("w")
        await until(pilot, app, "Where from", "journal entries")

    play(written.workspace, script)


def test_the_tabs_of_a_run_and_a_note(written: Written) -> None:
    run = written.run(1, [3.0, 2.5], log=f"{'long ' * 40}end of it\n", resumed_from=None)
    written.run(2, [2.0], resumed_from={"run": run, "step": 2}, dropped=["rng"])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "2 runs")
        await pilot.press("l")
        await until(pilot, app, "▸ abc002")
        await pilot.press("down", "enter", "2")
        await until(pilot, app, "[2 log]", "end of it")  # a long line is folded
        await pilot.press("f")
        await until_gone(pilot, app, "end of it")
        await pilot.press(*["right"] * 24)
        await until(pilot, app, "end of it")
        await pilot.press("3")
        await until(pilot, app, "optim.lr", "$ python labs/01-first-loop/train.py")
        await pilot.press("4")
        await until(pilot, app, "c0ffee", "no uncommitted change")
        await pilot.press("5")
        await until(pilot, app, "▸ abc001", "abc002  from abc001 at step 2, without rng", "none yet")
        await pilot.press("6")
        await until(pilot, app, "no checkpoint yet")
        await pilot.press("n")
        await until(pilot, app, "enter note")
        await pilot.press(*"-x", "enter")
        await until(pilot, app, "noted")
        await pilot.press("5")
        await until(pilot, app, "note  -x")

    play(written.workspace, script)
    with Ledger.open(written.workspace.ledger) as ledger:
        assert ledger.runs.all()[0]["note"] == "-x"


def test_the_cursor_reads_exact_values_and_the_average_says_what_it_is(written: Written) -> None:
    written.run(1, [4.0 - step / 7 for step in range(20)])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("r")
        await until(pilot, app, "step 20/40")
        await pilot.press("left")
        await until(pilot, app, f"step 20  loss {4.0 - 19 / 7!r}")
        await pilot.press("comma", "comma")
        await until(pilot, app, f"step 18  loss {4.0 - 17 / 7!r}")
        await pilot.press("home")
        await until(pilot, app, "step 1  loss 4.0")
        await pilot.press("end", "right")
        screen = await until(pilot, app, "loss 1.286")
        assert "step 20  loss" not in screen
        await pilot.press("v", "g")
        await until(pilot, app, "(smoothed ", "• smoothed")
        await pilot.press("u")
        await until(pilot, app, "grad norm 0.5")
        await pilot.press("w")
        await until(pilot, app, "clipped", "metrics-rank0.jsonl")

    play(written.workspace, script)


def test_a_run_is_written_as_a_page_from_the_ledger_and_from_its_own_screen(written: Written) -> None:
    run = written.run(1, [3.0, 2.0])
    page = written.workspace.root / ".labassist" / "pages" / f"{words.short(run)}.html"

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("l")
        await until(pilot, app, "abc001")
        await pilot.press("x")
        await until(pilot, app, "written: .labassist/pages/abc001.html; open it in a browser")
        assert "01-first-loop/train" in page.read_text()
        page.unlink()
        await pilot.press("enter")
        await until(pilot, app, "[1 curves]", "✓ finished")
        await pilot.press("x")
        await until(pilot, app, "written: .labassist/pages/abc001.html")
        assert page.is_file()

    play(written.workspace, script)


def test_copying_writes_a_file_and_asks_the_terminal(written: Written) -> None:
    run = written.run(1, [3.0])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("l")
        await until(pilot, app, "abc001")
        await pilot.press("y")
        await until(pilot, app, "copied; also in .labassist/clipboard.txt")
        assert app.clipboard == run

    play(written.workspace, script)
    assert (written.workspace.root / ".labassist" / "clipboard.txt").read_text() == f"{run}\n"


def test_the_command_list_does_what_is_chosen(written: Written) -> None:
    written.run(1, [3.0])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("ctrl+p", *"machine")
        await until(pilot, app, "▸ course: machine")
        await pilot.press("enter")
        await until(pilot, app, "Machine", "Host")
        await pilot.press("colon", *"abc001", "enter")
        await until(pilot, app, "run abc001", "✓ finished")
        await pilot.press("colon", *"app: course", "enter")
        await until(pilot, app, "q quit")

    play(written.workspace, script)


def test_the_help_begins_with_what_takes_the_keys(written: Written) -> None:
    written.run(1, [3.0, 2.0])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "1 run")
        await pilot.press("r", "question_mark")
        screen = await until(pilot, app, "Keys")
        assert screen.index("Read exact values at a step") < screen.index("Ask the run for a checkpoint")

    play(written.workspace, script)
