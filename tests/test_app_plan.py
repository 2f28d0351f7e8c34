"""The plan screen: one value changed by an arrow redraws the bars at once, and its command says the same."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from command import answer
from pilot import SIZES, play, shown, until
from textual.pilot import Pilot
from textual.widget import Widget

from labassist.app.app import LabApp
from labassist.app.plan_form import FIELDS, Form
from labassist.app.screens.plan import PlanScreen
from labassist.app.widgets.lines import Lines
from labassist.app.widgets.rows import Rows
from labassist.cli.main import parse
from labassist.cli.plan_options import plan_of
from labassist.errors import InputError
from labassist.workspace import Workspace


def field(name: str) -> Any:
    return next(one for one in FIELDS if one.name == name)


async def go_to(pilot: Pilot[int], app: LabApp, name: str) -> None:
    """Move the highlight to a setting."""
    table = app.screen.query_one("#fields", Rows)
    at = [one.name for one in table.rows].index(name)
    await pilot.press("home", *["down"] * at)
    assert table.here.name == name


async def opened(pilot: Pilot[int], app: LabApp) -> None:
    await until(pilot, app, "q quit")
    await pilot.press("p")
    await until(pilot, app, "Plan  qwen2.5-7b", "FITS")


def total(app: LabApp) -> float:
    found = re.search(r"total +([\d,.]+)", shown(app))
    assert found is not None
    return float(found[1].replace(",", ""))


def test_one_arrow_redraws_the_bars_before_the_next_key(workspace: Workspace) -> None:
    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await opened(pilot, app)
        before = total(app)
        await go_to(pilot, app, "batch")
        await pilot.press("right")  # no waiting: what `press` returns to is what a person sees
        assert total(app) > before
        bigger = shown(app)
        await pilot.press("left")
        assert total(app) == before
        await go_to(pilot, app, "method")
        await pilot.press("left", "left")
        screen = shown(app)
        assert "✗ DOES NOT FIT" in screen and "what would fit, cheapest first" in screen
        assert screen.count("▇") > bigger.count("▇")  # the bars run on beyond the card's end
        assert "tokens: " not in screen.partition("DOES NOT FIT")[2]  # no time for what cannot be
        await pilot.press("f")
        screen = shown(app)
        assert "✓ FITS" in screen and "lora" in screen and "USD" in screen

    play(workspace, script)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_it_fits_every_size(workspace: Workspace, size: tuple[int, int]) -> None:
    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "q quit")
        await pilot.press("p")
        screen = (await until(pilot, app, "total", "esc back")).splitlines()
        assert len(screen) == size[1]
        assert all(len(line) <= size[0] for line in screen)
        assert "esc back" in screen[-1]
        for widget in app.screen.query("*"):
            assert isinstance(widget, Widget)
            if widget.display and isinstance(widget, (Lines, Rows)) and widget.region.area:
                assert app.screen.region.contains_region(widget.region)

    play(workspace, script, size)


def test_a_typed_value_is_taken_or_refused_in_one_line(workspace: Workspace) -> None:
    config = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3}
    config |= {"num_attention_heads": 8, "vocab_size": 1000}
    (workspace.root / "config.json").write_text(json.dumps(config))

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await opened(pilot, app)
        await go_to(pilot, app, "seq")
        await pilot.press("enter", *"lots", "enter")
        await until(pilot, app, "! sequence: 'lots' is no whole number above zero")
        await until(pilot, app, "enter take it")
        await pilot.press("end", *["backspace"] * 4, *"3000")
        assert "! sequence" not in shown(app)
        await pilot.press("enter")
        await until(pilot, app, "3,000")
        await go_to(pilot, app, "method")
        await pilot.press("enter", *"qlra", "enter")
        await until(pilot, app, "did you mean qlora")
        await pilot.press("escape")
        await go_to(pilot, app, "card")
        await pilot.press("enter", *"80GB", "enter")
        await until(pilot, app, "80GB", "of 79.")
        await go_to(pilot, app, "model")
        await pilot.press("enter")
        app.screen.query_one("#prompt").value = str(workspace.root / "config.json")  # type: ignore[attr-defined]
        await pilot.press("enter")
        await until(pilot, app, "0.01 billion parameters")

    play(workspace, script)


def test_settings_that_do_not_go_together_say_so_in_place_of_the_bars(workspace: Workspace) -> None:
    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await opened(pilot, app)
        await go_to(pilot, app, "lora_targets")
        await pilot.press("enter", *"nowhere", "enter")
        screen = await until(pilot, app, "has no layer", "'nowhere'")
        assert "y copy" not in screen
        assert isinstance(app.screen, PlanScreen)
        await pilot.press("right")
        await until(pilot, app, "✓ FITS", "y copy")

    play(workspace, script)


def test_the_copied_command_gives_the_same_answer(workspace: Workspace) -> None:
    seen: list[float] = []

    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await opened(pilot, app)
        await go_to(pilot, app, "lora_r")
        await pilot.press("right", "right")
        await go_to(pilot, app, "accumulate")
        await pilot.press("right", "y")
        await until(pilot, app, "copied")
        seen.append(total(app))

    play(workspace, script)
    line = (workspace.root / ".labassist" / "clipboard.txt").read_text().strip()
    assert "--lora-r 64" in line and "--accumulate 2" in line and "--batch 2" in line
    found = answer(*shlex.split(line)[1:], cwd=workspace.root)
    assert found["total_gib"] == pytest.approx(seen[0], abs=0.006)


def test_every_number_says_where_it_comes_from(workspace: Workspace) -> None:
    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await opened(pilot, app)
        await pilot.press("w")
        screen = await until(pilot, app, "Where from", "weights", "activations", "total", "prices.toml")
        assert "RTX 4090" in screen

    play(workspace, script, (160, 50))


def test_it_is_drawn_in_ascii(workspace: Workspace) -> None:
    async def script(pilot: Pilot[int], app: LabApp) -> None:
        await until(pilot, app, "q quit")
        await pilot.press("p")
        assert (await until(pilot, app, "+ FITS", "####")).isascii()
        await go_to(pilot, app, "method")
        await pilot.press("left", "left")
        assert (await until(pilot, app, "x DOES NOT FIT", "->")).isascii()

    play(workspace, script, plain=True)


# --- the form, without a terminal


@pytest.mark.parametrize("one", FIELDS, ids=lambda one: one.name)
def test_every_value_that_the_arrows_reach_is_a_plan_and_a_command(one: Any) -> None:
    for base in ({}, {"method": "full", "gpus": 4}, {"method": "lora", "gpus": 2}, {"method": "inference"}):
        form = Form()
        form.values |= base
        if not form.applies(one.name):
            continue
        for way in (1, -1):
            for _ in range(4):
                form.change(one, way)
                planned = form.planned()
                again = plan_of(parse(shlex.split(form.command())[1:]))
                assert again == planned.plan
                assert form.text(one)


def test_a_suggestion_taken_is_the_plan_that_it_promised() -> None:
    form = Form(card="RTX 3060 12GB")
    form.values |= {
        "method": "full",
        "model": "llama-3.1-8b",
        "checkpointing": False,
        "loss": "full",
        "batch": 8,
    }
    promised = form.planned().memory["suggestions"]
    assert promised
    form.take(promised[0]["options"])
    assert form.planned().memory["total_gib"] == pytest.approx(promised[0]["total_gib"])
    assert form.planned().memory["fits"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("seq", "0", "no whole number"),
        ("batch", "-2", "no whole number"),
        ("tokens", "manyM", "no whole number"),
        ("card", "nothing", "unknown card"),
        ("model", "nothing-7b", "unknown model"),
        ("link", "string", "unknown link"),
        ("checkpointing", "maybe", "neither yes nor no"),
        ("optim", "adam", "is none of"),
    ],
)
def test_what_is_no_value_is_refused_and_changes_nothing(name: str, text: str, said: str) -> None:
    form = Form()
    before = dict(form.values)
    with pytest.raises(InputError, match=said):
        form.put(field(name), text)
    assert form.values == before


def test_numbers_end_at_the_ends_of_their_ladder() -> None:
    form = Form()
    form.put(field("batch"), "5")
    form.change(field("batch"), 1)
    assert form.values["batch"] == 6
    form.change(field("batch"), -1)
    assert form.values["batch"] == 4
    for _ in range(10):
        form.change(field("batch"), -1)
    assert form.values["batch"] == 1
    form.put(field("tokens"), "1M")
    assert form.values["tokens"] == 1_000_000
