"""Divergence: the loss went down and now goes steadily up; or it blows up in the first ticks.

Why it matters: no later batch brings it back; the sooner the run goes back to a good state with a lower rate, the less is lost.
Fires when: after a fall of at least 20 % of its start level the loss has regained half of that fall, block after block over
    the last half window, or three quarters of it and stayed there for half a window. Or, in the first `early` ticks: loss and
    gradient norm are both 10 times the highest so far and the loss triples in the next tick again.

Args:
    window: ticks judged at once [steps], >= 48. Default 96.
    early: ticks from the start in which a blow-up is looked for [steps], >= 2. Default 20; after that `loss_spike` watches.
Signals: loss, float, unscaled; grad_norm, float, L2 over all gradients.
Cost: O(1) per tick (8 blocks, judged every window / 8 ticks), O(window / 8) memory, no extra host sync.
Blind to: a rise from a loss that never fell; a rise so slow that the window shows no trend; losses that start at or below 0
    (for the slow kind).
Raises: PolicyError at load; never at run time.
Example:
    {type: divergence, window: 96 steps}
Source: AUTOTRAINER's "not converging" and Keras' TerminateOnNaN see it at the end; PaLM (Chowdhery et al. 2022) describes going
    back some 100 steps.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.detectors._window import BLOCKS, HALF, Block, Found, Windowed
from guard.types import Detection, Signals
from guard.units import Steps

_RECENT = 4  # windows within which the ground must have been lost
_ERRORS = 8  # standard errors of a quarter that a rise must exceed


@detector("divergence")
class Divergence(Windowed):
    class Params(Detector.Params):
        window: Annotated[Steps, Field(ge=48)] = 96
        early: Annotated[Steps, Field(ge=2)] = 20

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.start = math.nan  # mean of the first block
        self.best = math.inf  # least mean of a quarter of a window
        self.sound = 0  # tick after the last one at which the fall was as good as kept
        self.seen = 0  # ticks, up to `early`
        self.top = self.top_norm = 0.0  # highest |loss| and norm of the first ticks, blown-up ones left out
        self.blown = math.nan  # loss of the last tick, if it was blown up
        self.blown_since = 0

    def score(self, s: Signals) -> Detection | None:
        if self.seen < self.params.early and self._blown_up(s) and s.loss > max(self.blown, 1000.0 * self.top):
            message = f"loss {s.loss:.3g} within {s.tick - self.blown_since + 1} ticks of {self.top:.3g}, and growing"
            return Detection("divergence", "loss", s.loss, 10.0 * self.top, self.top, self.blown_since, message)
        return None if self.found is None else Detection("divergence", *self.found)

    def learn(self, s: Signals) -> None:
        if self.seen < self.params.early:
            self._start(s)
        losses = self.losses
        losses.append(s.loss)
        if len(losses) >= self.size:
            self.close(s)

    def _blown_up(self, s: Signals) -> bool:
        return self.seen > 0 and 10.0 * self.top < s.loss < math.inf and s.grad_norm > 10.0 * self.top_norm

    def _start(self, s: Signals) -> None:
        if s.loss - s.loss != 0.0:
            return
        if self._blown_up(s):
            if self.blown != self.blown:
                self.blown_since = s.tick
            self.blown = s.loss
        else:
            self.top = max(self.top, abs(s.loss))
            if s.grad_norm < math.inf:
                self.top_norm = max(self.top_norm, s.grad_norm)
            self.blown = math.nan
        self.seen += 1

    def closed(self, block: Block) -> None:
        if self.start != self.start:
            self.start = block.mean
        recent = 0.5 * (block.mean + self.blocks[-2].mean) if len(self.blocks) > 1 else block.mean
        if recent <= self.best + 0.2 * (self.start - self.best) or self.best == math.inf:
            self.sound = block.until + 1
            self.best = min(self.best, recent)

    def judge(self) -> Found | None:
        blocks, fall = self.blocks, self.start - self.best
        level = 0.5 * (blocks[-1].mean + blocks[-2].mean)
        if level < self.best + .4 * fall or self.best <= 0.0 or fall < 0.3 * self.start:
            return None
        if blocks[-1].until - self.sound > _RECENT * self.params.window:  # too slow to be a divergence, or told long enough
            self.start = self.best = level
            return None
        noise = math.sqrt(sum(b.var for b in blocks) / BLOCKS)
        if level - self.best < _ERRORS * noise / math.sqrt(self.size):
            return None
        half = [b.mean for b in blocks[-HALF:]]
        steps = [b - a for a, b in zip(half, half[1:], strict=False)]
        rising = min(steps) > 0.08 * sum(steps) > 0.0 and max(steps) < 0.8 * sum(steps)  # a single jump is no steady rise
        if not rising and min(half) < self.best + .4 * fall:
            return None
        how = "and rising" if rising else "to stay"
        message = f"loss fell from {self.start:.4g} to {self.best:.4g} and is back at {level:.4g} {how}"
        return "loss", level, self.best + 0.5 * fall, self.best, self.sound, message

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "start": self.start, "best": self.best, "sound": self.sound, "seen": self.seen,
                "top": self.top, "top_norm": self.top_norm, "blown": self.blown, "blown_since": self.blown_since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.start, self.best, self.sound, self.seen = state["start"], state["best"], state["sound"], state["seen"]
        self.top, self.top_norm, self.blown = state["top"], state["top_norm"], state["blown"]
        self.blown_since = state["blown_since"]
