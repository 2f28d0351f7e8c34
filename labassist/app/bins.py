"""A series in bounded memory: points fall into bins along x, and bins fold in pairs as the range grows.

A bin keeps its extremes, its ends and its marks, so that no spike is ever averaged away. All of that (but the
smoothed value) depends on the points alone, not on the order or the portions in which they came.
"""

from __future__ import annotations

from typing import NamedTuple

CAPACITY = 1024
"""Bins a series. In a long run at least half are in use: as many as a terminal of 250 columns has dots."""

_NARROWEST = 2.0**-20
"""Width of a bin at first: a power of two, so that folding moves no edge."""

LARGEST = 1e300
"""Values beyond this are marked like infinities: a scale around them would overflow."""

FARTHEST = 1e15
"""Largest x: more steps, tokens or seconds than any run has."""

Point = tuple[float, float]


class Extent(NamedTuple):
    """The values between which the points of a bin lie, and those at its ends."""

    lowest: float
    highest: float
    first: float
    last: float


class Bin:
    """What is kept of the points in one stretch of x. Points are `(x, y)`."""

    __slots__ = ("bad", "first", "highest", "last", "lowest", "smooth")

    def __init__(self) -> None:
        self.first: Point | None = None
        """The drawable point with the smallest x."""
        self.last: Point | None = None
        self.lowest: Point | None = None
        self.highest: Point | None = None
        self.bad: Point | None = None
        """The first point that is not finite; None: all are."""
        self.smooth: float | None = None
        """The smoothed value at the point that came last."""

    def add(self, point: Point) -> None:
        """Take in one drawable point."""
        x, y = point
        if self.first is None or self.last is None or self.lowest is None or self.highest is None:
            self.first = self.last = self.lowest = self.highest = point
            return
        self.first = min(self.first, point)
        self.last = max(self.last, point)
        if (y, x) < (self.lowest[1], self.lowest[0]):
            self.lowest = point
        if (-y, x) < (-self.highest[1], self.highest[0]):
            self.highest = point

    def mark(self, point: Point) -> None:
        """Take in one point that is not finite."""
        if self.bad is None or point[0] < self.bad[0]:
            self.bad = point

    def merge(self, later: Bin) -> None:
        """Take in all that a bin at higher x kept."""
        for point in (later.first, later.lowest, later.highest, later.last):
            if point is not None:
                self.add(point)
        if later.bad is not None:
            self.mark(later.bad)
        if later.smooth is not None:
            self.smooth = later.smooth

    @property
    def extent(self) -> Extent | None:
        """The drawable values, or None where there are none."""
        if self.first is None or self.last is None or self.lowest is None or self.highest is None:
            return None
        return Extent(self.lowest[1], self.highest[1], self.first[1], self.last[1])

    def find(self, x: float) -> float | None:
        """Return the value at exactly `x` if this bin still has that point."""
        for point in (self.first, self.last, self.lowest, self.highest, self.bad):
            if point is not None and point[0] == x:
                return point[1]
        return None


class Series:
    """The bins of one series, its newest point and its exponential moving average."""

    def __init__(self, smoothing: float) -> None:
        """Smooth with weight `smoothing` (0 to below 1) on the past at each point."""
        self.bins: list[Bin | None] = [None] * CAPACITY
        self.width = _NARROWEST
        """Of a bin, in units of x."""
        self.newest: Point | None = None
        """The point with the largest x, drawable or not."""
        self._smoothing = smoothing
        self._mean = 0.0
        self._weight = 0.0

    def append(self, x: float, y: float) -> None:
        """Add a point. Raises ValueError when x is not between 0 and `FARTHEST`."""
        if not 0 <= x <= FARTHEST:
            raise ValueError(f"x must be between 0 and {FARTHEST:g}, got {x}")
        while x >= self.width * CAPACITY:
            self._fold()
        if self.newest is None or x >= self.newest[0]:
            self.newest = (x, y)
        index = int(x / self.width)
        bin_ = self.bins[index]
        if bin_ is None:
            bin_ = self.bins[index] = Bin()
        if not abs(y) <= LARGEST:  # true for NaN as well
            bin_.mark((x, y))
            return
        bin_.add((x, y))
        bin_.smooth = self._smoothed(y)

    def at(self, x: float) -> float | None:
        """Return the value at exactly `x`, or None: no such point, or only its neighbours are kept."""
        index = int(x / self.width) if 0 <= x < self.width * CAPACITY else -1
        bin_ = self.bins[index] if index >= 0 else None
        return bin_.find(x) if bin_ is not None else None

    def start(self, index: int) -> float:
        """Return the x at which a bin begins; a bin that holds one point is placed at that point."""
        bin_ = self.bins[index]
        if bin_ is None or bin_.first is None or bin_.last is None:
            return bin_.bad[0] if bin_ is not None and bin_.bad is not None else index * self.width
        x = bin_.first[0]
        alone = x == bin_.last[0] and (bin_.bad is None or bin_.bad[0] == x)
        return x if alone else index * self.width

    @property
    def smooth(self) -> float | None:
        """The exponential moving average at the newest point, corrected for its empty start."""
        return self._mean / self._weight if self._weight else None

    def _smoothed(self, y: float) -> float:
        # m <- s m + (1 - s) y, divided by the weight gathered so far (as Adam corrects its moments).
        self._mean = self._smoothing * self._mean + (1 - self._smoothing) * y
        self._weight = self._smoothing * self._weight + (1 - self._smoothing)
        return self._mean / self._weight

    def _fold(self) -> None:
        """Double the width of a bin."""
        folded: list[Bin | None] = []
        for index in range(0, CAPACITY, 2):
            left, right = self.bins[index], self.bins[index + 1]
            if left is not None and right is not None:
                left.merge(right)
            folded.append(left if left is not None else right)
        self.bins = folded + [None] * (CAPACITY - len(folded))
        self.width *= 2
