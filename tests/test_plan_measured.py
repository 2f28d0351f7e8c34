"""The planner against every step that was measured and kept, and what those steps showed it to have wrong."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from labassist.errors import InputError
from labassist.planner import arch, cards, formula
from labassist.planner.formula import GIB
from labassist.planner.memory import estimate
from labassist.planner.plan import Plan

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "h200-memory"


@pytest.fixture(scope="module")
def rows() -> Any:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        import planner_rows
    finally:
        sys.path.remove(str(ROOT / "bench"))
    names = ("given", "one-gpu", "two-gpus", "later")
    return [row for name in names for row in planner_rows.measured(RESULTS / f"{name}.jsonl")]


def plan(model: str, **values: Any) -> Plan:
    return Plan(arch.load(model), **values).checked()


def test_every_measured_step_is_within_the_bar(rows: Any) -> None:
    errors = {}
    for row in rows:
        row.formula_total = estimate(row.plan).total_gib
        row.formula_allocated = formula.peak(row.plan).total / GIB
        if not row.oom:
            errors[row.key] = abs(row.error)
    assert len(errors) >= 50
    assert max(errors.values()) <= 0.10, max(errors, key=lambda key: errors[key])
    assert statistics.mean(errors.values()) <= 0.05


def test_what_ran_out_of_memory_is_not_called_fitting(rows: Any) -> None:
    card = cards.find("24GB")
    lost = [row for row in rows if row.oom]
    assert len(lost) == 5
    assert not [row.name for row in lost if estimate(row.plan).fits(card)]
    ran = [row for row in rows if row.cap_gib is not None and not row.oom]
    assert sum(estimate(row.plan).fits(card) for row in ran) >= len(ran) - 1


def test_embeddings_keep_32_bit_moments_beside_8_bit_ones_in_transformers_trainer() -> None:
    stock = plan("llama-3.2-1b", method="full", optim="adamw_8bit")
    loop = stock.with_(trainer="loop")
    table = stock.model.head
    more = formula.optimizer_bytes(stock)[0] - formula.optimizer_bytes(loop)[0]
    assert more == pytest.approx(6 * table, rel=0.01)
    assert formula.optimizer_bytes(stock.with_(optim="paged_adamw_8bit"))[1] > 8 * table


def test_a_tied_embedding_has_one_gradient_beside_the_heads() -> None:
    tied = plan("qwen3-1.7b", method="full", optim="adamw_torch_fused", seq=512, batch=1)
    (moment,) = [one for one in formula.moments(tied) if one.moment == "embedding"]
    whole = 2 * tied.trainable
    assert moment.parts["gradients"] == whole + 2 * tied.model.head


def test_gpt2_keeps_fp32_powers_under_autocast_alone() -> None:
    stock = plan("gpt2-medium", method="full", seq=1024, batch=4, checkpointing=False)
    loop = stock.with_(trainer="loop")
    kept = [formula.moments(one)[0].parts["activations"] for one in (stock, loop)]
    a = stock.model
    assert kept[0] - kept[1] == a.layers * stock.tokens * (6 * a.ffn + 4 * a.hidden)


def test_zero_3_updates_a_billion_numbers_at_a_time() -> None:
    settings = {
        "method": "full",
        "optim": "adamw_torch",
        "seq": 1024,
        "batch": 1,
        "gpus": 2,
        "strategy": "zero3",
    }
    small, large = plan("qwen2.5-1.5b", **settings), plan("llama-3.1-8b", **settings)
    updates = []
    for one in (small, large):
        (moment,) = [m for m in formula.moments(one) if m.moment == "update"]
        updates.append(moment.parts["workspace"])
    bucket = 2 * 500_000_000 + formula.CUBLAS_BYTES
    assert updates[0] == pytest.approx(8 * small.trainable / 2 + bucket, rel=0.001)
    assert updates[1] == pytest.approx(8e9 + bucket, rel=0.001)


def test_a_text_longer_than_the_learned_positions_is_refused() -> None:
    with pytest.raises(InputError, match=r"--seq 2048: gpt2 has learned 1,024 positions"):
        plan("gpt2", seq=2048)


def test_the_cases_are_listed_without_a_gpu() -> None:
    words = [sys.executable, str(ROOT / "bench" / "memory_truth.py"), "--list", "--group", "one", "two"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(listed) == len(set(listed)) == 39
    assert "two: qwen2.5-1.5b full 2x1024 gc strategy=zero2" in listed
