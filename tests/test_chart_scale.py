"""The chart's scales, labels and words: round numbers at their rows, decades, smoothing, and what fits."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from chart_points import any_y, finite_y, points, sizes
from hypothesis import given, settings
from hypothesis import strategies as st

from labassist.app.chart import Chart, number
from labassist.app.scale import linear, logarithmic


@given(low=finite_y, high=finite_y)
def test_a_linear_scale_holds_its_data_closely(low: float, high: float) -> None:
    low, high = min(low, high), max(low, high)
    scale = linear(low, high)
    span = scale.high - scale.low
    assert span > 0
    assert scale.low <= low + span * 1e-6
    assert high - span * 1e-6 <= scale.high
    if high - low > abs(low + high) * 1e-5 and high - low > 1e-280:
        assert (high - low) / span > 0.6
    assert scale.low_label != scale.high_label
    assert max(len(scale.low_label), len(scale.high_label)) <= 13
    assert 0 <= scale.share(low) <= scale.share(high) <= 1


@given(low=st.floats(min_value=5e-324, max_value=1e300), high=st.floats(min_value=5e-324, max_value=1e300))
def test_a_logarithmic_scale_holds_its_data(low: float, high: float) -> None:
    low, high = min(low, high), max(low, high)
    scale = logarithmic(low, high)
    assert 0 < scale.low < scale.high
    assert scale.low <= max(low, 1e-290) * (1 + 1e-6)
    assert high <= scale.high * (1 + 1e-6)
    assert 0 <= scale.share(low) <= scale.share(high) <= 1


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (1.41, 2.13, ("1.4", "2.2")),
        (0.0, 1.0, ("0.0", "1.0")),
        (1.2e-5, 1.9e-4, ("0", "2.00e-4")),
        (41_000, 42_800, ("41,000", "43,000")),
        (2.0, 2.0, ("1.900", "2.100")),
        (0.0, 0.0, ("-1.00", "1.00")),
        (3e9, 8e9, ("3e9", "8e9")),
    ],
)
def test_labels_are_round_numbers(low: float, high: float, labels: tuple[str, str]) -> None:
    scale = linear(low, high)
    assert (scale.low_label, scale.high_label) == labels


def test_labels_stand_at_their_rows_and_leave_room() -> None:
    chart = Chart(60, 14)
    chart.extend((x, x / 100) for x in range(401))
    labels = {row: text[:4].strip() for row, text in enumerate(chart.rows()[:-1]) if text[:4].strip()}
    assert labels[0] == "4.0"
    assert labels[12] == "0.0"
    assert labels[6] == "2.0"
    taken = sorted(labels)
    assert all(b - a > 2 for a, b in pairwise(taken))


def test_a_logarithmic_axis_shows_decades_and_marks_what_it_cannot_show() -> None:
    chart = Chart(60, 14, log=True, total=3)
    chart.extend([(0, 1000.0), (1, 0.1), (2, -5.0), (3, 1.0)])
    rows = chart.rows()
    assert rows[0].startswith(("1e3 ", "1000 "))
    assert any(row.startswith(("  10 ", " 10 ")) for row in rows)
    assert sum(row.count("!") for row in rows) == 1
    chart.log = False
    assert sum(row.count("!") for row in chart.rows()) == 0


def test_a_logarithmic_axis_without_anything_above_zero() -> None:
    chart = Chart(20, 5, log=True)
    chart.extend([(0, 0.0), (1, -1.0)])
    assert sum(row.count("!") for row in chart.rows()) == 2


def test_x_runs_to_the_total_or_to_the_last_point() -> None:
    chart = Chart(60, 5, total=375)
    chart.extend((x, 1.0 / (x + 1)) for x in range(119))
    assert chart.rows()[-1].split() == ["0", "step", "118/375", "375"]
    chart.append(400, 1.0)
    assert chart.rows()[-1].split() == ["0", "step", "400/375", "400"]
    chart.total = None
    assert chart.rows()[-1].split() == ["0", "step", "400", "400"]


def test_smoothing_is_labelled_or_left_out() -> None:
    def drawn(width: int, smoothed: bool) -> Chart:
        noise = random.Random(5)
        chart = Chart(width, 16, smoothed=smoothed)
        chart.extend((x, noise.gauss(0, 1)) for x in range(5000))
        return chart

    wide = drawn(80, True)
    assert "• smoothed" in wide.rows()[-1]
    assert sum(row.count("•") for row in wide.rows()[:-1]) > 20
    assert "(smoothed " in wide.legend()
    assert not any("•" in row for row in drawn(80, False).rows())
    narrow = drawn(14, True)
    assert "smoothed" not in narrow.rows()[-1]
    assert not any("•" in row for row in narrow.rows())


def test_smoothing_is_the_corrected_moving_average() -> None:
    chart = Chart(40, 5, smoothed=True, smoothing=0.5)
    chart.extend([(0, 4.0), (1, 1.0), (2, math.nan), (3, 1.0)])
    # weights 1/8, 1/4, 1/2 over their sum of 7/8; the NaN has no part in it
    assert chart._series["loss"].smooth == pytest.approx((4 / 8 + 1 / 4 + 1 / 2) / (7 / 8))


def test_the_legend_tells_series_apart_without_colour() -> None:
    chart = Chart(40, 5)
    chart.append(1, 1.41234)
    assert chart.legend() == "loss 1.412"
    chart.append(1, 1.5, "eval")
    assert chart.legend() == "loss ⠒⠒ 1.412  eval ⠒ ⠒ 1.5"
    chart.ascii = True
    assert chart.legend() == "loss -- 1.412  eval - - 1.5"


@settings(deadline=None)
@given(data=points(any_y), log=st.booleans(), smoothed=st.booleans(), **sizes)
def test_rows_fit_exactly_and_ascii_is_ascii(
    data: list[tuple[float, float]], log: bool, smoothed: bool, width: int, height: int, plain: bool
) -> None:
    chart = Chart(width, height, ascii=plain, log=log, smoothed=smoothed, total=10)
    assert [len(row) for row in chart.rows()] == [width] * height
    chart.extend(data)
    chart.extend(data[:3], "eval")
    rows = chart.rows()
    assert [len(row) for row in rows] == [width] * height
    assert ["".join(text for text, _ in chart.segments(row)) for row in range(height)] == rows
    if plain:
        assert all(row.isascii() for row in rows)
        assert chart.legend().isascii()


def test_resizing_and_clearing() -> None:
    chart = Chart(40, 5)
    chart.extend((x, float(x)) for x in range(10))
    chart.changed_rows()
    chart.resize(30, 4)
    assert [span.end for span in chart.changed_rows()] == [30] * 4
    chart.clear()
    assert not any(character > "⟿" for row in chart.rows() for character in row)
    assert chart.at(3) is None
    for width, height in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="at least one cell"):
            chart.resize(width, height)


def test_numbers_for_people() -> None:
    assert [number(x) for x in (0, 1240.0, 12.5, 1e9)] == ["0", "1,240", "12.5", "1,000,000,000"]
