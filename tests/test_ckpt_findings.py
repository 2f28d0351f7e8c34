"""Every code that a check can say is made to happen here, and says what it means and how to mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ckpt_layouts as make
import pytest
import torch
from ckpt_cases import CASES, half_adapter, hf

from labassist.resume.check import Report, Several, check
from labassist.resume.findings import CODES, STATES, Finding


def test_every_code_has_a_case() -> None:
    assert set(CASES) == set(CODES)


@pytest.mark.parametrize("code", CASES)
def test_the_code_is_said(code: str, tmp_path: Path) -> None:
    report = CASES[code](tmp_path)
    found: list[Finding] = [one for one in report.found.findings if one.code == code]
    assert found, sorted({one.code for one in report.found.findings})
    for one in found:
        assert one.state is None or one.state in STATES
        assert "{" not in one.message + one.consequence + one.mend
        assert one.consequence.endswith(".") and not one.mend.endswith(".")
    worst = found[0].severity
    if worst == "error":
        assert report.verdict == "BROKEN"
    elif worst != "info":
        assert report.verdict in ("DEGRADED", "BROKEN")


@pytest.mark.parametrize(
    "plan",
    [
        {"max_steps": 20},
        {"num_train_epochs": 2},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "world_size": 1},
        {"dataset_length": 40},
        {"precision": "float32"},
        {"seed": 1},
    ],
)
def test_a_plan_that_keeps_everything_is_not_blamed(plan: dict[str, Any], tmp_path: Path) -> None:
    report = check(hf(tmp_path), plan)
    assert isinstance(report, Report)
    assert report.verdict == "EXACT"


def test_a_missing_scheduler_names_that_the_optimizer_is_skipped_too(tmp_path: Path) -> None:
    report = CASES["optimizer-skipped"](tmp_path)
    assert report.verdict == "DEGRADED"
    [one] = [one for one in report.found.findings if one.code == "optimizer-skipped"]
    assert one.state == "optimizer" and "scheduler.pt" in one.message


def test_the_same_fault_in_a_script_with_our_line_is_normal(tmp_path: Path) -> None:
    path = half_adapter(tmp_path)
    torch.save({"torch": torch.get_rng_state()}, path / "labassist-ahead-0.pt")
    report = check(path)
    assert isinstance(report, Report)
    assert report.verdict == "EXACT"
    assert {one.code: one.severity for one in report.found.findings}["adapter-dtype"] == "info"


def test_a_swap_of_ranks_is_seen_in_optimizer_files_too(tmp_path: Path) -> None:
    path = make.deepspeed(tmp_path)
    a, b = sorted(path.glob("*/*optim_states.pt"))
    a.rename(tmp_path / "aside")
    b.rename(a)
    (tmp_path / "aside").rename(b)
    report = check(path)
    assert isinstance(report, Report)
    assert report.found.states["optimizer"] == "inconsistent"
    assert [one.state for one in report.found.findings if one.code == "ranks-swapped"] == ["optimizer"]


def test_many_steps_of_nanochat_in_one_folder_are_many_checkpoints(tmp_path: Path) -> None:
    make.nanochat(tmp_path, step=3)
    make.nanochat(tmp_path, step=6)
    found = check(tmp_path)
    assert isinstance(found, Several)
    assert [report.found.step for report in found.reports] == [3, 6]
    (tmp_path / "optim_000006_rank1.pt").write_bytes(b"")
    found = check(tmp_path)
    assert isinstance(found, Several)
    assert str(found.document()["resume_from"]).endswith("model_000003.pt")


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        ("max_step = 3\n", "max_steps"),
        ("max_steps = true\n", "bool"),
        ("packing = 1\n", "int"),
        ("max_steps = \n", "TOML"),
        ("max_steps = -3\n", "max_steps = -3 cannot be"),
        ("num_train_epochs = nan\n", "num_train_epochs = nan cannot be"),
        ("per_device_train_batch_size = 0\n", "cannot be"),
        ("zero_stage = 4\n", "zero_stage = 4 cannot be"),
        ('precision = "bf61"\n', "did you mean bf16"),
        (f"# {'x' * (1 << 20)}\n", "too large"),
    ],
)
def test_a_plan_with_a_fault_is_one_line(plan: str, word: str, tmp_path: Path) -> None:
    from command import labassist

    (tmp_path / "plan.toml").write_text(plan)
    path = str(hf(tmp_path / "x"))
    done = labassist("ckpt", "check", path, "--plan", "plan.toml", cwd=tmp_path, status=2)
    assert done.stdout == "" and done.stderr.count("\n") == 1 and word in done.stderr


@pytest.mark.parametrize(("length", "blamed"), [(11, False), (10, True), (9, True)])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_has_given_all_is_seen_by_the_datasets_length(
    length: int, blamed: bool, workers: int, tmp_path: Path
) -> None:
    report = check(make.torchdata(tmp_path, workers=workers), {"dataset_length": length})
    assert isinstance(report, Report)
    assert ("epoch-boundary" in {one.code for one in report.found.findings}) == blamed
