"""`plan time`, `cost`, `power`, `decide` and `claims`: arithmetic that can be checked by hand, and bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labassist.cli.main import main
from labassist.cli.plan_pace import Trained, pace
from labassist.errors import InputError
from labassist.planner import arch, cards, claims, cost, decide, power, time
from labassist.planner.plan import Plan
from labassist.workspace import Workspace
from tests.command import answer as run_answer
from tests.command import labassist, train


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status = main(["plan", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def plan(**values: Any) -> Plan:
    return Plan(arch.load("qwen2.5-7b"), **values).checked()


def test_flops_are_six_eight_four_six_times_the_weights() -> None:
    weights = arch.load("qwen2.5-7b").linear + arch.load("qwen2.5-7b").head
    for method, checkpointing, times in (
        ("full", False, 6),
        ("full", True, 8),
        ("lora", False, 4),
        ("qlora", True, 6),
    ):
        made = time.flops_a_token(plan(method=method, checkpointing=checkpointing, seq=1, batch=1))
        assert made == pytest.approx(times * weights, rel=1e-3)


def test_hours_are_flops_over_what_the_card_reaches() -> None:
    made = plan(method="full", seq=2048, batch=4)
    took = time.duration(made, cards.find("A100 80GB"), 1e9, mfu=(0.25, 0.5))
    expected = time.flops_a_token(made) * 1e9 / 312e12 / 3600
    assert took.hours == pytest.approx((expected / 0.5, expected / 0.25))


def test_two_cards_send_all_gradients_once_and_three_a_third_more() -> None:
    gradients = 2 * arch.load("qwen2.5-7b").parameters
    two = time.communication(plan(method="full", gpus=2), 10.0, 1.0)
    assert two.bytes == pytest.approx(gradients)
    assert two.seconds == pytest.approx(gradients / 8e9)
    three = time.communication(plan(method="full", gpus=3), 10.0, 1.0)
    assert three.bytes == pytest.approx(gradients * 4 / 3)
    assert 0 <= three.share_overlapped <= three.share_exposed < 1
    assert time.communication(plan(method="full"), 10.0, 1.0).bytes == 0


def test_calibration_is_the_median_after_the_warm_up() -> None:
    clock, times = 0.0, {0: 0.0}
    for step in range(1, 60):
        clock += 5.0 if step <= 5 else 9.0 if step == 12 else 0.5
        times[step] = clock
    made = time.calibrate(times, 1024)
    assert (made.steps, made.step_s, made.tokens_per_s) == (20, 0.5, 2048.0)


def test_calibration_needs_steps() -> None:
    with pytest.raises(InputError, match="needs 10"):
        time.calibrate({step: float(step) for step in range(12)}, 1)
    with pytest.raises(InputError, match="without time"):
        time.calibrate(dict.fromkeys(range(40), 1.0), 1)


def test_a_recorded_run_is_the_measure(workspace: Workspace) -> None:
    run = train(workspace.root)
    made = run_answer("plan", "time", "--run", "@last", cwd=workspace.root)
    assert made["run"]["id"] == run["id"]
    assert made["calibration"]["step_s"] > 0
    assert made["run"]["whole_s"] == pytest.approx(made["calibration"]["step_s"] * run["total_steps"])
    assert made["run"]["left_s"] == 0
    step_s = made["calibration"]["step_s"]
    more = run_answer("plan", "time", "--run", "@last", "--steps", "1k", cwd=workspace.root)
    assert more["asked"] == {"steps": 1000, "seconds": pytest.approx(1000 * more["calibration"]["step_s"])}
    tokens = str(50 * run["tokens_per_step"])
    more = run_answer("plan", "time", "--run", "@last", "--tokens", tokens, cwd=workspace.root)
    assert more["asked"]["seconds"] == pytest.approx(50 * step_s)
    for words, said in (
        (("--calibrate", "5"), "--calibrate: 5 steps are too few"),
        (("--batch", "4"), "--batch: says nothing without a model"),
        (("--card", "4090"), "--card: says nothing without a model"),
        (("--steps", "4", "--tokens", "1"), "once"),
    ):
        done = labassist("plan", "time", "--run", "@last", *words, cwd=workspace.root, status=2)
        assert said in done.stderr
    # The same model, planned for the same machine.
    context, own = run["config"]["context"], workspace.root / "config.json"
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": run["config"]["model.heads"], "vocab_size": 128}
    own.write_text(json.dumps({"model_type": "gpt2", **sizes, "n_positions": context}))
    words = ("--method", "full", "--seq", str(context), "--batch", "1", "--steps", "100")
    planned = run_answer("plan", "time", "--run", "@last", "--model", str(own), *words, cwd=workspace.root)
    rate = made["calibration"]["tokens_per_s"]
    assert planned["hours"] == pytest.approx(
        [100 * context / (rate * 1.1) / 3600, 100 * context / (rate / 1.1) / 3600]
    )
    assert planned["mfu"] is None
    for words in (
        ("--model", "llama-3.1-8b", "--method", "full", "--tokens", "1M", "--card", "4090"),
        ("--model", "llama-3.1-8b", "--method", "full", "--tokens", "1M"),
        ("--model", str(own), "--method", "lora", "--seq", str(context), "--tokens", "1M"),
        ("--model", str(own), "--method", "full", "--seq", str(context), "--tokens", "1M", "--card", "4090"),
    ):
        done = labassist("plan", "time", "--run", "@last", *words, cwd=workspace.root, status=2)
        assert f"run {run['id']} is of a " in done.stderr
        assert "; its pace says nothing of" in done.stderr
        assert (done.stderr.count("\n"), done.stdout) == (1, "")


def test_a_pace_over_the_cards_peak_is_refused_and_a_like_run_is_taken() -> None:
    made = plan(method="qlora", seq=2048, batch=2)
    h200 = cards.find("H200")
    run = Trained({"id": "r"}, None, made.trainable, "NVIDIA H200", 1)
    quick = time.Calibration(20, 1.0, 0.0, 9300.0)
    assert pace(run, quick, made, h200) == pace(run, quick, made, None) == 9300.0
    assert pace(replace(run, ranks=2), quick, made, h200) == 4650.0
    for card in (h200, None):
        with pytest.raises(InputError, match="TFLOP/s, and H200 has 989"):
            pace(run, replace(quick, tokens_per_s=1e6), made, card)
    for other, card in (
        (replace(run, gpu="NVIDIA GeForce RTX 4090"), h200),
        (replace(run, numbers=2 * made.trainable), h200),
        (replace(run, numbers=0), None),
        (replace(run, plan=made.with_(method="lora", optim="")), h200),
    ):
        with pytest.raises(InputError, match="its pace says nothing of"):
            pace(other, quick, made, card)


def test_time_and_cost_say_where_the_card_does_not_hold_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "llama-3.1-8b", "--method", "full", "--tokens", "1M", "--card"]
    for what in ("time", "cost"):
        for card, fits in (("4090", False), ("H200", True)):
            status, made = ask(capsys, what, *words, card)
            assert (status, made["fits"]) == (0, fits)
            assert main(["plan", what, *words, card]) == 0
            told = capsys.readouterr().out
            assert ("DOES NOT FIT RTX 4090: needs " in told) is not fits
            assert ("of 23.6 GiB" in told) is not fits
    assert ask(capsys, "cost", "--hours", "1", "--card", "4090")[1]["fits"] is None


@pytest.mark.parametrize(
    ("gpu", "card"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla V100-SXM2-16GB", "V100 16GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("", None),
    ],
)
def test_a_drivers_name_is_a_card_of_the_table(gpu: str, card: str | None) -> None:
    found = cards.of_gpu(gpu)
    assert (found.name if found else None) == card


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (["--tokens", "2.5M"], 2.5e6),
        (["--examples", "1000", "--epochs", "3"], 3 * 1000 * 1024),
        (["--steps", "10"], 10 * 8 * 1024),
    ],
)
def test_how_much_is_said_in_three_ways(
    words: list[str], tokens: float, capsys: pytest.CaptureFixture[str]
) -> None:
    status, made = ask(capsys, "time", "--model", "qwen2.5-7b", "--card", "4090", *words)
    assert status == 0
    assert made["tokens"] == tokens
    assert made["hours"][0] < made["hours"][1]


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


def test_wilson_holds_for_few_and_for_none() -> None:
    assert decide.wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert decide.wilson(4, 100) == pytest.approx((0.0157, 0.0984), abs=1e-4)
    assert decide.wilson(10, 10)[1] == pytest.approx(1.0)


def test_a_decision_is_a_record_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    status, empty = ask(capsys, "decide")
    assert status == 0
    assert [one["state"] for one in empty["conditions"]] == ["open"] * 4
    assert all(one["source"] for one in empty["conditions"])
    assert empty["alternatives"][0]["name"] == "a better prompt, with examples in it"
    words = (
        "decide --examples 5000 --sample 400 --errors 4 --prompt-score 0.6 --target-score 0.8 --eval-size 400 "
        "--people-hours 20 --budget-hours 100"
    )
    _, good = ask(capsys, *words.split())
    assert (good["met"], good["open"]) == (4, 0)
    assert good["alternatives"][0]["lab"] == "07-qlora"
    _, noisy = ask(capsys, *words.replace("--errors 4", "--errors 80").split())
    assert [one["state"] for one in noisy["conditions"]] == ["met", "met", "not met", "met"]
    # Twenty points on ten examples may be noise.
    _, few = ask(capsys, *words.replace("--eval-size 400", "--eval-size 10").split())
    assert few["conditions"][0]["state"] == "not met"


def test_thresholds_are_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        "\n".join(
            f'[{name}]\nvalue = 7\nsource = "mine"' for name in ("gap", "examples", "label_errors", "hours")
        )
    )
    _, made = ask(capsys, "decide", "--examples", "8", "--thresholds", str(own))
    assert made["conditions"][1] == {
        "name": "examples",
        "met": True,
        "threshold": 7,
        "source": "mine",
        "reason": "8 examples",
        "state": "met",
    }


def test_claims_agree_with_what_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    status, made = ask(capsys, "claims", "--verify")
    assert status == 0
    assert made["ok"] is True
    assert {one["id"] for one in made["checked"]} == claims.CHECKS.keys()
    bounded = {one["id"] for one in made["claims"] if one["expect"]}
    assert bounded == claims.CHECKS.keys()


def test_every_claim_says_how_and_its_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    for one in claims.claims():
        assert one.claim and one.verdict and one.corrected and one.how
        if one.command:
            words = shlex.split(one.command)
            assert words[0] == "labassist"
            assert main(words[1:]) in (0, 1), one.command
    capsys.readouterr()


def test_a_claim_that_disagrees_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(claims.CHECKS, "awq-p95", lambda: [1.0, 2.0, 3.0])
    status, made = ask(capsys, "claims", "--verify")
    assert status == 1
    assert [one["id"] for one in made["checked"] if not one["agrees"]] == ["awq-p95"]


MODEL = ["--model", "qwen2.5-7b", "--card", "4090"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["time", *MODEL], "say how much"),
        (["time", *MODEL, "--tokens", "1M", "--steps", "3"], "say how much"),
        (["time", *MODEL, "--tokens", "much"], "no amount"),
        (["time", *MODEL, "--tokens", "-3"], "no amount"),
        (["time", *MODEL, "--tokens", "0"], "no amount"),
        (["time", *MODEL, "--examples", "10", "--epochs", "-1"], "no number of epochs"),
        (["time", "--model", "qwen2.5-7b", "--tokens", "1M"], "names no card"),
        (["time", "--model", "qwen2.5-7b", "--card", "23GB", "--tokens", "1M"], "is not in the table"),
        (["time", *MODEL, "--tokens", "1M", "--mfu", "0.2-1.5"], "over 1"),
        (["time", *MODEL, "--tokens", "1M", "--mfu", "0.5-0.2"], "no range"),
        (["time", *MODEL, "--tokens", "1M", "--gpus", "2"], "no link"),
        (["time", *MODEL, "--tokens", "1M", "--gpus", "2", "--link", "PCIe 9"], "unknown link"),
        (["time", "--card", "4090", "--tokens", "1M"], "names no model"),
        (["time", *MODEL, "--tokens", "1M", "--epochs", "3"], "--epochs: says nothing without"),
        (["time", *MODEL, "--tokens", "1M", "--method", "inference"], "is no training"),
        (["cost"], "names no model"),
        (["cost", "--hours", "1"], "needs a card or its price"),
        (["cost", "--hours", "x", "--card", "4090"], "no range"),
        (["cost", "--hours", "1", "--card", "4090", "--price", "-1"], "--price"),
        (["cost", "--hours", "1", "--card", "4090", "--buffer", "0.5"], "--buffer"),
        (["cost", "--hours", "1", "--card", "4090", "--gpus", "0"], "--gpus"),
        (["cost", "--hours", "1", "--card", "4090", "--resale", "99999"], "--resale"),
        (["cost", "--hours", "1", "--card", "4090", "--hours-a-month", "0"], "--hours-a-month"),
        (["cost", "--hours", "1", "--model", "gpt2"], "not both"),
        (["cost", "--hours", "1", "--card", "4090", "--prices", "no.toml"], "no such file"),
        (["power"], "power is not known"),
        (["power", "--watts", "0"], "--watts"),
        (["power", "--card", "4090", "--gpus", "0"], "--gpus"),
        (["power", "--card", "4090", "--hours", "-1"], "--hours"),
        (["decide", "--sample", "10", "--errors", "11"], "is no share"),
        (["decide", "--sample", "0", "--errors", "0"], "is no share"),
        (["decide", "--prompt-score", "61", "--target-score", "0.8"], "--prompt-score"),
        (["decide", "--examples", "-1"], "no number of examples"),
        (["decide", "--thresholds", "no.toml"], "no such file"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *words]) == 2
    out, error = capsys.readouterr()
    assert said in error
    assert error.count("\n") == 1
    assert not out
