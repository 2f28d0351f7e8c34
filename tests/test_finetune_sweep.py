"""What a sweep says: intervals over seeds and samples, and a difference that is noise is called so."""

from __future__ import annotations

import random

import pytest

from labassist.finetune import sweep


def losses(shift: float, seeds: int = 3, samples: int = 24) -> dict[str, list[list[float]]]:
    """Two settings that differ by `shift`, each seed and sample with an error of its own."""
    draw = random.Random(5)
    plain = [[1 + draw.gauss(0, 0.3) for _ in range(samples)] for _ in range(seeds)]
    other = [[value + shift + draw.gauss(0, 0.05) for value in row] for row in plain]
    return {"plain": plain, "other": other}


@pytest.mark.parametrize(("shift", "word"), [(0.2, "worse"), (-0.2, "better"), (0.0, "noise")])
def test_a_difference_is_told_apart_from_noise_by_its_interval(shift: float, word: str) -> None:
    plain, other = sweep.rows(losses(shift), "plain")
    assert other.word == word
    assert other.apart_low <= other.apart <= other.apart_high
    assert plain.low <= plain.loss <= plain.high and plain.apart == plain.apart_low == plain.apart_high == 0


def test_settings_are_paired_so_that_their_difference_is_surer_than_they_are() -> None:
    _plain, other = sweep.rows(losses(0.2), "plain")
    assert other.apart_high - other.apart_low < (other.high - other.low) / 2


def test_seeds_that_differ_make_the_interval_wide() -> None:
    """Samples alone would be sure of it: 24 of them, all the same; the seeds are not."""
    far = {"plain": [[1.0] * 24, [2.0] * 24, [3.0] * 24], "other": [[3.0] * 24, [2.0] * 24, [1.0] * 24]}
    assert sweep.between_seeds(far) == 2.0
    _plain, other = sweep.rows(far, "plain")
    assert other.word == "noise" and other.apart_high - other.apart_low > 1


def test_the_table_names_noise_and_too_few_seeds() -> None:
    some = losses(0.0, seeds=2)
    text = sweep.text(sweep.rows(some, "plain"), some, "plain")
    assert "noise" in text and "with 2 seeds an interval is too narrow" in text
    many = losses(0.2)
    text = sweep.text(sweep.rows(many, "plain"), many, "plain")
    assert "worse" in text and "too narrow" not in text and "3 seeds x 24 samples" in text
    assert max(map(len, text.splitlines())) <= 80
