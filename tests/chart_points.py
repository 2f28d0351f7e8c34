"""Points and sizes for charts, drawn by hypothesis."""

from __future__ import annotations

import math

from hypothesis import strategies as st

finite_y = st.floats(min_value=-1e300, max_value=1e300)

any_y = finite_y | st.sampled_from([math.nan, math.inf, -math.inf])

sizes = {"width": st.integers(1, 300), "height": st.integers(1, 30), "plain": st.booleans()}


def points(
    y: st.SearchStrategy[float], most: int = 60, largest: int = 100_000
) -> st.SearchStrategy[list[tuple[int, float]]]:
    steps = st.integers(min_value=0, max_value=largest)
    return st.lists(st.tuples(steps, y), min_size=1, max_size=most, unique_by=lambda point: point[0])
