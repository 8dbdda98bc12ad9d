"""Statistics that several detectors share. Plain floats and short lists; every update is O(1), whatever the window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

_CAP = 2.5  # deviations beyond this many scales are outliers: they move the level no further
_TAIL = math.log1p(_CAP)  # where the outliers' tail begins, on the scale y = log(1 + d / scale)
_STEP = 0.707  # mean absolute deviation / mean absolute step, for white noise
_SHORT, _PRIOR, _PRIOR_WEIGHT = 0.15, 0.4, 4.0  # mean tail length: of Gaussian noise; believed at first, and how firmly
_MEMORY = 30.0  # outliers after which the tail's mean becomes a running one
_REVIEW = 16  # ticks between two reviews of what is usual
_FADE = 40.0  # windows after which the largest outlier is forgotten
_UNRIPE = 40.0  # ticks: after n of them a limit lies _UNRIPE / n further out on the scale of y
_WIDEST = 3.5  # largest distance from the largest outlier to the limit, on the scale of y: a factor of 33
_FAR = 50.0  # largest y: exp(50) scales is "never"


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

    The level is an exponential average that takes outliers above it only up to a cap; the scale is the usual step from
    one value to the next, which a trend leaves alone. The size d of an outlier is kept as y = log(1 + d / scale), in
    which Gaussian noise has a very short tail and heavy-tailed noise an exponential one.
    The limit is the largest outlier so far (slowly forgotten) plus `margin` mean tail lengths: far out in a run whose
    every tenth batch is extreme by nature, close by in a quiet one. Few ticks or a long tail widen it.

    Args:
        window: memory of level and scale [ticks].
        threshold: the limit is never nearer than this many scales,
        floor: nor than this share of the level,
        start_floor: nor than this share of the level that the signal started from.
        margin: mean tail lengths between the largest usual outlier and the limit.
        warmup: ticks before there is a limit, >= 2.
        rebaseline: flagged ticks, not interrupted, after which the new level is the usual one.
        alarms: separate alarms after which such values are usual in this run; 0: never.
    """

    _CHANGING = (
        "level",
        "scale",
        "gap",
        "_due",
        "_left",
        "_start",
        "_reach",
        "_top",
        "_tail",
        "_count",
        "_last",
        "_held",
        "_held_at",
        "_held_level",
        "_held_scale",
        "_flagged",
        "_wild",
    )
    __slots__ = (
        "_alarms",
        "_alpha",
        "_fade",
        "_floor",
        "_margin",
        "_rebaseline",
        "_start_floor",
        "_threshold",
        "_values",
        "_warmup",
        *_CHANGING,
    )

    def __init__(
        self,
        *,
        window: int,
        threshold: float,
        floor: float,
        start_floor: float,
        margin: float,
        warmup: int,
        rebaseline: int,
        alarms: int,
    ) -> None:
        self._alpha, self._threshold, self._margin = 2.0 / (window + 1), threshold, margin
        self._floor, self._start_floor, self._warmup = floor, start_floor, warmup
        self._rebaseline, self._alarms, self._fade = rebaseline, alarms, 1.0 - _REVIEW / (_FADE * window)
        self.level = self.scale = 0.0
        self.gap = math.inf  # limit - level, at least
        self._due = self._left = 0  # values learnt by the next review, and how many of these are still to come
        self._values: list[float] = []  # until warm
        self._top, self._tail, self._count = math.log1p(4.0), _PRIOR * _PRIOR_WEIGHT, _PRIOR_WEIGHT
        self._last = 0.0  # value
        self._reach = self._start = 0.0  # limit - level [scales], |level| at the start
        self._held = self._held_at = self._flagged = 0  # flagged ticks in a row, values learnt before, and alarms
        self._held_level = self._held_scale = self._wild = 0.0  # of the flagged ticks; the largest y among them

    @property
    def limit(self) -> float:
        """Values above it are not usual. It is never nearer than `level` + `gap`, which costs less to ask."""
        far = self._reach * self.scale
        return self.level + (far if far > self.gap else self.gap)

    def learn(self, x: float) -> None:
        """Takes a usual value in."""
        if x - x != 0.0:
            return
        if not self._left:
            if self._due < self._warmup:
                self._warm(x)
                return
            self._look_back()
        self._left -= 1
        level, scale, alpha = self.level, self.scale, self._alpha
        d, step, far = x - level, _STEP * (x - self._last), _CAP * scale
        if d > far:
            self._outlier(d)
            d = far
        if step < 0.0:
            step = -step
        if step > far:  # noqa: PLR1730 - min() costs more than the rest
            step = far
        self.level, self.scale, self._last = level + alpha * d, scale + alpha * (step - scale), x

    def hold(self, x: float) -> None:
        """Counts a flagged value: enough in a row, and the level has shifted; enough alarms, and they are usual."""
        if x - x != 0.0:
            return
        n = self._due - self._left
        self._held, self._held_at = max(0, self._held - (n - self._held_at)), n  # what was learnt since counts against
        if not self._held:
            self._held_level, self._held_scale = x, self.scale
            self._flagged += 1
        self._held += 1
        d = x - self._held_level
        self._held_level += 0.2 * d
        self._held_scale += 0.2 * (abs(d) - self._held_scale)
        self._wild = max(self._wild, self._y(x - self.level))
        if self._held >= self._rebaseline:
            self._last = x
            self.level, self.scale = self._held_level, max(self.scale, self._held_scale)
            self._held = self._flagged = 0
            self._wild = 0.0
        elif self._flagged == self._alarms:
            self._top = max(self._top, self._wild)
            self._flagged, self._wild = 0, 0.0
        self._set_reach()

    def refill(self) -> None:
        """Forgets a level shift that was being counted."""
        self._held = 0

    def _warm(self, x: float) -> None:
        self._values.append(x)
        self._due += 1
        if self._due < self._warmup:
            return
        self.level = median(self._values)
        self._start = abs(self.level)
        self._last = self._values[-1]
        steps = [abs(b - a) for a, b in pairwise(self._values)]
        self.scale = max(_STEP * sum(steps) / len(steps), 1e-3 * self._start)
        self._values.clear()
        self._set_reach()

    def _y(self, d: float) -> float:
        return math.log1p(min(d / self.scale, 1e300)) if self.scale > 0.0 < d else _TAIL

    def _outlier(self, d: float) -> None:
        y = self._y(d)
        self._top = max(y, self._top)
        if self._count >= _MEMORY:
            self._tail *= 1.0 - 1.0 / self._count
            self._count -= 1.0
        self._tail += y - _TAIL
        self._count += 1.0
        self._set_reach()

    def _look_back(self) -> None:
        """The largest outlier fades, and ticks without a long tail speak against one."""
        self._due, self._left = self._due + _REVIEW, _REVIEW
        self._top = max(_TAIL, self._top * self._fade)
        self._tail += 0.02 * (_SHORT * self._count - self._tail)
        self._set_reach()

    def _set_reach(self) -> None:
        tail = self._tail / self._count
        gap = self._margin * tail * (1.0 + 2.0 * tail)
        y = self._top + (_WIDEST if gap > _WIDEST else gap) + _UNRIPE / (self._due - self._left)
        reach = math.expm1(_FAR if y > _FAR else y)
        self._reach = reach if reach > self._threshold else self._threshold
        self.gap = max(self._floor * abs(self.level), self._start_floor * self._start)

    def state(self) -> dict[str, Any]:
        """A copy of all that changes over time."""
        return {"values": list(self._values), **{name: getattr(self, name) for name in self._CHANGING}}

    def load(self, state: dict[str, Any]) -> None:
        """Takes such a copy back without keeping hold of it."""
        self._values = list(state["values"])
        for name in self._CHANGING:
            setattr(self, name, state[name])
