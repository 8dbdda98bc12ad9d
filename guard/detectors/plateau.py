"""Plateau: the loss moved, then stopped early, far from done.

Why it matters: a rate that was too high at the start can press a network into a corner that it never leaves; the
    curve looks like convergence, and nobody notices before the end.
Fires when: over the window the loss shows no downward trend (t > -2.5) and little noise (deviation < 0.06 of its
    level), is still above `remaining` of its start level, and got better only in the first third of the run; and
    either the network is stuck: the gradient norm is below `collapsed` of its early level and unsteady (deviation >
    0.2 of it) while the rate is above half of its maximum; or the schedule is over: the rate came down to below 1 % of
    its maximum before the loss stopped, and has been there for more than half of the run.

Args:
    window: ticks judged at once [steps], >= 48. Default 160.
    remaining: share of the start level that is far from done, 0 < remaining < 1. Default 0.55.
    collapsed: share of the early gradient norm, 0 < collapsed < 1. Default 0.33.
    cause: what is looked for: ``stuck``, ``schedule``, or ``any``. Default any.
Signals: loss, float, unscaled; grad_norm, float, L2 over all gradients, unscaled; lr_effective.
Cost: O(1) per tick (8 blocks, one judged every window / 8 ticks), O(window / 8) memory, no extra host sync.
Blind to: a plateau under noise, or with lively gradients; losses that are not positive. A run that has met an error
    that nobody can get below may look the same: worth telling, not worth acting on.
Raises: PolicyError at load; never at run time.
Example:
    {type: plateau, window: 160 steps, remaining: 0.55}
Source: ReduceLROnPlateau knows only "no better for N". Here the collapse of the gradient tells stuck from converged;
    its thresholds were chosen on small runs of both kinds.
"""

from __future__ import annotations

import math
from operator import mul
from typing import Annotated, Any, Literal

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.detectors._stats import line, median
from guard.detectors._window import BLOCKS, FIRST, Block, Found, Windowed
from guard.types import Signals
from guard.units import Steps

_UNSTEADY = 0.2  # deviation of the gradient norm [share of it]


@detector("plateau")
class Plateau(Windowed):
    OWN = ("start_norm", "began", "progressed", "arrived", "best", "done", "top_lr", "slow_since")

    class Params(Detector.Params):
        window: Annotated[Steps, Field(ge=48)] = 160
        remaining: Annotated[float, Field(gt=0, lt=1)] = 0.55
        collapsed: Annotated[float, Field(gt=0, lt=1)] = 0.33
        cause: Literal["stuck", "schedule", "any"] = "any"

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.start_norm = math.nan  # mean of the first block
        self.began = self.progressed = 0  # first tick, and the last one at which the loss was getting better
        self.arrived = 0  # tick at which the progress up to then began
        self.best = math.inf
        self.done = False  # the loss has come below `remaining` once: whatever happens later is no early plateau
        self.top_lr = 0.0
        self.slow_since = -1  # tick from which the rate has been below 1 % of its maximum

    @property
    def settled(self) -> bool:
        return self.done

    def learn(self, s: Signals) -> None:
        if not self.done:
            if len(self.first) < FIRST:
                self.first_ticks(s)
            super().learn(s)

    def rough(self, norms: list[float], mean: float) -> float:  # their variance
        squares: float = sum(map(mul, norms, norms))
        return squares / len(norms) - mean * mean

    def closed(self, block: Block) -> None:
        if self.start_norm != self.start_norm:
            self.start_norm, self.began = block.norm, block.since
        self.top_lr = max(self.top_lr, block.lr)
        if block.lr >= 0.01 * self.top_lr:
            self.slow_since = -1
        elif self.slow_since < 0:
            self.slow_since = block.since
        recent = 0.5 * (block.mean + self.blocks[-2].mean) if len(self.blocks) > 1 else block.mean
        if recent < self.best - 0.02 * abs(self.best) or self.best == math.inf:
            self.best, self.progressed, self.arrived = recent, block.until, self.blocks[-2:][0].since
        if not recent > self.params.remaining * self.start > 0.0:
            self.done = True
            self.refill()

    def judge(self) -> Found | None:
        blocks, now = self.blocks, self.blocks[-1].until
        if 3 * (self.progressed - self.began) > now - self.began:
            return None
        means = [b.mean for b in blocks]
        level, var = sum(means) / BLOCKS, sum(b.var for b in blocks) / BLOCKS
        if not self.params.remaining * self.start < level < 0.98 * self.start:
            return None
        if var > (0.06 * level) ** 2 or line(means)[1] < -2.5:
            return None
        why = self._why(now)
        if why is None:
            return None
        share = f"{level / self.start:.0%} of its start"
        message = f"loss has stayed at {level:.4g} since tick {self.progressed}, {share}, and {why}"
        return "loss", level, self.params.remaining * self.start, self.start, self.arrived, message

    def _why(self, now: int) -> str | None:
        cause = self.params.cause
        return (self._schedule_over(now) if cause != "stuck" else None) or (
            self._stuck() if cause != "schedule" else None
        )

    def _schedule_over(self, now: int) -> str | None:
        """A rate that falls because the loss has stopped is no cause of that."""
        slow = self.slow_since
        if slow < 0 or 2 * (now - slow) <= now - self.began or slow > self.progressed + 2 * self.size:
            return None
        return f"the learning rate is down to {self.blocks[-1].lr:.2g} since tick {slow}: is the schedule too short?"

    def _stuck(self) -> str | None:
        blocks = self.blocks
        norm = median([b.norm for b in blocks])
        if min(b.lr for b in blocks) <= 0.5 * self.top_lr or norm >= self.params.collapsed * self.start_norm:
            return None
        if math.sqrt(max(0.0, median([b.rough for b in blocks]))) <= _UNSTEADY * norm:
            return None
        return f"the gradient norm is down from {self.start_norm:.3g} to {norm:.3g}"
