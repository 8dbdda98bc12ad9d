"""Flat loss: the loss never moved from where it started.

Why it matters: the program is wrong (softmax twice, shuffled labels, wrong target) or the network died in its first steps;
    nothing inside the loop will mend it, and a night of it is a night lost.
Fires when: a window after the start the loss has never been better than its start level by more than `moved`, its last
    window lies within `moved` of that level, shows no downward trend (t > -2.5), and is quiet enough to say so
    (deviation < 0.03 of the level). Nothing is judged while the rate is rising, nor before the
    rates add up to 0.05 (no Adam step moves a weight by much more than the rate: fine-tuning at 1e-5 is slow, not flat).

Args:
    window: ticks judged at once [steps], >= 48. Default 128.
    moved: improvement that counts as movement [share of the start level], > 0. Default 0.03.
    trivial: the loss of a guess that knows nothing, ln C for C balanced classes. If given, a quiet loss within 2 % of it
        is flat wherever it started. Default: not known.
Signals: loss, float, unscaled; lr_effective.
Cost: O(1) per tick (8 blocks, judged every window / 8 ticks) until the loss has moved, next to nothing after that.
Blind to: a flat loss under noise above 5 %; losses that are not positive; a slow start that takes less than a window.
Raises: PolicyError at load; never at run time.
Example:
    {type: flat_loss, window: 128 steps, moved: 0.03}
Source: the "loss not decreasing" rule of SageMaker Debugger; with a test of the trend, so that slow learning is left alone.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.detectors._stats import line, median
from guard.detectors._window import BLOCKS, Block, Found, Windowed
from guard.types import Signals
from guard.units import Steps


_FIRST = 5  # ticks that say where the loss starts
_TRAVEL = 0.05  # sum of rates before which nothing can be expected to move: weights are of this size
_QUIET = 0.03  # largest deviation under which a flat loss can be told from a slow one [share of the level]


@detector("flat_loss")
class FlatLoss(Windowed):
    class Params(Detector.Params):
        window: Annotated[Steps, Field(ge=48)] = 128
        moved: Annotated[float, Field(gt=0, lt=1)] = 0.03
        trivial: Annotated[float, Field(gt=0)] | None = None

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.first: list[float] = []  # the first losses
        self.start = math.nan  # what they say
        self.since = 0
        self.travel = 0.0  # sum of the rates
        self.has_moved = self.suspected = False

    def learn(self, s: Signals) -> None:
        if self.has_moved:
            return
        if len(self.first) < _FIRST and s.loss - s.loss == 0.0:
            self.since = self.since if self.first else s.tick
            self.first.append(s.loss)
            self.start = min(self.first[0], median(self.first))  # a high rate may throw the loss up at once
        losses = self.losses
        losses.append(s.loss)
        if len(losses) >= self.size:
            self.close(s)

    def closed(self, block: Block) -> None:
        self.travel += block.lr * (block.until - block.since + 1)
        if self.params.trivial is not None or len(self.blocks) < 2:
            return
        recent = 0.5 * (block.mean + self.blocks[-2].mean)
        if not recent > (1.0 - self.params.moved) * self.start > 0.0:
            self.has_moved = True
            self.refill()

    def judge(self) -> Found | None:
        found = self._flat()
        suspected, self.suspected = self.suspected, found is not None
        return found if suspected else None  # one window may look flat by chance, two in a row do not

    def _flat(self) -> Found | None:
        blocks, trivial = self.blocks, self.params.trivial
        level = self.start if trivial is None else trivial
        means = [b.mean for b in blocks]
        mean, sd = sum(means) / BLOCKS, math.sqrt(sum(b.var for b in blocks) / BLOCKS)
        quiet = _QUIET if mean < 1.05 * level else 3.0 * _QUIET  # worse than at the start: no need to look so closely
        if (trivial is not None and abs(mean - level) > 0.02 * level) or mean < 0.98 * level or sd > quiet * level:
            return None
        if self.travel < _TRAVEL or blocks[-1].lr > 1.02 * blocks[0].lr or abs(line(means)[1]) > 2.5:
            return None
        since = self.since if trivial is None else blocks[0].since
        ticks = blocks[-1].until - since + 1
        told = f"it started at {level:.4g}" if trivial is None else f"a guess that knows nothing gets {level:.4g}"
        return "loss", mean, 0.98 * level, level, since, f"loss has stayed at {mean:.4g} +- {sd:.2g} for {ticks} ticks; {told}"

    def refill(self) -> None:
        super().refill()
        self.suspected = False

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "first": list(self.first), "start": self.start, "began": self.since,
                "travel": self.travel, "has_moved": self.has_moved, "suspected": self.suspected}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.first, self.start, self.since = list(state["first"]), state["start"], state["began"]
        self.travel, self.has_moved, self.suspected = state["travel"], state["has_moved"], state["suspected"]
