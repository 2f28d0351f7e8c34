"""`plan time`: arithmetic that can be checked by hand, and the pace of recorded runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from command import answer as run_answer
from command import labassist, train
from plans import ask, plan

from labassist.cli.main import main
from labassist.cli.plan_pace import Trained, pace
from labassist.errors import InputError
from labassist.planner import arch, cards, time
from labassist.workspace import Workspace


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
    paid = run_answer(
        "plan",
        "cost",
        "--run",
        "@last",
        "--steps",
        "1k",
        "--price",
        "36",
        "--buffer",
        "1",
        cwd=workspace.root,
    )
    assert paid["total"] == pytest.approx([more["asked"]["seconds"] / 100] * 2)
    told = labassist("plan", "cost", "--run", "@last", "--steps", "1k", "--price", "36", cwd=workspace.root)
    assert f"run      {run['id']}: 1,000 steps at" in told.stdout
    if not run["versions"].get("gpu"):
        none = labassist("plan", "cost", "--run", "@last", "--steps", "1k", cwd=workspace.root, status=2)
        assert "--price: what the run was on has no price" in none.stderr
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
    small = plan(method="qlora").with_(model=arch.load("gpt2"), lora_targets=())
    with pytest.raises(InputError, match=r"of gpt2 \(124M\)"):
        pace(run, quick, small, h200)


def test_time_and_cost_name_what_they_took_for_granted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "qwen2.5-7b", "--card", "4090", "--tokens", "1"]
    for what in ("time", "cost"):
        assert main(["plan", what, *words]) == 0
        text = capsys.readouterr().out
        for default in ("seq 1024", "batch 8", "checkpointing yes", "optim adamw_torch_fused", "lora_r 16"):
            assert default in text
    # A token alone is a step all the same.
    _, made = ask(capsys, "time", *words)
    assert made["steps"] == 1
    assert made["hours"] == pytest.approx([one / 3600 for one in made["step_s"]])


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
