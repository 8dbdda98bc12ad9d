"""Statistics that several detectors share. Plain floats and short lists; every update is O(1) however long the window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

CAP = 2.5  # deviations beyond this many scales are outliers: they move the baseline no further
_TAIL = math.log1p(CAP)  # where the outliers' tail begins, on the scale y = log(1 + d / scale)
_PRIOR = 4.0  # how many imagined outliers the belief about an unknown tail is worth
_SHORT = 0.15  # mean tail length of Gaussian noise
_REVIEW = 16  # ticks
_FADE = 40.0  # windows after which the largest outlier is forgotten
_ALARMS = 3  # separate alarms after which such values are usual
_MEMORY = 30.0  # outliers after which the tail's mean becomes a running one
_UNRIPE = 40.0  # ticks: a limit after n ticks lies _UNRIPE / n further out on that scale
_FAR = 50.0  # largest exponent: exp(50) scales is "never"


def finite(x: float) -> bool:
    """Neither NaN nor infinite."""
    return x - x == 0.0


def median(values: Sequence[float]) -> float:
    """Middle of at least one value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])


def line(ys: Sequence[float]) -> tuple[float, float]:
    """Slope [per point] of the least-squares line through at least three equally spaced points, and its t value."""
    n = len(ys)
    mean, centre = sum(ys) / n, (n - 1) / 2
    sxx = n * (n * n - 1) / 12
    slope = sum((i - centre) * y for i, y in enumerate(ys)) / sxx
    rest = sum((y - mean - slope * (i - centre)) ** 2 for i, y in enumerate(ys)) / (n - 2)
    error = math.sqrt(rest / sxx)
    return slope, slope / error if error > 0.0 else math.copysign(math.inf, slope) if slope else 0.0


class Upper:
    """How high a signal usually goes: a baseline, its scale, and how far outliers usually reach.

    Location and scale are winsorised exponential averages. The size d of an outlier is kept on a log scale,
    y = log(1 + d / scale), where Gaussian noise has a very short tail and heavy-tailed noise an exponential one.
    The limit is the largest outlier so far (slowly forgotten) plus `margin` mean tail lengths: far out in a run in which
    every tenth batch is extreme by nature, close by in a quiet one. Few ticks or a long tail widen it.

    Args:
        window: memory of location and scale [ticks].
        threshold: the limit is never nearer than this many scales (mean absolute deviations),
        floor: nor than this share of the location,
        start_floor: nor than this share of the level that the signal started from.
        margin: mean tail lengths between the largest usual outlier and the limit.
        warmup: ticks before there is a limit, >= 2.
        rebaseline: flagged ticks, not interrupted, after which the new level is the usual one.
    """

    __slots__ = (
        "_alarms", "_alpha", "_count", "_fade", "_floor", "_held", "_held_level", "_held_scale", "_least", "_margin", "_n", "_reach",
        "_rebaseline", "_review", "_start_floor", "_tail", "_threshold", "_top", "_values", "_warmup", "_wild",
        "level", "limit", "scale",
    )  # fmt: skip

    def __init__(self, window: int, threshold: float, floor: float, start_floor: float, margin: float, warmup: int,
                 rebaseline: int) -> None:
        self._alpha, self._threshold, self._margin = 2.0 / (window + 1), threshold, margin
        self._floor, self._start_floor, self._warmup, self._rebaseline = floor, start_floor, warmup, rebaseline
        self._fade = 1.0 - _REVIEW / (_FADE * window)
        self.level = self.scale = 0.0
        self.limit = math.inf
        self._values: list[float] = []
        self._n = self._held = self._review = self._alarms = 0
        self._top, self._tail, self._count = math.log1p(4.0), 0.4 * _PRIOR, _PRIOR
        self._reach = self._least = self._held_level = self._held_scale = self._wild = 0.0

    def learn(self, x: float) -> None:
        """Takes a usual value in."""
        if x - x != 0.0:
            return
        self._n += 1
        if self._n <= self._warmup:
            self._warm(x)
            return
        if self._n >= self._review:
            self._forget()
        d, scale, alpha = x - self.level, self.scale, self._alpha
        far = CAP * scale
        if d > far:
            self._outlier(d)
            d = far
        elif d < -far:
            d = -far
        level = self.level = self.level + alpha * d
        scale = self.scale = scale + alpha * ((d if d > 0.0 else -d) - scale)
        gap, least = self._reach * scale, self._floor * (level if level > 0.0 else -level)
        if least < self._least:
            least = self._least
        self.limit = level + (gap if gap > least else least)
        if self._held:
            self._held -= 1

    def hold(self, x: float) -> None:
        """Counts a flagged value: enough in a row, and the level has shifted; enough alarms, and they are usual here."""
        if x - x != 0.0:
            return
        y = math.log1p(min((x - self.level) / self.scale, 1e300)) if self.scale > 0.0 < x - self.level else _TAIL
        self._wild = max(self._wild, y)
        if not self._held:
            self._held_level, self._held_scale = x, self.scale
            self._alarms += 1
            if self._alarms >= _ALARMS:  # it keeps coming and going: that is what this run is like
                self._top, self._alarms, self._wild = max(self._top, self._wild), 0, 0.0
                self._set_reach()
        self._held += 1
        d = x - self._held_level
        self._held_level += 0.2 * d
        self._held_scale += 0.2 * (abs(d) - self._held_scale)
        if self._held >= self._rebaseline:
            self.level, self.scale, self._held = self._held_level, max(self.scale, self._held_scale), 0
            self._alarms, self._wild = 0, 0.0
            self._set_limit()

    def refill(self) -> None:
        """Forgets a level shift that was being counted."""
        self._held = 0

    def _warm(self, x: float) -> None:
        self._values.append(x)
        if self._n < self._warmup:
            return
        self.level = median(self._values)
        spread = sum(abs(v - self.level) for v in self._values) / len(self._values)
        self.scale = max(spread, 1e-3 * abs(self.level))
        self._least = self._start_floor * abs(self.level)
        self._values.clear()
        self._set_reach()
        self._set_limit()

    def _outlier(self, d: float) -> None:
        y = math.log1p(min(d / self.scale, 1e300)) if self.scale > 0.0 else _TAIL
        self._top = max(y, self._top)
        if self._count >= _MEMORY:
            self._tail *= 1.0 - 1.0 / self._count
            self._count -= 1.0
        self._tail += y - _TAIL
        self._count += 1.0
        self._set_reach()

    def _forget(self) -> None:
        """Every few ticks: the largest outlier fades, and ticks without a long tail speak against one."""
        self._review = self._n + _REVIEW
        self._top = max(_TAIL, self._top * self._fade)
        self._tail += 0.02 * (_SHORT * self._count - self._tail)
        self._set_reach()

    def _set_reach(self) -> None:
        tail = self._tail / self._count
        y = self._top + self._margin * tail * (1.0 + 2.0 * tail) + _UNRIPE / self._n
        self._reach = max(self._threshold, math.expm1(min(y, _FAR)))

    def _set_limit(self) -> None:
        self.limit = self.level + max(self._reach * self.scale, self._floor * abs(self.level), self._least)

    def state(self) -> list[Any]:
        """A copy of all that changes over time."""
        return [self._n, self.level, self.scale, self.limit, self._least, self._reach, self._top, self._review, self._tail,
                self._count, self._held, self._held_level, self._held_scale, self._alarms, self._wild, list(self._values)]

    def load(self, state: list[Any]) -> None:
        """Takes such a copy back without keeping hold of it."""
        (self._n, self.level, self.scale, self.limit, self._least, self._reach, self._top, self._review, self._tail,
         self._count, self._held, self._held_level, self._held_scale, self._alarms, self._wild, values) = state
        self._values = list(values)
