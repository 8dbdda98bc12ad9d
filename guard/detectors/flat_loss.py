"""Flat loss: the loss never moved from where it started.

Why it matters: the program is wrong (softmax twice, shuffled labels, wrong target) or the network died in its first
    steps; nothing later in the loop will mend it, and a night of it is a night lost.
Fires when: no quarter window was ever better than the start level by `moved`, and in two judgements running the
    window lies above 0.98 of that level, shows no trend (|t| < 2.5) and is quiet (deviation < 0.04 of the level;
    three times that if it is clearly worse than at the start). Nothing is judged while the rate rises, nor before the
    rates add up to 0.05: no step of Adam moves a weight by much more than the rate, so fine-tuning at 1e-5 is slow,
    not flat.

Args:
    window: ticks judged at once [steps], >= 48. Default 128.
    moved: improvement that counts as movement, for good [share of the start level], 0 < moved < 1. Default 0.03.
    trivial: loss of a guess that knows nothing [unit of the loss], e.g. ln C for C balanced classes. If given, a
        quiet window within 2 % of it is flat, wherever the run started. Default: not known.
Signals: loss, float, unscaled; lr_effective.
Cost: O(1) per tick (8 blocks, one judged every window / 8 ticks) until the loss has moved, next to nothing after
    that.
Blind to: a flat loss under noise; losses that are not positive. A start so slow that nothing happens in the first
    window looks the same.
Raises: PolicyError at load; never at run time.
Example:
    {type: flat_loss, window: 128 steps, moved: 0.03}
Source: the LossNotDecreasing rule of SageMaker Debugger; here with tests of noise and trend, so that slow learning is
    left alone.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.detectors._stats import line
from guard.detectors._window import BLOCKS, FIRST, Block, Found, Windowed
from guard.types import Signals
from guard.units import Steps

_TRAVEL = 0.05  # sum of the rates before which no movement can be expected: small weights are of this size
_THROWN = 0.1  # deviation [share of the start] from which on the first ticks threw the loss up, and say nothing of it
_QUIET = 0.04  # deviation under which a flat loss can be told from a slow one [share of the level]


@detector("flat_loss")
class FlatLoss(Windowed):
    OWN = ("since", "travel", "has_moved", "suspected")

    class Params(Detector.Params):
        window: Annotated[Steps, Field(ge=48)] = 128
        moved: Annotated[float, Field(gt=0, lt=1)] = 0.03
        trivial: Annotated[float, Field(gt=0)] | None = None

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.since = 0
        self.travel = 0.0  # sum of the rates
        self.has_moved = self.suspected = False

    def learn(self, s: Signals) -> None:
        if self.has_moved:
            return
        if len(self.first) < FIRST:
            self.since = self.since if self.first else s.tick
            self.first_ticks(s)
        losses = self.losses
        losses.append(s.loss)
        if len(losses) >= self.size:
            self.close(s)

    def closed(self, block: Block) -> None:
        if self.travel == 0.0 and math.sqrt(block.var) < _THROWN * self.start:
            self.start = max(self.start, block.mean)  # its first few losses were lucky ones
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
        worse = mean > 1.05 * level and mean - level > 4.0 * sd / math.sqrt(
            FIRST
        )  # not by the luck of its first losses
        quiet = 3.0 * _QUIET if worse else _QUIET
        if mean < 0.98 * level or sd > quiet * level or (trivial is not None and mean > 1.02 * level):
            return None
        if self.travel < _TRAVEL or blocks[-1].lr > 1.02 * blocks[0].lr or abs(line(means)[1]) > 2.5:
            return None
        since = self.since if trivial is None else blocks[0].since
        usual = f"it started at {level:.4g}" if trivial is None else f"a guess that knows nothing gets {level:.4g}"
        message = f"loss has stayed at {mean:.4g} +- {sd:.2g} for {blocks[-1].until - since + 1} ticks; {usual}"
        return "loss", mean, 0.98 * level, level, since, message

    def refill(self) -> None:
        super().refill()
        self.suspected = False
