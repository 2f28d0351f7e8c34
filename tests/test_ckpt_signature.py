"""The culprit is named from where a resumed run leaves the unbroken one."""

from __future__ import annotations

from typing import Any

import pytest

from labassist.ledger.curves import Curve
from labassist.resume.signature import first_difference, read

ORIGIN, LAST = 10, 20


def curve(**changes: dict[int, Any]) -> Curve:
    """Return a curve of 20 steps, changed at some."""
    steps = range(1, LAST + 1)
    series: dict[str, dict[int, Any]] = {
        "batch": {step: f"{step:016x}" for step in steps},
        "loss": {step: 4.0 - step / 10 for step in steps},
        "grad_norm": {step: 1.0 + step for step in steps},
        "lr": {step: 1e-3 / step for step in steps},
    }
    for name, values in changes.items():
        series[name] |= values
    return Curve(list(steps), dict(series))


def from_(step: int, value: Any) -> dict[int, Any]:
    return dict.fromkeys(range(step, LAST + 1), value)


@pytest.mark.parametrize(
    ("changes", "culprit", "resumed_step"),
    [
        ({"batch": from_(11, "f" * 16), "loss": from_(11, 9.0)}, "data_position", 1),
        ({"loss": from_(11, 2.95)}, "rng", 1),
        ({"loss": from_(11, 3.95)}, "model", 1),
        ({"grad_norm": from_(11, 0.0)}, "model", 1),
        ({"loss": from_(12, 5.0)}, "optimizer", 2),
        ({"loss": from_(12, 5.0), "lr": {11: 0.5}}, "optimizer", 2),
        ({"loss": from_(13, 5.0), "lr": from_(12, 0.5)}, "scheduler", 2),
    ],
)
def test_a_culprit_is_named(changes: dict[str, dict[int, Any]], culprit: str, resumed_step: int) -> None:
    found = read(curve(), curve(**changes), ORIGIN)
    assert found.culprit == culprit
    assert found.first and found.first["resumed_step"] == resumed_step
    assert found.words


def test_a_state_that_the_check_suspects_comes_first() -> None:
    changed = curve(loss=from_(12, 5.0))
    assert read(curve(), changed, ORIGIN, {"model"}).culprit == "model"
    assert read(curve(), changed, ORIGIN, {"rng"}).culprit == "optimizer"
    assert read(curve(), curve(grad_norm=from_(11, 0.0)), ORIGIN, fp16=True).culprit == "scaler"


def test_equal_runs_have_no_culprit_and_unequal_jobs_neither() -> None:
    assert read(curve(), curve(), ORIGIN).first is None
    early = read(curve(), curve(loss=from_(4, 5.0)), ORIGIN)
    assert early.culprit is None and "before the interruption" in early.words


def test_a_rate_is_compared_from_the_second_resumed_step_on() -> None:
    assert first_difference(curve(), curve(lr={11: 0.5}), ORIGIN) is None
    assert first_difference(curve(), curve(lr={12: 0.5}), ORIGIN) == {
        "step": 12,
        "resumed_step": 2,
        "series": "lr",
        "a": 1e-3 / 12,
        "b": 0.5,
    }
