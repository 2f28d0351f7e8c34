"""`plan cost` and `plan power`: machine, people, buying, and what a supply carries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from plans import ask

from labassist.cli.main import main
from labassist.planner import cost, power
from labassist.workspace import Workspace


def test_cost_is_hours_times_price_times_buffer_and_people(capsys: pytest.CaptureFixture[str]) -> None:
    status, made = ask(
        capsys,
        "cost",
        "--hours",
        "10-20",
        "--price",
        "2",
        "--gpus",
        "4",
        "--people-hours",
        "132",
        "--person",
        "50",
    )
    assert status == 0
    assert made["machine"] == [80, 160]
    assert made["machine_buffered"] == [240, 480]
    assert made["people"] == 6600
    assert made["total"] == [6840, 7080]
    assert made["as_of"]


@pytest.mark.parametrize(
    "words",
    [
        "power --card 4090 --gpus 2",
        "time --model gpt2 --card 4090 --gpus 2 --link 10 --tokens 1M",
        "cost --model llama-3.1-8b --method full --card 4090 --tokens 1M",
    ],
)
def test_advice_names_commands_that_there_are(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", *words.split()])
    told = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    known = capsys.readouterr().out
    for name in re.findall(r"labassist ([a-z][a-z-]+)", told):
        assert f"\n    {name} " in known, told


def test_a_price_table_may_hold_cards_that_no_table_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "prices.toml"
    table.write_text(
        'as_of = "2031-05"\ncurrency = "EUR"\nelectricity = 0.3\nperson = 10\n'
        '[rent]\n"MI300X" = 3\n"RTX 4090" = 7\n'
    )
    for card, price in (("4090", 7), ("mi300x", 3)):
        _, made = ask(capsys, "cost", "--hours", "1", "--card", card, "--prices", str(table))
        assert (made["price"], made["break_even"]) == (price, None)


def test_break_even_counts_current_and_idle_hours() -> None:
    # 0.4 an hour of rent less 0.5 kW at 0.2 is 0.3 saved; 900 less 300 pays after 2,000 hours.
    even = cost.break_even(900, 300, 0.4, 500, 0.2, idle_watts=0, hours_a_month=100)
    assert even.hours == pytest.approx(2000)
    assert even.months == pytest.approx(20)
    idle = cost.break_even(900, 300, 0.4, 500, 0.2, idle_watts=50, hours_a_month=100)
    assert idle.saved_an_hour == pytest.approx(0.3 - 0.01 * 6.3)
    assert cost.break_even(900, 300, 0.05, 500, 0.2, idle_watts=0, hours_a_month=100).hours is None


def test_the_workspaces_own_table_and_currency(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    table = workspace.root / "templates" / "prices.toml"
    table.write_text(
        'as_of = "2031-05"\ncurrency = "EUR"\nelectricity = 0.3\nperson = 10\n[rent]\n"RTX 4090" = 7\n'
    )
    where = ["--workspace", str(workspace.root)]
    _, made = ask(capsys, "cost", "--hours", "1", "--card", "4090", *where)
    assert (made["currency"], made["price"], made["as_of"]) == ("EUR", 7, "2031-05")
    words = ["cost", "--hours", "1", "--card", "4090", "--currency", "CNY", *where]
    _, made = ask(capsys, *words, "--exchange", "8")
    assert (made["currency"], made["price"]) == ("CNY", 56)
    assert main(["plan", *words]) == 2
    assert "the table is in EUR" in capsys.readouterr().err
    main(["plan", "cost", "--hours", "1", "--card", "4090", *where])
    assert "as of 2031-05" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "lacks as_of"),
        ("as_of =", "no TOML"),
        ('as_of = "yesterday"\ncurrency = "USD"', "as_of = 'yesterday' is no day"),
        ('as_of = "2031-13"\ncurrency = "USD"', "as_of = '2031-13' is no day"),
        ('as_of = "2031"\ncurrency = "USD"\nelectricity = "cheap"\nperson = 1', "electricity = 'cheap'"),
        ('as_of = "2031"\ncurrency = "USD"\nelectricity = 1\nperson = -1', "person = -1"),
        ('as_of = "2031"\ncurrency = "USD"\nelectricity = 1\nperson = 1\nrent = 3', "rent is no table"),
        ('as_of = "2031"\ncurrency = "USD"\nelectricity = 1\nperson = 1', "no [rent] price"),
    ],
)
def test_a_price_table_that_cannot_be(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    assert main(["plan", "cost", "--hours", "1", "--card", "4090", "--prices", str(path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_power_adds_up_and_says_no(capsys: pytest.CaptureFixture[str]) -> None:
    made = power.power(450, 2, hours=10, average_watts=300, host_watts=100, supply_watts=1600)
    assert (made.peak_w, made.energy_kwh, made.fits) == (1000, 7.0, True)
    assert made.amps_12v == pytest.approx(1000 / 12)
    assert any("inner card" in line for line in made.warnings)
    assert power.power(450, 1).fits is None
    # 600 W at 12 V are 50 A: 80% of 62.5.
    assert power.power(450, 1, rail_amps=63).fits is True
    small = power.power(450, 1, rail_amps=62)
    assert small.fits is False
    assert "take one of 63 A or more" in small.warnings[0]
    assert power.power(450, 1, supply_watts=600, rail_amps=63).fits is False
    assert power.power(450, 1, supply_watts=1000, rail_amps=40).fits is False
    assert ask(capsys, "power", "--card", "4090", "--gpus", "2", "--psu", "1000")[0] == 1
