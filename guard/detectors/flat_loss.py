"""Flat loss: the loss never moved from where it started.

Why it matters: the program is wrong (softmax twice, shuffled labels, wrong target) or the network died in its first
    steps; nothing later in the loop will mend it, and a night of it is a night lost.
Fires when: no quarter window was ever better than the start level by `moved`, and in two judgements running the loss
    lies above 0.98 of that level and stands still: the window shows no trend (|t| < 2.5), and over all blocks since it
    came to where it is, a window at least, a fall by `moved` is ruled out by 3 standard errors; so a noisy loss is
    watched for longer. Where the loss of a guess that knows nothing is known (`trivial`; else read off the loss
    function: ln C for C balanced classes, the variance of the targets for a squared error), coming down to it is no
    movement. Once it has fired, and something was done about it, any full window above 0.98 of the level counts.
    Nothing is judged while the rate rises, nor before the rates add up to 0.05: no step of Adam moves a weight by much
    more than the rate, so fine-tuning at 1e-5 is slow, not flat.

Args:
    window: ticks judged at once [steps], >= 48. Default 128.
    moved: improvement that counts as movement, for good [share of the start level], 0 < moved < 1. Default 0.03.
    start: what is looked for: ``thrown``, a run whose first ticks threw the loss about (a rate that is too high kills
        units that way); ``quiet``, any other; or ``any``. Default any.
    trivial: loss of a guess that knows nothing [unit of the loss]. Default: what the loss function shows, if anything.
Signals: loss, float, unscaled; guess, float, in the same unit; lr_effective.
Cost: O(1) per tick (8 blocks, one judged every window / 8 ticks) until the loss has moved, next to nothing after
    that.
Blind to: a flat loss under noise of a tenth of it; losses that are not positive. A start so slow that nothing happens
    in the first window looks the same.
Raises: PolicyError at load; never at run time.
Example:
    {type: flat_loss, window: 128 steps, moved: 0.03}
Source: the LossNotDecreasing rule of SageMaker Debugger; here with tests of noise and trend, so that slow learning is
    left alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.detectors._stats import line, median
from guard.detectors._window import BLOCKS, FIRST, Block, Found, Windowed
from guard.types import Signals
from guard.units import Steps

_TRAVEL = 0.05  # sum of the rates before which no movement can be expected: small weights are of this size
_THROWN = 0.1  # deviation [share of the start] from which on the first ticks threw the loss up, and say nothing of it
_THERE = 0.01  # of where the loss is now: within that, and its noise, it has arrived
_ERRORS = 3.0  # standard errors by which a fall must be ruled out
_WILD = 2.5  # times the deviation, at which the first ticks were thrown about
_NOISY = 0.1  # deviation [share of the level] above which nothing is said
_LONGEST = 8 * BLOCKS  # blocks that are looked back on


@detector("flat_loss")
class FlatLoss(Windowed):
    OWN = ("since", "travel", "has_moved", "suspected", "guess")

    class Params(Detector.Params):
        window: Annotated[Steps, Field(ge=48)] = 128
        moved: Annotated[float, Field(gt=0, lt=1)] = 0.03
        start: Literal["thrown", "quiet", "any"] = "any"
        trivial: Annotated[float, Field(gt=0)] | None = None

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.since = 0
        self.travel = 0.0  # sum of the rates
        self.guess = params.trivial or math.inf  # loss of a guess that knows nothing; infinite: not known
        self.has_moved = self.suspected = False
        self.trail: tuple[Block, ...] = ()  # the blocks of all judgements
        # These two survive a rollback: a remedy has to show movement, not silence.
        self.alarmed = False
        self.was_thrown: bool | None = None

    @property
    def settled(self) -> bool:
        return self.has_moved

    def learn(self, s: Signals) -> None:
        if self.has_moved:
            return
        if len(self.first) < FIRST:
            self.since = self.since if self.first else s.tick
            self.first_ticks(s)
        losses = self.losses
        losses.append(s.loss)
        if len(losses) >= self.size:
            if s.guess > 0.0 and self.params.trivial is None:
                self.guess = s.guess
            self.close(s)

    def closed(self, block: Block) -> None:
        if self.travel == 0.0 and math.sqrt(block.var) < _THROWN * self.start:
            self.start = max(self.start, block.mean)  # its first few losses were lucky ones
        self.trail = (*self.trail[1 - _LONGEST :], block)
        self.travel += block.lr * (block.until - block.since + 1)
        if len(self.blocks) < 2:
            return
        recent = 0.5 * (block.mean + self.blocks[-2].mean)
        if not recent > (1.0 - self.params.moved) * min(self.start, self.guess) > 0.0:
            self.has_moved = True
            self.refill()

    def judge(self) -> Found | None:
        found = self._flat()
        suspected, self.suspected = self.suspected, found is not None
        if not suspected:  # one window may look flat by chance, two in a row do not
            return None
        self.alarmed = self.alarmed or found is not None
        return found

    def _flat(self) -> Found | None:
        blocks, level = self.blocks, min(self.start, self.guess)
        mean = sum(b.mean for b in blocks) / BLOCKS
        if mean < 0.98 * level or self.travel < _TRAVEL or blocks[-1].lr > 1.02 * blocks[0].lr:
            return None
        sd = math.sqrt(sum(b.var for b in blocks) / BLOCKS)
        there = (1.0 + _THERE) * mean + _ERRORS * sd / math.sqrt(self.size)
        stretch = self._stretch(there)
        means = [b.mean for b in stretch]
        sd = math.sqrt(sum(b.var for b in stretch) / (len(stretch) or 1))
        if not self.alarmed and not self._still(means, sd, level):
            return None
        if self.was_thrown is None:
            self.was_thrown = _thrown(self.trail)
        if self.params.start == ("quiet" if self.was_thrown else "thrown"):
            return None
        usual = f"a guess that knows nothing gets {level:.4g}" if level < self.start else f"it started at {level:.4g}"
        since = self.since if self.trail[0].mean < there else blocks[0].since
        message = (
            f"loss has stayed at {mean:.4g} +- {sd:.2g} for {blocks[-1].until - since + 1} ticks; {usual} "
            "(likely, in this order: data, code, learning rate, capacity)"
        )
        return "loss", mean, 0.98 * level, level, since, message

    def _stretch(self, there: float) -> list[Block]:
        """The blocks since the last one above `there`."""
        gone = next((i for i, b in enumerate(reversed(self.trail)) if b.mean > there), len(self.trail))
        return list(self.trail[len(self.trail) - gone :])

    def _still(self, means: list[float], sd: float, level: float) -> bool:
        n = len(means)
        if n < BLOCKS:
            return False
        slope, t = line(means)[0], line(means[-BLOCKS:])[1]
        error = sd / math.sqrt(self.size) * math.sqrt(12.0 * n / (n * n - 1.0))  # of the fall over n blocks
        return sd < _NOISY * level and abs(t) <= 2.5 and _ERRORS * error - slope * n <= self.params.moved * level

    def refill(self) -> None:
        super().refill()
        self.trail, self.suspected = (), False

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "trail": [list(b) for b in self.trail]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.trail = tuple(Block(*b) for b in state["trail"])


def _thrown(trail: Sequence[Block]) -> bool:
    """The first two blocks were far more restless than the usual one since."""
    first, usual = (b.var for b in trail[:2]), median([b.var for b in trail[2:]])
    return max(first) > _WILD**2 * usual
