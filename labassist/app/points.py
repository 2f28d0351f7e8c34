"""Every point of a series, exactly as it was recorded: what a cursor on a chart reads."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Points:
    """Pairs `(x, y)` by ascending x in 16 bytes each; a point at an x that is there already replaces it."""

    def __init__(self) -> None:
        self._xs = array("d")
        self._ys = array("d")

    def __len__(self) -> int:
        return len(self._xs)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return zip(self._xs, self._ys, strict=True)

    def add(self, x: float, y: float) -> None:
        """Take one point; those of a run come in order, so that this is an append."""
        if not self._xs or x > self._xs[-1]:
            self._xs.append(x)
            self._ys.append(y)
            return
        at = bisect_left(self._xs, x)
        if self._xs[at] == x:
            self._ys[at] = y
        else:
            self._xs.insert(at, x)
            self._ys.insert(at, y)

    def at(self, x: float) -> float | None:
        """Return the value at exactly `x`, None where there is no point."""
        at = bisect_left(self._xs, x)
        return self._ys[at] if at < len(self._xs) and self._xs[at] == x else None

    @property
    def first(self) -> float | None:
        """The smallest x."""
        return self._xs[0] if self._xs else None

    @property
    def last(self) -> float | None:
        """The largest x."""
        return self._xs[-1] if self._xs else None

    def after(self, x: float, by: float = 0.0) -> float | None:
        """Return the first x that is above `x` and at least `x + by`; None where there is none."""
        at = max(bisect_right(self._xs, x), bisect_left(self._xs, x + by))
        return self._xs[at] if at < len(self._xs) else None

    def before(self, x: float, by: float = 0.0) -> float | None:
        """Return the last x that is below `x` and at most `x - by`; None where there is none."""
        at = min(bisect_left(self._xs, x), bisect_right(self._xs, x - by)) - 1
        return self._xs[at] if at >= 0 else None
