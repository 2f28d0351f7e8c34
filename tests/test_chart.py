"""The chart: no spike is hidden, however the points came; values that are no numbers; exact values."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from chart_points import any_y, finite_y, points, sizes
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labassist.app.bins import CAPACITY, Bin
from labassist.app.chart import Chart

BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))

# The dots, from the top, that an ASCII character stands for.
ASCII = {" ": (), "'": (0,), "-": (1,), ".": (2,), "|": (0, 1, 2), ":": (0, 2)}


def dot_is_set(chart: Chart, column: int, row: int) -> bool:
    """Read one dot from the rows as they are printed."""
    across, down = (1, 3) if chart.ascii else (2, 4)
    character = chart.rows()[row // down][chart.width - chart._canvas.width + column // across]
    if chart.ascii:
        return row % down in ASCII.get(character, ())
    return bool(ord(character) - 0x2800 & BRAILLE[column % across][row % down]) if character > "⟿" else False


def assert_extremes_visible(chart: Chart, data: list[tuple[float, float]], series: str = "loss") -> None:
    chart.rows()
    canvas, scale = chart._canvas, chart._scale
    columns: dict[int, list[float]] = {}
    for x, y in data:
        if math.isfinite(y):
            column = chart.column(x, series)
            assert column is not None
            columns.setdefault(column, []).append(y)
    for column, values in columns.items():
        assert scale is not None
        for value in (min(values), max(values)):
            row = canvas.row(scale.share(value))
            assert dot_is_set(chart, column, row), (column, value)


def test_the_chart_imports_neither_textual_nor_rich() -> None:
    code = "import sys, labassist.app.chart; print([m for m in ('textual', 'rich', 'numpy') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


# --- no spike is hidden


@settings(deadline=None)
@given(data=points(finite_y), **sizes)
@example(data=[(0, 1.0)], width=1, height=1, plain=False)
@example(data=[(0, 0.0), (1, 1e300), (2, -1e300)], width=300, height=3, plain=False)
def test_the_extremes_of_every_column_are_visible(
    data: list[tuple[float, float]], width: int, height: int, plain: bool
) -> None:
    chart = Chart(width, height, ascii=plain)
    chart.extend(data)
    assert_extremes_visible(chart, data)


@settings(deadline=None)
@given(data=points(finite_y), other=points(any_y), height=st.integers(3, 20), width=st.integers(1, 300))
def test_neither_another_series_nor_smoothing_nor_marks_hide_them(
    data: list[tuple[float, float]], other: list[tuple[float, float]], width: int, height: int
) -> None:
    chart = Chart(width, height, smoothed=True, total=100_000)
    chart.extend(data)
    chart.extend(other, "eval")
    assert_extremes_visible(chart, data)
    assert_extremes_visible(chart, other, "eval")


@pytest.mark.parametrize(("width", "spike"), [(1, 4711), (80, 0), (300, 99_999)])
def test_one_step_among_a_hundred_thousand_reaches_the_top(width: int, spike: int) -> None:
    noise = random.Random(spike)
    data = [(x, 9.0 if x == spike else noise.gauss(1.0, 0.1)) for x in range(100_000)]
    chart = Chart(width, 10)
    chart.extend(data)
    assert_extremes_visible(chart, data)
    assert chart.at(spike) == 9.0
    assert sum(1 for bin_ in chart._series["loss"].bins if bin_) <= CAPACITY
    kept = Bin.__slots__
    assert len(kept) == 6  # a bin holds six things, however many points fell into it


@settings(deadline=None)
@given(data=points(finite_y, largest=CAPACITY - 1), width=st.integers(1, 300))
def test_a_column_is_where_x_says(data: list[tuple[int, float]], width: int) -> None:
    largest = max(x for x, _ in data)
    chart = Chart(width, 5)
    chart.extend(data)
    chart.rows()
    dots = chart._canvas.dots
    for x, _ in data:
        assert chart.column(x) == (math.floor(x / largest * (dots - 1) + 0.5) if largest else 0)


# --- how the points came does not matter


@settings(deadline=None)
@given(data=points(any_y), cut=st.integers(0, 60), chaos=st.randoms(use_true_random=False), **sizes)
def test_one_by_one_at_once_and_shuffled_look_the_same(
    data: list[tuple[float, float]],
    cut: int,
    chaos: random.Random,
    width: int,
    height: int,
    plain: bool,
) -> None:
    at_once = Chart(width, height, ascii=plain)
    at_once.extend(data)
    drawn_between = Chart(width, height, ascii=plain)
    for x, y in data[:cut]:
        drawn_between.append(x, y)
        drawn_between.rows()
        drawn_between.changed_rows()
    drawn_between.extend(data[cut:])
    shuffled = Chart(width, height, ascii=plain)
    shuffled.extend(chaos.sample(data, len(data)))
    assert at_once.rows() == drawn_between.rows() == shuffled.rows()


def test_folding_keeps_what_a_chart_built_at_once_keeps() -> None:
    noise = random.Random(3)
    data = [(float(x), noise.gauss(0, 1)) for x in range(0, 50_000, 3)]
    grown, reverse = Chart(120, 12), Chart(120, 12)
    for x, y in data:
        grown.append(x, y)
    reverse.extend(reversed(data))
    assert grown.rows() == reverse.rows()
    assert [grown.at(x) for x, _ in data] == [reverse.at(x) for x, _ in data]


@settings(deadline=None)
@given(data=points(any_y), width=st.integers(1, 300), height=st.integers(1, 30))
def test_painting_only_what_changed_gives_the_whole_picture(
    data: list[tuple[float, float]], width: int, height: int
) -> None:
    chart = Chart(width, height, total=500)
    screen = ["?" * width] * height
    for x, y in data:
        chart.append(x, y)
        new = chart.rows()
        for row, start, end in chart.changed_rows():
            screen[row] = screen[row][:start] + new[row][start:end] + screen[row][end:]
        assert screen == new
        assert chart.changed_rows() == []


def test_a_point_beside_the_others_changes_few_cells() -> None:
    chart = Chart(80, 20, total=1000)
    chart.extend((x, 2.0 + math.sin(x / 50)) for x in range(500))
    chart.changed_rows()
    chart.append(500, 2.0)
    spans = chart.changed_rows()
    assert spans
    assert sum(end - start for _, start, end in spans) < 20


# --- values that are no numbers


@settings(deadline=None)
@given(data=points(any_y), **sizes)
def test_each_value_that_is_not_finite_is_marked_in_its_column(
    data: list[tuple[float, float]], width: int, height: int, plain: bool
) -> None:
    chart = Chart(width, height, ascii=plain)
    chart.extend(data)
    rows = chart.rows()
    canvas = chart._canvas
    for x, y in data:
        column = chart.column(x)
        assert column is not None
        cell = width - canvas.width + column // (1 if plain else 2)
        if not math.isfinite(y):
            assert any(row[cell] == "!" for row in rows)
    if all(math.isfinite(y) for _, y in data):
        assert not any("!" in row for row in rows)


def test_a_nan_breaks_the_line_and_stands_at_the_top() -> None:
    chart = Chart(40, 6, total=39)
    chart.extend((x, 1.0 if x < 20 else math.nan if x < 25 else 2.0) for x in range(40))
    rows = chart.rows()
    gap = [column for column in range(40) if any(row[column] == "!" for row in rows)]
    assert rows[0].count("!") == len(gap) >= 4
    assert all(row[column] in "! " for row in rows[:-1] for column in gap[1:-1])
    nan = chart.at(22)
    assert nan is not None
    assert math.isnan(nan)


def test_only_nan_still_draws() -> None:
    chart = Chart(20, 4)
    chart.append(5, math.nan)
    assert sum(row.count("!") for row in chart.rows()) == 1
    assert chart.legend() == "loss nan"


@pytest.mark.parametrize("x", [-1, math.nan, math.inf, 1e16])
def test_an_impossible_x_is_refused(x: float) -> None:
    chart = Chart(10, 3)
    with pytest.raises(ValueError, match="x must be between 0"):
        chart.append(x, 1.0)
    assert chart.last == 0.0


# --- exact values


@settings(deadline=None)
@given(data=points(finite_y, most=200))
def test_at_gives_the_exact_value_or_nothing(data: list[tuple[float, float]]) -> None:
    chart = Chart(10, 3)
    chart.extend(data)
    truth = dict(data)
    for x, y in data:
        assert chart.at(x) in (y, None)
    for x in (0.5, 100_001, -1):
        assert chart.at(x) is None
    newest = max(truth)
    assert chart.at(newest) == truth[newest]
    assert chart.at(newest, "no such series") is None


def test_few_points_are_all_kept() -> None:
    chart = Chart(10, 3)
    chart.extend((x, x * 0.1) for x in range(1000))
    assert [chart.at(x) for x in range(1000)] == [x * 0.1 for x in range(1000)]
    chart.extend((x, x * 0.1) for x in range(1000, 5000))
    kept = [x for x in range(5000) if chart.at(x) is not None]
    assert 1000 < len(kept) < 5000
    assert all(chart.at(x) == x * 0.1 for x in kept)
