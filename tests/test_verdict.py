from __future__ import annotations

import struct
from pathlib import Path

import pytest

from labassist.errors import InputError
from labassist.ledger.curves import Curve
from labassist.ledger.store import Ledger
from labassist.ledger.verdict import compare, keep

STEPS = range(1, 6)


def curve(**series: dict[int, float | str]) -> Curve:
    steps = sorted({step for values in series.values() for step in values})
    return Curve(steps, dict(series))


def run(loss: dict[int, float] | None = None, **more: dict[int, float | str]) -> Curve:
    base: dict[str, dict[int, float | str]] = {
        "batch": {step: f"{step:016x}" for step in STEPS},
        "loss": {step: 2.0 / step for step in STEPS},
        "grad_norm": dict.fromkeys(STEPS, 0.5),
    }
    return curve(**{**base, **({"loss": loss} if loss else {}), **more})


SAME = ({"model/w": "a" * 64}, {"model/w": "a" * 64})


def test_equal_runs_are_bitwise_and_say_how_much_was_compared() -> None:
    found = compare(run(), run(), SAME)
    assert (found.verdict, found.steps, found.series, found.tensors) == ("BITWISE", 5, 3, 1)
    assert found.first_difference is None


def test_one_bit_of_one_loss_is_a_divergence_at_its_step() -> None:
    loss = {step: 2.0 / step for step in STEPS}
    loss[3] = struct.unpack("<d", struct.pack("<Q", struct.unpack("<Q", struct.pack("<d", loss[3]))[0] + 1))[
        0
    ]
    found = compare(run(), run(loss), SAME)
    assert found.verdict == "DIVERGED"
    assert found.first_difference is not None
    assert (found.first_difference["step"], found.first_difference["series"]) == (3, "loss")
    assert "optimizer or learning rate" in found.likely_causes[0]


def test_at_one_step_the_batch_is_named_before_the_loss_that_follows_from_it() -> None:
    batch: dict[int, float | str] = {step: f"{step:016x}" for step in STEPS}
    batch[2] = "f" * 16
    loss = {step: 2.0 / step for step in STEPS} | {2: 9.0}
    found = compare(run(), run(loss, batch=batch), SAME)
    assert found.first_difference is not None
    assert found.first_difference["series"] == "batch"
    assert "data order" in found.likely_causes[0]


def test_first_step_points_to_weights() -> None:
    found = compare(run(), run({step: 2.0 / step for step in STEPS} | {1: 2.5}), SAME)
    assert "weights, RNG or kernel" in found.likely_causes[0]


def test_a_changed_tensor_alone_is_a_divergence() -> None:
    found = compare(run(), run(), ({"model/w": "a", "model/v": "b"}, {"model/w": "a", "model/v": "c"}))
    assert found.verdict == "DIVERGED"
    assert found.first_difference == {"tensor": "model/v", "tensors": 1}


@pytest.mark.parametrize("swap", [False, True])
def test_what_is_missing_on_either_side_is_incomplete(swap: bool) -> None:
    whole, part = run(), run({step: 2.0 / step for step in range(1, 4)})
    pair = (part, whole) if swap else (whole, part)
    assert compare(*pair, SAME).verdict == "INCOMPLETE"
    more = run(eval_loss={5: 1.0})
    pair = (more, whole) if swap else (whole, more)
    assert compare(*pair, SAME).verdict == "INCOMPLETE"
    tensors = ({"a": "1", "b": "2"}, {"a": "1"})
    assert compare(whole, run(), tensors[::-1] if swap else tensors).verdict == "INCOMPLETE"


def test_a_hundred_series_that_a_side_lacks_are_said_in_a_line() -> None:
    many = {f"norm/{number:03d}": dict.fromkeys(STEPS, 1.0) for number in range(100)}
    assert compare(run(**many), run(), SAME).likely_causes == [
        "the replay has no series norm/000, norm/001, norm/002, norm/003, norm/004, norm/005 and 94 more"
    ]
    short = {name: dict.fromkeys(range(1, 4), 1.0) for name in many}
    assert compare(run(**short), run(**many), SAME).likely_causes == [
        "the original lacks norm/000, norm/001, norm/002, norm/003, norm/004, norm/005 and 94 more "
        "at 2 steps, first 4"
    ]
    assert compare(run(**many), Curve(), None).likely_causes == ["the replay recorded no step"]


def test_nothing_to_compare_is_incomplete_and_not_equal() -> None:
    assert compare(Curve(), Curve(), None).verdict == "INCOMPLETE"


def test_nan_equals_only_its_own_bits() -> None:
    quiet = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000))[0]
    other = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    loss = {step: 2.0 / step for step in STEPS}
    assert compare(run(loss | {4: quiet}), run(loss | {4: quiet}), SAME).verdict == "BITWISE"
    assert compare(run(loss | {4: quiet}), run(loss | {4: other}), SAME).verdict == "DIVERGED"


def test_a_named_tolerance_makes_noise_of_a_small_difference_and_not_of_a_large_one() -> None:
    loss = {step: 2.0 / step for step in STEPS}
    near, far = run(loss | {3: loss[3] * (1 + 1e-7)}), run(loss | {3: loss[3] * 1.1})
    assert compare(run(), near, SAME).verdict == "DIVERGED"
    found = compare(run(), near, SAME, tolerance="fp32")
    assert found.verdict == "WITHIN_NOISE"
    assert "fp32" in found.likely_causes[0]
    assert compare(run(), far, SAME, tolerance="fp32").verdict == "DIVERGED"
    with pytest.raises(InputError, match="unknown tolerance"):
        compare(run(), near, SAME, tolerance="fp33")


def test_a_noise_bound_needs_three_recorded_repeats() -> None:
    loss = {step: 2.0 / step for step in STEPS}
    repeats = [run(loss | {3: loss[3] + shift}) for shift in (0.01, -0.01, 0.02)]
    inside, outside = run(loss | {3: loss[3] + 0.015}), run(loss | {3: loss[3] + 0.05})
    assert compare(run(), inside, SAME, repeats=repeats[:2]).verdict == "DIVERGED"
    assert compare(run(), inside, SAME, repeats=repeats).verdict == "WITHIN_NOISE"
    assert compare(run(), outside, SAME, repeats=repeats).verdict == "DIVERGED"


def test_an_original_that_none_of_its_repeats_repeats_is_not_within_their_noise() -> None:
    loss = {step: 2.0 / step for step in STEPS}
    odd = run(loss | {3: loss[3] + 0.01})
    assert compare(odd, run(), SAME, repeats=[run(), run(), run()]).verdict == "DIVERGED"


def test_a_differing_batch_is_never_noise() -> None:
    batch: dict[int, float | str] = {step: f"{step:016x}" for step in STEPS} | {2: "f" * 16}
    assert compare(run(), run(batch=batch), SAME, tolerance="bf16").verdict == "DIVERGED"


def test_a_checkpoint_without_thousands_of_tensors_is_said_in_a_line_and_kept_with_the_run(
    tmp_path: Path,
) -> None:
    names = {f"model/layers.{number}.weight": "a" * 64 for number in range(4000)}
    found = compare(run(), run(), (names, {}))
    assert found.verdict == "INCOMPLETE"
    assert found.likely_causes == ["the replay's checkpoint lacks 4000 tensors, first model/layers.0.weight"]
    whole = {f"norm/{number}": dict.fromkeys(range(1, 42), 0.5) for number in range(40)}
    cut = {f"norm/{number}": dict.fromkeys(range(1, number + 2), 0.5) for number in range(40)}
    found = compare(run(**whole), run(**cut), SAME)
    ledger = Ledger.open(tmp_path, create=True)
    ledger.write("start", {"id": "r1", "state": "finished"})
    keep(ledger, "r1", found)
    kept = ledger.find("r1")["verdict"]
    assert kept["verdict"] == "INCOMPLETE" and len(kept["likely_causes"]) == 12
    assert kept["likely_causes"][-1] == "and 29 more"
