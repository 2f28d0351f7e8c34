"""Bad input to the memory planner: a config that cannot be, a word that is none, each with one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labassist.cli.main import main
from labassist.errors import InputError
from labassist.planner import arch

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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "qwen2.5-8b"], "did you mean qwen2.5-"),
        (["--model", "nothing-like-it"], "unknown model"),
        (["--model", "missing.json"], "no such file"),
        ([], "names no model"),
        (["--model", "gpt2", "--method", "qlra"], "did you mean qlora"),
        (["--model", "gpt2", "--gpus", "0"], "--gpus: 0"),
        (["--model", "gpt2", "--gpus", "-1"], "--gpus: -1"),
        (["--model", "gpt2", "--seq", "0"], "--seq: 0"),
        (["--model", "gpt2", "--batch", "-4"], "--batch: -4"),
        (["--model", "gpt2", "--batch", "1000000000"], "--batch: 1000000000"),
        (["--model", "gpt2", "--batch", "two"], "invalid int"),
        (["--model", "gpt2", "--lora-r", "0"], "--lora-r: 0"),
        (["--model", "gpt2", "--lora-dropout", "1"], "--lora-dropout"),
        (["--model", "gpt2", "--lora-dropout", "nan"], "--lora-dropout"),
        (["--model", "gpt2", "--lora-targets", ","], "names no layer"),
        (["--model", "qwen2.5-7b", "--lora-targets", "q_prj"], "did you mean q_proj"),
        (["--model", "phi-4", "--lora-targets", "q_proj"], "its linear layers are qkv_proj"),
        (["--model", "gpt2", "--optim", "adamw_torchh"], "did you mean adamw_torch"),
        (["--model", "gpt2", "--optim", "muon"], "is not known here"),
        (["--model", "gpt2", "--dtype", "fp8"], "bf16, fp32, mixed"),
        (["--model", "gpt2", "--method", "qlora", "--dtype", "fp32"], "computes in bf16"),
        (["--model", "gpt2", "--attention", "flsh"], "did you mean flash"),
        (["--model", "gpt2", "--strategy", "zero4"], "did you mean zero"),
        (["--model", "gpt2", "--gpus", "2", "--strategy", "zero3"], "sharding a 4-bit base"),
        (["--model", "gpt2", "--card", "A4090X"], "unknown card"),
        (["--model", "gpt2", "--card", "0GB"], "no card's memory"),
        (["--model", "gpt2", "--card=-24GB"], "unknown card"),
        (["--model", "gpt2", "--gpus", "2", "--dry-run"], "of one GPU"),
        (
            ["--model", "gpt2", "--method", "full", "--lora-r", "8"],
            "--lora-r: says nothing with --method full",
        ),
        (["--model", "gpt2", "--method", "inference", "--optim", "sgd"], "--optim: says nothing"),
        (["--model", "gpt2", "--method", "inference", "--no-checkpointing"], "--checkpointing: says nothing"),
        (["--model", "gpt2", "--method", "inference", "--strategy", "fsdp"], "--strategy: says nothing"),
        (["--model", "gpt2", "--method", "inference", "--gpus", "2"], "tensor parallelism"),
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
    assert main(["plan", "memory", *words]) == 2
    out, error = capsys.readouterr()
    assert said in error
    assert error.count("\n") == 1
    assert not out


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        arch.load(str(tmp_path))
