"""Divergence: the loss went down and now goes up for good; or it blows up in the first ticks.

Why it matters: no later batch brings it back; the sooner the run returns to a good state, at a lower rate, the less
    is lost.
Fires when: the loss had fallen by 30 % of its start level, and has lost `regained` of that fall again, by 6 standard
    errors: over half a window without a break, or block after block. One step up that is being learnt away again is
    none; nor is one that came back in the same place although the run had gone back and was changed. Or, in the first
    `early` ticks: loss and gradient norm are 10 times their highest so far in two ticks running, and the loss grows,
    to 1000 times.

Args:
    window: ticks judged at once [steps], >= 48. Default 96.
    regained: share of the fall that is lost again, 0 < regained < 1. Default 0.4.
    early: ticks from the start in which a blow-up is looked for [steps], >= 2. Default 20; later `loss_spike`
        watches.
Signals: loss, float, unscaled; grad_norm, float, L2 over all gradients, unscaled.
Cost: O(1) per tick (8 blocks, one judged every window / 8 ticks), O(window / 8) memory, no extra host sync.
Blind to: a rise from a loss that never fell, or that takes more than four windows; slow divergence of a loss that is
    not positive; a single jump until it has lasted half a window (`loss_spike` sees it at once).
Raises: PolicyError at load; never at run time.
Example:
    {type: divergence, window: 96 steps}
Source: the divergence that PaLM and OPT report and restart from, some 100 steps back; written as lost progress,
    because a multiple of the best loss fires on every loss near zero.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.detectors._window import BLOCKS, HALF, Block, Found, Windowed, step_up
from guard.types import Detection, Signals
from guard.units import Steps

_FALLEN = 0.3  # of the start level: a fall that is worth defending
_ERRORS = 6.0  # standard errors of a quarter window that the rise must exceed
_LEARNT = 0.1  # of what a jump cost, within half a window
_RECENT = 4  # windows within which the ground must have been lost


@detector("divergence")
class Divergence(Windowed):
    OWN = ("best", "sound", "early", "top", "top_norm", "blown", "blown_since")

    class Params(Detector.Params):
        window: Annotated[Steps, Field(ge=48)] = 96
        regained: Annotated[float, Field(gt=0, lt=1)] = 0.4
        early: Annotated[Steps, Field(ge=2)] = 20

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.best = math.inf  # least mean of two blocks
        self.sound = 0  # tick after the last one at which the fall was as good as kept
        self.early: int = params.early  # ticks left in which a blow-up is looked for
        self.top = self.top_norm = 0.0  # highest |loss| and norm of the first ticks, blown-up ones left out
        self.blown = math.nan  # loss of the last tick, if that was blown up
        self.blown_since = 0
        self.ahead = 0  # ticks more than steps
        self.jump = -1  # step of the last jump that was reported; survives a rollback

    def _is_harder_data(self, half: list[float]) -> bool:
        """A jump that is learnt away again, or came back in the same place after a remedy: the data have changed."""
        jump = step_up(self.blocks)
        if jump is None:
            return False
        if half[-1] < half[0] - _LEARNT * (half[0] - self.best):
            return True
        if self.jump < 0 or self.found is not None or abs(jump.since - self.ahead - self.jump) > self.size:
            return False
        self.start = self.best = half[-1]
        return True

    def score(self, s: Signals) -> Detection | None:
        if self.early and self._blown_up(s) and s.loss > max(self.blown, 1000.0 * self.top):
            ticks = s.tick - self.blown_since + 1
            message = f"loss blew up from {self.top:.3g} to {s.loss:.3g} within {ticks} ticks"
            return Detection("divergence", "loss", s.loss, 1000.0 * self.top, self.top, self.blown_since, message)
        return None if self.found is None else Detection("divergence", *self.found)

    def learn(self, s: Signals) -> None:
        if self.early:
            self._first_ticks(s)
        losses = self.losses
        losses.append(s.loss)
        if len(losses) >= self.size:
            self.close(s)

    def _blown_up(self, s: Signals) -> bool:
        if not 10.0 * self.top < s.loss < math.inf or self.early == self.params.early:
            return False
        return s.grad_norm > 10.0 * self.top_norm

    def _first_ticks(self, s: Signals) -> None:
        if s.loss - s.loss != 0.0:
            return
        if self._blown_up(s):
            if self.blown != self.blown:
                self.blown_since = s.tick
            self.blown = s.loss
        else:
            self.top, self.blown = max(self.top, abs(s.loss)), math.nan
            if s.grad_norm < math.inf:
                self.top_norm = max(self.top_norm, s.grad_norm)
        self.early -= 1

    def closed(self, block: Block) -> None:
        if self.start != self.start:
            self.start = block.mean
        recent = 0.5 * (block.mean + self.blocks[-2].mean) if len(self.blocks) > 1 else block.mean
        if self.best == math.inf or recent <= self.best + 0.2 * (self.start - self.best):
            self.sound, self.best = block.until + 1, min(self.best, recent)

    def close(self, s: Signals) -> None:
        self.ahead = s.tick - s.step
        super().close(s)

    def judge(self) -> Found | None:
        blocks, fall = self.blocks, self.start - self.best
        level, limit = 0.5 * (blocks[-1].mean + blocks[-2].mean), self.best + self.params.regained * fall
        if level < limit or self.best <= 0.0 or fall < _FALLEN * self.start:
            return None
        if blocks[-1].until - self.sound > _RECENT * self.params.window:  # slow by nature, or told long enough
            self.start = self.best = level
            return None
        noise = math.sqrt(sum(b.var for b in blocks) / BLOCKS)
        if level - self.best < _ERRORS * noise / math.sqrt(self.size):
            return None
        half = [b.mean for b in blocks[-HALF:]]
        steps = [b - a for a, b in pairwise(half)]
        rising = min(steps) > 0.08 * sum(steps) > 0.0 and max(steps) < 0.8 * sum(steps)  # a jump is no steady rise
        if not rising and (min(half) < limit or self._is_harder_data(half)):
            return None
        if not rising and self.found is None and (jump := step_up(blocks)) is not None:
            self.jump = jump.since - self.ahead
        how = "and rising" if rising else "to stay"
        message = f"loss fell from {self.start:.4g} to {self.best:.4g} and is back at {level:.4g} {how}"
        return "loss", level, limit, self.best, self.sound, message
