"""The dry run: live bytes counted, the allocator's rules, and two engines that agree."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from labassist.cli.main import main
from labassist.errors import InputError
from labassist.planner import arch, dry, formula
from labassist.planner.dryrun.allocator import Allocator, reserved
from labassist.planner.formula import CUBLAS_BYTES, GIB
from labassist.planner.memory import estimate
from labassist.planner.plan import Plan

KIB, MIB = 1024, 1024**2


@pytest.mark.parametrize(
    ("sizes", "held"),
    [
        ([512], 2 * MIB),
        ([MIB, MIB], 2 * MIB),
        ([MIB + 512], 20 * MIB),
        ([9 * MIB, 9 * MIB], 20 * MIB),
        ([10 * MIB], 10 * MIB),
        ([10 * MIB + 512], 12 * MIB),
        ([15 * MIB, 15 * MIB], 32 * MIB),
    ],
)
def test_segments_are_pytorchs(sizes: list[int], held: int) -> None:
    allocator = Allocator()
    allocator.run(enumerate(sizes))
    assert allocator.reserved == held


def test_a_freed_block_is_cut_and_grows_together_again() -> None:
    allocator = Allocator()
    allocator.run([(1, 100 * MIB), (1, -1)])
    allocator.run([(2, 40 * MIB), (3, 40 * MIB), (4, 20 * MIB)])
    assert allocator.reserved == 100 * MIB
    # Two holes of 40 with 20 between them hold no 80 ...
    allocator.run([(5, 80 * MIB)])
    assert allocator.reserved == 180 * MIB
    # ... but when all are free they are one block again.
    allocator.run([(2, -1), (3, -1), (4, -1), (6, 100 * MIB)])
    assert allocator.reserved == 180 * MIB
    assert allocator.allocated == 180 * MIB


def test_what_is_left_of_a_large_block_is_used_only_above_a_mebibyte() -> None:
    allocator = Allocator()
    allocator.run([(1, 100 * MIB), (1, -1), (2, 99 * MIB)])
    assert allocator.allocated == 100 * MIB
    allocator.run([(2, -1), (3, 99 * MIB - 512)])
    assert allocator.allocated == 99 * MIB - 512


def test_building_the_model_leaves_no_holes() -> None:
    events = [(1, 500 * MIB), (2, 100 * MIB), (1, -500 * MIB), (3, 50 * MIB)]
    assert reserved(events, built=3) == 150 * MIB


def test_live_bytes_counts_storages_once_and_lets_go() -> None:
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    from labassist.planner.dryrun.count import LiveBytes

    counter = LiveBytes()
    with FakeTensorMode(), counter:
        one = torch.empty(1000, 1000, dtype=torch.float32)
        assert counter.now == 4_000_256  # rounded up to 512
        view = one.view(-1)[10:]
        assert counter.now == 4_000_256
        two = one + 1
        assert counter.now == 2 * 4_000_256
        del two
        assert counter.now == 4_000_256
        del one
        assert counter.now == 4_000_256  # the view holds it
        del view
    assert counter.now == 0
    assert counter.peak == 2 * 4_000_256


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry, "NEEDS", ("torch", "no_such_package"))
    with pytest.raises(InputError, match=r"no_such_package.*labassist\[train\]"):
        dry.run(Plan(arch.load("gpt2"), method="full"))


def test_a_step_that_cannot_run_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry, "NEEDS", ())
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(InputError, match="cannot be run here") as caught:
        dry.run(Plan(arch.load("gpt2"), method="full"))
    assert "\n" not in str(caught.value)


def test_disagreement_is_a_share_of_the_larger() -> None:
    small, large = estimate(Plan(arch.load("gpt2"))), estimate(Plan(arch.load("qwen2.5-7b")))
    assert dry.disagreement(small, small) == 0
    assert dry.disagreement(small, large) == pytest.approx(1 - small.total_gib / large.total_gib)


def train_extra() -> None:
    for name in ("transformers", "peft", "bitsandbytes"):
        pytest.importorskip(name)


STEPS: list[tuple[str, dict[str, Any]]] = [
    ("qwen2.5-0.5b", {"method": "qlora", "seq": 2048, "batch": 2}),
    ("qwen3-0.6b", {"method": "full", "seq": 1024, "batch": 2, "optim": "adamw_torch_fused"}),
    ("llama-3.2-1b", {"method": "lora", "seq": 1024, "batch": 2, "lora_targets": ("all-linear",)}),
    ("gemma-3-1b", {"method": "lora", "seq": 1024, "batch": 2, "checkpointing": False}),
    ("smollm2-360m", {"method": "full", "seq": 512, "batch": 4, "dtype": "mixed", "loss": "full"}),
    (
        "gpt2",
        {"method": "full", "seq": 512, "batch": 4, "trainer": "loop", "loss": "full", "checkpointing": False},
    ),
    # The stock trainer's autocast, with blocks computed again and without.
    ("gpt2", {"method": "full", "seq": 1024, "batch": 16, "optim": "adamw_torch_fused"}),
    ("gpt2", {"method": "full", "seq": 512, "batch": 8, "checkpointing": False}),
    ("smollm2-360m", {"method": "lora", "seq": 1024, "batch": 1, "attention": "eager"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "values"), STEPS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_engines_agree(model: str, values: dict[str, Any]) -> None:
    train_extra()
    plan = Plan(arch.load(model), **values).checked()
    answer = dry.run(plan)
    assert answer["trainable"] == plan.trainable
    assert answer["reserved"] >= answer["peak"] > answer["loaded"]
    assert formula.peak(plan).total - CUBLAS_BYTES == pytest.approx(answer["peak"], rel=0.03)
    both = estimate(plan), dry.estimate_of(plan, answer)
    assert dry.disagreement(*both) < 0.1
    assert sum(both[1].parts.values()) / GIB == pytest.approx(both[1].total_gib)


@pytest.mark.slow
def test_the_dry_runs_numbers_are_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    train_extra()
    words = ["--model", "smollm2-135m", "--method", "lora", "--card", "24GB", "--dry-run", "--json"]
    assert main(["plan", "memory", *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["method"] == "dry-run"
    assert answer["formula"]["method"] == "formula"
    assert answer["disagree"] is (answer["apart"] > 0.05)


@pytest.mark.slow
def test_the_planner_itself_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from labassist.cli.main import main\n"
        "raise SystemExit(main(['plan', 'memory', '--model', 'gpt2', '--card', '4090']))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
