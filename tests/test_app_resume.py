"""The resume screen: the ledger's checkpoints and any folder, six states in words, findings, proofs and ablations."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from command import QUICK, answer, train
from leash import Leash
from pilot import SIZES, Written, play, shown, until, written_ledger  # noqa: F401 - a fixture
from textual.pilot import Pilot
from textual.widget import Widget

from labassist.app import checkpoints
from labassist.app.app import LabApp
from labassist.app.experiments import words_for
from labassist.app.messages import ExperimentMoved
from labassist.app.screens.experiment import ExperimentScreen, curve
from labassist.app.screens.resume import ResumeScreen
from labassist.app.widgets.chart import ChartView
from labassist.app.widgets.lines import Lines
from labassist.app.widgets.pager import Pager
from labassist.app.widgets.rows import Rows
from labassist.app.words import signs
from labassist.cli.main import parse
from labassist.ledger.store import Ledger
from labassist.workspace import Workspace

layouts = pytest.importorskip("ckpt_layouts", reason="torch writes the checkpoints")
ckpt_states = pytest.importorskip("ckpt_states", reason="torch writes the checkpoints")


def keep(written: Written, number: int, *steps: int, **more: Any) -> str:
    """Write a run with whole checkpoints of ours at these steps."""
    run = written.run(number, [3.0, 2.5], total_steps=40, **more)
    with Ledger.open(written.workspace.ledger) as ledger:
        folder = ledger.run_folder(run)
        for step in steps:
            write_checkpoint(folder, step)
            path = f"runs/{run}/checkpoints/step-{step:08d}"
            row = {"run": run, "step": step, "path": path, "manifest": "0" * 64, "bytes": 4096, "tensors": 9}
            ledger.checkpoints.insert({**row, "curve": {}, "time": "2026-01-01T00:00:30Z"})
    return run


def write_checkpoint(folder: Path, step: int) -> None:
    """Let the saver write one."""
    from labassist.record.checkpoint import Saver

    tensors = ckpt_states.weights()
    states = {
        "model": tensors,
        "optimizer": ckpt_states.optimizer_state(tensors, step),
        "scheduler": ckpt_states.scheduler_state(step),
        "scaler": None,
        "data_position": {"epoch": 0, "drawn": 8 * step},
    }
    saver = Saver(folder, "test", lambda event: None)
    saver.save(step, states, {})
    saver.wait()


async def opened(pilot: Pilot[int], app: LabApp, *texts: str) -> str:
    await until(pilot, app, "q quit")
    await pilot.press("c")
    return await until(pilot, app, "Resume", *texts)


def test_beside_the_list_what_is_said_of_a_state_is_there_whole(written: Written) -> None:
    run = keep(written, 1, 10)
    folder = written.workspace.ledger / "runs" / run / "checkpoints" / "step-00000010"
    torn = folder / "optimizer.safetensors"
    torn.write_bytes(torn.read_bytes()[:-9])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await opened(pilot, app, "optimizer", "data position")
        found = app.screen._found()  # type: ignore[attr-defined]
        widget = app.screen.query_one("#states", Lines)
        for line in checkpoints.states(found, app.signs):
            said = line[-1][0]
            assert said in " ".join(widget.text.split())
        rows = widget.text.split("\n")
        assert len(rows) <= widget.size.height
        assert max(map(len, rows)) <= widget.size.width

    play(written.workspace, script, (160, 50))


def test_the_ledgers_checkpoints_their_states_and_which_to_resume_from(written: Written) -> None:
    run = keep(written, 1, 10, 20, 30)
    keep(written, 2, 10)
    torn = written.workspace.ledger / "runs" / run / "checkpoints" / "step-00000030" / "optimizer.safetensors"
    torn.write_bytes(torn.read_bytes()[:-9])

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        screen = await opened(pilot, app, "4 checkpoints in the ledger", "✓ EXACT")
        assert screen.index("abc002") < screen.index("abc001")  # the newest run first
        for word in ("model         ✓ present", "scaler        - not needed", "data position ✓ present"):
            assert word in screen
        assert "nothing to say against it" in screen
        await pilot.press("down")
        screen = await until(pilot, app, "✗ BROKEN", "✗ torn")
        rows = [line for line in screen.splitlines() if "abc001" in line]
        assert "BROKEN" in rows[0] and "▸ from it" in rows[1] and "from it" not in rows[0] + rows[2]

    play(written.workspace, script)


def test_of_runs_that_wrote_into_one_folder_only_the_last_ones_checkpoint_stands(written: Written) -> None:
    folder = layouts.hf(written.workspace.root / "out")
    runs = [written.run(number, [3.0, 2.5], total_steps=40) for number in (1, 2)]
    with Ledger.open(written.workspace.ledger) as ledger:
        for number, run in enumerate(runs):
            name = f"checkpoints/step-{ckpt_states.STEP:08d}.manifest.json"
            place = ledger.run_folder(run) / name
            place.parent.mkdir(exist_ok=True)
            told = {"folder": "out/checkpoint-5", "files": {}, "run": run}
            place.write_text(json.dumps(told))
            row = {"run": run, "step": 5, "path": f"runs/{run}/{name}", "manifest": "0" * 64, "bytes": 4096}
            time = f"2026-01-01T00:00:{30 + number}Z"
            ledger.checkpoints.insert({**row, "tensors": 9, "curve": {}, "time": time})
        places = checkpoints.read_checkpoints(ledger).places
    assert [(place.run, place.over) for place in places] == [(runs[1], ""), (runs[0], runs[1])]
    assert {place.path for place in places} == {folder}

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        screen = await opened(pilot, app, "2 checkpoints in the ledger", "✓ EXACT")
        rows = [line for line in screen.splitlines() if "abc00" in line]
        assert "EXACT" in rows[0] and "✗ over" in rows[1] and "EXACT" not in rows[1]
        await pilot.press("down")
        await until(pilot, app, "abc002 wrote over it")
        assert isinstance(app.screen, ResumeScreen)
        app.screen.catch_up()
        await pilot.pause(0.5)
        assert app.screen.query_one("#places", Rows).here.run == runs[0]

    play(written.workspace, script)


def test_a_folder_from_elsewhere_is_typed_and_its_findings_open(written: Written) -> None:
    folder = layouts.hf(written.workspace.root / "out")
    (folder / "rng_state.pth").unlink()

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await opened(pilot, app, "no checkpoints yet; o looks at a folder from elsewhere")
        await pilot.press("o", *"out", "enter")
        screen = await until(pilot, app, "out/checkpoint-5", "! DEGRADED", "rng           ✗ absent")
        assert "data position ~ derived" in screen
        assert "scaler        - not needed" in screen
        assert "p prove" not in screen  # nobody here knows what made it
        await pilot.press("enter")  # to the findings
        assert app.focused is app.screen.query_one("#findings", Rows)
        await pilot.press("enter")
        screen = await until(
            pilot, app, "rng-missing", "what follows", "mend", "DEGRADED: it resumes, but not exactly"
        )
        assert isinstance(app.focused, Pager)
        await pilot.press("escape")
        await until(pilot, app, "rng           ✗ absent")
        await pilot.press("escape")
        assert app.focused is app.screen.query_one("#places", Rows)
        shutil.copy(layouts.hf(written.workspace.root / "again") / "rng_state.pth", folder)
        await pilot.press("c")
        await until(pilot, app, "✓ EXACT")
        await pilot.press("o", *"nowhere", "enter")
        screen = await until(pilot, app, "there is nothing")
        await pilot.press("escape")
        await until(pilot, app, "q quit")

    play(written.workspace, script)


def test_a_run_opens_at_its_own_checkpoints(written: Written) -> None:
    keep(written, 1, 10)
    keep(written, 2, 10, 20)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "q quit")
        app.push_screen(ResumeScreen("20260101-000001-abc001"))
        await until(pilot, app, "▸ abc001", "✓ EXACT")

    play(written.workspace, script)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_it_fits_every_size(written: Written, size: tuple[int, int]) -> None:
    keep(written, 1, 10, 20)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await opened(pilot, app, "✓ EXACT", "✓ present")
        screen = shown(app).splitlines()
        assert len(screen) == size[1] and all(len(line) <= size[0] for line in screen)
        assert "esc back" in screen[-1]
        for widget in app.screen.query("*"):
            assert isinstance(widget, Widget)
            if widget.display and isinstance(widget, (Lines, Rows, Pager)) and widget.region.area:
                assert app.screen.region.contains_region(widget.region)

    play(written.workspace, script, size)


def test_it_is_drawn_in_ascii(written: Written) -> None:
    keep(written, 1, 10)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        screen = await opened(pilot, app, "+ EXACT", "+ present")
        assert screen.isascii()

    play(written.workspace, script, plain=True)


def test_many_checkpoints_start_one_check_of_what_the_highlight_rests_on(written: Written) -> None:
    for number in range(1, 6):
        keep(written, number, 10)

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await opened(pilot, app, "5 checkpoints", "✓ EXACT")
        await pilot.press("end")
        await until(pilot, app, "▸ abc001")
        end = time.monotonic() + 30
        while not exact(app)[-1]:
            assert time.monotonic() < end, shown(app)
            await pilot.pause(0.05)
        await pilot.pause(1.0)  # nothing else is looked at
        assert exact(app) == [True, False, False, False, True]

    def exact(app: LabApp) -> list[bool]:
        return ["EXACT" in line for line in shown(app).splitlines() if "abc00" in line]

    play(written.workspace, script)


# --- the words of an experiment


def run_document(**more: Any) -> dict[str, Any]:
    return {
        "kind": "job",
        "job": "01-first-loop/train",
        "seed": 7,
        "threads": 1,
        "profile": "tiny",
        "total_steps": 120,
        "config": {"steps": 120, "optim.lr": 0.003, "clip": "off", "data.url": ""},
        **more,
    }


def test_an_experiment_repeats_the_run_as_it_was() -> None:
    defaults = {"steps": 120, "optim.lr": 0.001, "clip": 1.0, "data.url": ""}
    words = words_for("ablate", run_document(), defaults, 60)
    args = parse(words)
    assert (args.ckpt_command, args.seed, args.threads, args.profile) == ("ablate", 7, 1, "tiny")
    assert words[2:4] == ("--at", "60")
    assert args.sets == ["optim.lr=0.003", "clip=off"]
    assert args.job == "01-first-loop/train"
    assert "--at" not in words_for("prove", run_document(), defaults, 118)  # too few steps would follow
    command = run_document(kind="command", argv=["python", "mine.py", "--json"], config={}, profile="")
    args = parse(words_for("prove", command, {}, None))
    assert args.rest == ["python", "mine.py", "--json"] and args.job is None


def test_a_curve_counts_from_the_resume_and_keeps_what_is_no_number() -> None:
    assert curve([31, 32, 33], [2.0, None, "inf"]) == [(1, 2.0), (3, float("inf"))]


def test_every_presence_severity_and_verdict_has_a_sign() -> None:
    from typing import get_args

    from labassist.resume.check import EXIT
    from labassist.resume.codes import Severity
    from labassist.resume.description import Presence

    assert set(checkpoints.STATES) == set(get_args(Presence))
    assert set(checkpoints.SEVERITIES) == set(get_args(Severity))
    assert set(checkpoints.VERDICTS) == set(checkpoints.MEANING) == set(EXIT)
    states = dict(zip("abcdef", checkpoints.STATES, strict=True))
    lines = checkpoints.states({"states": states, "findings": []}, signs(False))
    assert (
        len({"".join(text for text, _ in line[1:2]).strip() for line in lines}) == 6
    )  # never by colour alone


# --- the answers


def ablation() -> dict[str, Any]:
    effect = {"step": 12, "loss": 2.5, "unbroken": 2.0, "difference": 0.5}
    rows = [
        {
            "state": None,
            "verdict": "BITWISE",
            "run": "r0",
            "first_divergent_step": None,
            "peak": None,
            "final": None,
        },
        {
            "state": "optimizer",
            "verdict": "DIVERGED",
            "run": "r1",
            "first_divergent_step": 12,
            "peak": effect,
        },
        {
            "state": "scaler",
            "verdict": "not_applicable",
            "run": "",
            "first_divergent_step": None,
            "peak": None,
        },
    ]
    for row in rows:
        row.setdefault("final", row["peak"])
        row["meaning"] = f"what {row['state']} means"
    curves = {
        "uninterrupted": [2.0, 1.9, 1.8],
        "control": [2.0, 1.9, 1.8],
        "optimizer": [2.0, 2.4, "nan:7ff8000000000000"],
    }
    return {
        "job": "01-first-loop/train",
        "uninterrupted": "20260101-000001-abc001",
        "resumed_from": {"step": 10, "path": "x"},
        "states": rows,
        "curves": {"steps": [11, 12, 13], "loss": curves},
    }


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_an_ablation_lays_the_curves_over_each_other(workspace: Workspace, size: tuple[int, int]) -> None:
    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "q quit")
        name = "ablate abc001@10"
        app.experiments.told[name] = ExperimentMoved(name, "resuming without optimizer")
        app.push_screen(ExperimentScreen(name, ["ckpt", "ablate", "01-first-loop/train"]))
        await until(pilot, app, "resuming without optimizer", "It goes on when you leave")
        app.experiments._tell(ExperimentMoved(name, "", ablation()))
        screen = await until(pilot, app, "resumed from step 10", "nothing", "not applicable", "+0.5000")
        chart = app.screen.query_one(ChartView).chart
        assert chart.names == ["uninterrupted", "nothing", "optimizer"]  # the first row: all of them
        await pilot.press("down")
        screen = await until(pilot, app, "what optimizer means")
        assert chart.names == ["uninterrupted", "optimizer"]
        assert chart.at(2, "optimizer") == 2.4
        assert "r again" in screen or size[0] < 80
        assert all(len(line) <= size[0] for line in shown(app).splitlines())

    play(workspace, script, size)


def test_a_refused_experiment_says_why(written: Written) -> None:
    keep(written, 1, 10, config={"no.such.key": 1})

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await opened(pilot, app, "p prove")
        await pilot.press("p")
        screen = await until(pilot, app, "✗ no answer: ", "no.such.key", "r again")
        assert "Traceback" not in screen
        await pilot.press("escape")
        await until(pilot, app, "1 checkpoint in the ledger")

    play(written.workspace, script)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_is_proved_and_ablated_from_its_checkpoint(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    leash = Leash(workspace.root)
    run = train(workspace.root)
    monkeypatch.setenv(*next(iter(leash.env.items())))

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await opened(pilot, app, "✓ EXACT", "p prove")
        await pilot.press("down", "down", "down", "p")
        await until(pilot, app, "Prove", "running", "the uninterrupted run", deadline=120)
        await pilot.press("escape")
        await until(pilot, app, "▸ prove", deadline=120)  # it goes on, and the title says so
        leash.free()
        await pilot.press("p")
        screen = await until(pilot, app, "the resumed run is equal, bit for bit", "unbroken", deadline=240)
        assert "compared 60 steps" in screen and "from step 30" in screen
        await pilot.press("y")
        await until(pilot, app, "copied")
        await pilot.press("escape", "b")
        screen = await until(pilot, app, "data position", "differs at", "+", deadline=400)
        await pilot.press("down", "down")
        await until(pilot, app, "then Adam, without", "warms up again")
        assert app.screen.query_one(ChartView).chart.names == ["uninterrupted", "optimizer"]

    play(workspace, script)
    line = (workspace.root / ".labassist" / "clipboard.txt").read_text()
    args = parse(shlex.split(line)[1:])
    assert "--at 30" in line and args.job == run["job"]
    assert {word.removeprefix("--set=") for word in QUICK} <= set(args.sets)
    made = [row for row in answer("runs", cwd=workspace.root)["runs"] if row["id"] != run["id"]]
    assert all(row["config"] == run["config"] and row["seed"] == run["seed"] for row in made)
    assert not list((workspace.root / ".labassist" / "background").iterdir())
