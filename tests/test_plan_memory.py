"""`plan memory`: parts that sum, counts that are the published ones, verdicts that can be trusted."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import ask, plan

from labassist.cli.main import main
from labassist.errors import InputError
from labassist.planner import arch, cards, formula, inference
from labassist.planner.formula import GIB
from labassist.planner.memory import PARTS, estimate
from labassist.planner.plan import STOCK_OPTIMIZER
from labassist.planner.suggest import largest_batch
from tests.test_imports import loaded

QWEN = ("--model", "qwen2.5-7b", "--seq", "2048", "--batch", "2")


@pytest.mark.parametrize("name", arch.names())
def test_parameters_are_the_published_count(name: str) -> None:
    model = arch.load(name)
    if model.published:
        assert model.parameters == model.published
    else:
        assert "its text part" in model.source


def test_parts_sum_to_what_nvidia_smi_shows(capsys: pytest.CaptureFixture[str]) -> None:
    status, answer = ask(capsys, "memory", *QWEN, "--method", "qlora", "--card", "24GB")
    assert status == 0
    assert {"fits", "card_gib", "total_gib", "parts", "method", "suggestions"} <= answer.keys()
    assert tuple(answer["parts"]) == PARTS
    assert sum(answer["parts"].values()) == pytest.approx(answer["total_gib"])
    assert answer["fits"] is True
    assert answer["method"] == "formula"
    # Measured on an H200 with TRL 1.16: 8.35 GiB.
    assert answer["total_gib"] == pytest.approx(8.35, rel=0.05)


def test_what_does_not_fit_exits_1_and_names_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    status, answer = ask(capsys, "memory", *QWEN, "--method", "full", "--card", "24GB")
    assert status == 1
    assert answer["fits"] is False
    assert answer["suggestions"]
    for one in answer["suggestions"]:
        assert one["speed"]
        changed = {"--method": "full"}
        words = " ".join(one["options"]).split()
        changed.update(zip(words[::2], words[1::2], strict=True))
        again, fitting = ask(capsys, "memory", *QWEN, *sum(changed.items(), ()), "--card", "24GB")
        assert again == 0, one
        assert fitting["total_gib"] == pytest.approx(one["total_gib"])
    assert "H200" in answer["holders"]


@pytest.mark.parametrize(
    "given",
    [
        {"--model": "gemma-2-9b", "--method": "full", "--dtype": "mixed", "--batch": "3", "--card": "L4"},
        {"--model": "phi-4", "--method": "lora", "--gpus": "2", "--strategy": "zero3", "--card": "16GB"},
        {"--model": "gemma-3-27b", "--method": "full", "--batch": "3", "--optim": "sgd", "--card": "12GB"},
        {"--model": "phi-4", "--method": "full", "--optim": "paged_adamw_32bit", "--seq": "4096", "--card": "16GB"},
    ],
)  # fmt: skip
def test_a_suggestion_can_be_typed_as_it_stands(
    given: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, answer = ask(capsys, "memory", *sum(given.items(), ()))
    assert status == 1
    assert answer["suggestions"]
    for one in answer["suggestions"]:
        words = " ".join(one["options"]).split()
        changed = given | dict(zip(words[::2], words[1::2], strict=True))
        again, fitting = ask(capsys, "memory", *sum(changed.items(), ()))
        assert again == 0, one
        assert fitting["total_gib"] == pytest.approx(one["total_gib"])


def test_text_names_defaults_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "memory", "--model", "qwen2.5-7b", "--card", "4090"]) == 0
    text = capsys.readouterr().out
    for words in (
        "FITS",
        "checkpointing yes",
        "lora_r 16",
        "q_proj,k_proj,v_proj,o_proj",
        "loss chunked",
        "optim adamw_torch_fused",
        "bf16",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "llama-2-7b", "--seq", "8192", "--batch", "1"], "made for 4,096 positions"),
        (["--model", "llama-2-7b", "--seq", "4096", "--batch", "1"], ""),
        (["--model", "qwen2.5-0.5b", "--card", "T4"], "T4 has no native bf16"),
        (
            ["--model", "qwen2.5-0.5b", "--card", "V100 16GB", "--method", "full", "--dtype", "mixed"],
            "no native bf16",
        ),
        (["--model", "qwen2.5-0.5b", "--card", "T4", "--method", "full", "--dtype", "fp32"], ""),
        (["--model", "qwen2.5-0.5b", "--card", "T4", "--method", "full"], "plan it as --dtype mixed"),
        (["--model", "google/gemma-3-4b-it"], "holds a vision part"),
        (["--model", "gemma-3-1b"], ""),
        (["--model", "qwen2.5-0.5b", "--card", "4090"], ""),
    ],
)
def test_what_may_not_do_what_was_meant_is_noted(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, answer = ask(capsys, "memory", *words)
    assert [said in one for one in answer["warnings"]] == [True] * bool(said)
    main(["plan", "memory", *words])
    assert ("note: " in capsys.readouterr().out) is bool(said)
    _, answer = ask(
        capsys, "time", *words, "--tokens", "1M", *([] if "--card" in words else ["--card", "H200"])
    )
    assert bool(answer["warnings"]) is bool(said)


def test_the_default_optimizer_is_the_same_for_every_method() -> None:
    for method in ("full", "lora", "qlora"):
        assert plan(method=method).settings()["optim"] == STOCK_OPTIMIZER


@pytest.mark.slow
def test_the_default_optimizer_is_the_stock_trainers(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    made = trl.SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[])
    assert made.optim.value == STOCK_OPTIMIZER


def test_inference_that_does_not_fit_says_what_is_not_covered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "memory", "--model", "qwen2.5-72b", "--method", "inference", "--card", "24GB"]) == 1
    text = capsys.readouterr().out
    assert "or a larger card" in text and "tensor parallelism" in text


def published() -> list[dict[str, Any]]:
    path = Path(__file__).parent.parent / "bench" / "planner_published.toml"
    rows: list[dict[str, Any]] = tomllib.loads(path.read_text())["row"]
    return rows


@pytest.mark.parametrize("row", published(), ids=lambda row: " ".join(str(value) for value in row.values()))
def test_published_peaks(row: dict[str, Any]) -> None:
    values = {"method": "full", "checkpointing": False, "lora_dropout": 0.0, **row}
    model, peak = values.pop("model"), values.pop("peak")
    made = plan(
        model,
        **values,
        optim="adamw_torch",
        seq=2048,
        batch=1,
        loss="full",
        trainer="loop",
        padded=values.get("attention") != "eager",
    )
    assert formula.peak(made).total == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize(
    ("name", "mib"),
    [("4090", 24564), ("RTX 3090", 24576), ("h200", 143771), ("5090", 32607), ("24GB", 24564)],
)
def test_card_sizes_are_the_drivers(name: str, mib: float) -> None:
    assert cards.find(name).total_mib == mib


def test_every_card_keeps_some_memory_for_its_driver() -> None:
    for card in cards.known():
        assert 0.95 * card.total_mib < card.usable_mib < card.total_mib
        assert card.source


def test_name_hub_id_file_and_folder_are_one(tmp_path: Path) -> None:
    by_name = arch.load("qwen2.5-0.5b")
    (tmp_path / "config.json").write_text(json.dumps(by_name.config))
    for other in (
        "Qwen/Qwen2.5-0.5B",
        "Qwen/Qwen2.5-0.5B-Instruct",
        str(tmp_path),
        str(tmp_path / "config.json"),
    ):
        model = arch.load(other)
        assert model.parameters == by_name.parameters
        assert model.matrices == by_name.matrices


def test_a_hub_id_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--someone--their-model" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(arch.load("smollm2-135m").config))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert arch.load("someone/their-model").parameters == arch.load("smollm2-135m").parameters
    with pytest.raises(InputError, match="unknown model 'someone/another'"):
        arch.load("someone/another")


METHODS = st.sampled_from(["full", "lora", "qlora", "inference"])
MODELS = st.sampled_from(arch.names())


@settings(max_examples=150, deadline=None)
@given(MODELS, METHODS, st.booleans(), st.sampled_from([1, 2, 4]), st.sampled_from([128, 1000, 4096]))
def test_more_never_takes_less(model: str, method: str, checkpointing: bool, batch: int, seq: int) -> None:
    longest = arch.load(model).positions or seq
    made = plan(model, method=method, checkpointing=checkpointing, batch=batch, seq=min(seq, longest))
    total = estimate(made).total_gib
    assert total > 0
    assert all(value >= 0 for value in estimate(made).parts.values())
    assert estimate(made.with_(batch=2 * batch)).total_gib >= total
    assert estimate(made.with_(seq=2 * seq)).total_gib >= total
    if made.trains:
        assert formula.peak(made.with_(checkpointing=True)).total <= formula.peak(made).total + GIB // 1000
        assert estimate(made.with_(accumulate=2)).total_gib >= total


def test_methods_and_strategies_are_in_their_order() -> None:
    totals = [estimate(plan(method=method)).total_gib for method in ("qlora", "lora", "full")]
    assert totals == sorted(totals)
    four = plan("llama-3.1-8b", method="full", gpus=4, batch=1)
    by_strategy = [estimate(four.with_(strategy=one)) for one in ("zero3", "zero2", "zero1")]
    assert [one.total_gib for one in by_strategy] == sorted(one.total_gib for one in by_strategy)
    for strategy in ("ddp", "zero1", "zero2", "zero3", "fsdp"):
        # What belongs to a card's own batch is the same on one card and on four.
        one, many = (
            formula.peak(plan(method="lora")),
            formula.peak(plan(method="lora", gpus=4, strategy=strategy)),
        )
        assert many.parts["activations"] == one.parts["activations"]


def test_zero3_holds_sixteen_bytes_over_the_cards() -> None:
    # bf16 weights and gradients, an fp32 master copy and two fp32 moments.
    made = estimate(plan("llama-2-13b", method="full", gpus=4, strategy="zero3"))
    states = made.parts["weights"] + made.parts["gradients"] + made.parts["optimizer"]
    assert states == pytest.approx(16 * arch.load("llama-2-13b").parameters / 4, rel=1e-6)


def test_key_value_cache_of_a_known_model() -> None:
    # 2 x 32 layers x 4,096 x 2 bytes: the half MiB a token that is often quoted.
    assert inference.cache_bytes_a_token(plan("llama-2-7b", method="inference")) == 512 * 1024
    # Grouped queries: 8 of 32 heads.
    assert inference.cache_bytes_a_token(plan("llama-3.1-8b", method="inference")) == 128 * 1024


def test_vllm_takes_its_share_whatever_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    status, answer = ask(
        capsys, "memory", "--model", "qwen2.5-0.5b", "--method", "inference", "--card", "4090"
    )
    assert status == 0
    assert answer["vllm"]["takes_gib"] == pytest.approx(0.92 * answer["usable_gib"])
    assert answer["total_gib"] < answer["vllm"]["takes_gib"]


def test_largest_batch_is_the_largest() -> None:
    made, card = plan(), cards.find("4090")
    batch = largest_batch(made, card)
    assert estimate(made.with_(batch=batch)).fits(card)
    assert not estimate(made.with_(batch=batch + 1)).fits(card)


def test_planning_loads_nothing_heavy(tmp_path: Path) -> None:
    code = "from labassist.cli.main import main\nassert main(['plan', 'memory', '--model', 'gpt2', '--card', '4090']) == 0"
    assert loaded(code, cwd=tmp_path) == set()
