"""Plans of bad input, words and model configs: each is one line that says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labassist.cli.main import main
from labassist.errors import InputError
from labassist.planner import arch

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
        (["memory", "--model", "qwen2.5-8b"], "did you mean qwen2.5-"),
        (["memory", "--model", "nothing-like-it"], "unknown model"),
        (["memory", "--model", "missing.json"], "no such file"),
        (["memory"], "names no model"),
        (["memory", "--model", "gpt2", "--method", "qlra"], "did you mean qlora"),
        (["memory", "--model", "gpt2", "--gpus", "0"], "--gpus: 0"),
        (["memory", "--model", "gpt2", "--gpus", "-1"], "--gpus: -1"),
        (["memory", "--model", "gpt2", "--seq", "0"], "--seq: 0"),
        (["memory", "--model", "gpt2", "--batch", "-4"], "--batch: -4"),
        (["memory", "--model", "gpt2", "--batch", "1000000000"], "--batch: 1000000000"),
        (["memory", "--model", "gpt2", "--batch", "two"], "invalid int"),
        (["memory", "--model", "gpt2", "--lora-r", "0"], "--lora-r: 0"),
        (["memory", "--model", "gpt2", "--lora-dropout", "1"], "--lora-dropout"),
        (["memory", "--model", "gpt2", "--lora-dropout", "nan"], "--lora-dropout"),
        (["memory", "--model", "gpt2", "--lora-targets", ","], "names no layer"),
        (["memory", "--model", "qwen2.5-7b", "--lora-targets", "q_prj"], "did you mean q_proj"),
        (["memory", "--model", "phi-4", "--lora-targets", "q_proj"], "its linear layers are qkv_proj"),
        (["memory", "--model", "gpt2", "--optim", "adamw_torchh"], "did you mean adamw_torch"),
        (["memory", "--model", "gpt2", "--optim", "muon"], "is not known here"),
        (["memory", "--model", "gpt2", "--dtype", "fp8"], "bf16, fp32, mixed"),
        (["memory", "--model", "gpt2", "--method", "qlora", "--dtype", "fp32"], "computes in bf16"),
        (["memory", "--model", "gpt2", "--attention", "flsh"], "did you mean flash"),
        (["memory", "--model", "gpt2", "--strategy", "zero4"], "did you mean zero"),
        (["memory", "--model", "gpt2", "--gpus", "2", "--strategy", "zero3"], "sharding a 4-bit base"),
        (["memory", "--model", "gpt2", "--card", "A4090X"], "unknown card"),
        (["memory", "--model", "gpt2", "--card", "0GB"], "no card's memory"),
        (["memory", "--model", "gpt2", "--card=-24GB"], "unknown card"),
        (["memory", "--model", "gpt2", "--gpus", "2", "--dry-run"], "of one GPU"),
        (
            ["memory", "--model", "gpt2", "--method", "full", "--lora-r", "8"],
            "--lora-r: says nothing with --method full",
        ),
        (["memory", "--model", "gpt2", "--method", "inference", "--optim", "sgd"], "--optim: says nothing"),
        (
            ["memory", "--model", "gpt2", "--method", "inference", "--no-checkpointing"],
            "--checkpointing: says nothing",
        ),
        (
            ["memory", "--model", "gpt2", "--method", "inference", "--strategy", "fsdp"],
            "--strategy: says nothing",
        ),
        (["memory", "--model", "gpt2", "--method", "inference", "--gpus", "2"], "tensor parallelism"),
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


DENSE = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"num_experts": 128, "num_experts_per_tok": 8}, "mixture of experts"),
        ({"vision_config": {"hidden_size": 1}}, "vision"),
        ({"model_type": "mamba"}, "'mamba' is not covered"),
        ({"model_type": "llama2"}, "did you mean llama"),
        ({"model_type": None}, "no model_type"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"hidden_size": None, "vocab_size": None}, "lacks hidden_size, vocab_size"),
        ({"num_hidden_layers": -2}, "num_hidden_layers = -2"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000"),
        ({"vocab_size": "many"}, "vocab_size = 'many'"),
        ({"hidden_size": 64.5}, "hidden_size = 64.5"),
        ({"hidden_size": True}, "hidden_size = True"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"num_attention_heads": 128}, "more than the hidden size"),
    ],
)
def test_a_config_that_cannot_be_says_so(
    change: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**DENSE, **change}))
    assert main(["plan", "memory", "--model", str(path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert str(path) in error
    assert error.count("\n") == 1


def test_a_config_writes_no_commands_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**DENSE, "_name_or_path": "a\x1b[31m\nFITS"}))
    assert main(["plan", "memory", "--model", str(path)]) == 0
    assert capsys.readouterr().out.startswith("a\\x1b[31m FITS  ")


@pytest.mark.parametrize("text", ["", "[1]", "{", "\x00", "[" * 100_000])
def test_a_config_that_is_no_json_says_so(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert main(["plan", "memory", "--model", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        arch.load(str(tmp_path))
