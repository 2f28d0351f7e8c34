"""Plans of bad input: each is one line that says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from labassist.cli.main import main

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
        (["cost", "--hours", "1", "--price", "1", "--person", "-40"], "--person"),
        (["cost", "--hours", "1", "--price", "1", "--person", "nan"], "--person"),
        (["cost", "--hours", "1", "--card", "4090", "--purchase", "inf"], "--purchase"),
        (["cost", "--hours", "1", "--card", "4090", "--purchase", "-5"], "--purchase"),
        (["cost", "--hours", "1", "--card", "4090", "--idle-watts", "-5"], "--idle-watts"),
        (["cost", "--hours", "1", "--card", "4090", "--exchange", "0.9"], "--exchange: says nothing"),
        (["cost", "--hours", "1", "--card", "4090", "--method", "full"], "--method: says nothing"),
        (["cost", "--hours", "1", "--card", "4090", "--tokens", "1M"], "--tokens: says nothing"),
        (["cost", "--hours", "", "--card", "4090"], "no range"),
        (["memory", "--model", "gpt2", "--card", ""], "unknown card ''"),
        (["memory", "--model", "gpt2", "--method", "full", "--strategy", "zero3"], "one card shares"),
        (["memory", "--model", "gpt2", "--gpus", "1", "--strategy", "zero1"], "one card shares"),
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
