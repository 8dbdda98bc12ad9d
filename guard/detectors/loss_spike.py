"""Loss spike: the loss jumps far above all that is usual in this run.

Why it matters: one bad batch, or one update that was too long, can throw away hours of training; seen in its own
    tick, the weights need not take it.
Fires when: loss > level + max(reach * scale, 0.75 * |level|, 0.1 * |start level|), after `warmup` ticks. level is a
    running mean that takes outliers up to a cap, scale that of |x - x'| / 1.41 from one tick to the next; reach =
    exp(top + min(margin * tail * (1 + 2 tail), 3.5)) - 1, where top is the largest and tail the mean excess of this
    run's own outliers d > 2.5 scale, on the scale y = log(1 + d / scale).
    Or: loss < 0 and loss < level - 8 * (|level| + 20 scale): no loss falls like that, labels out of range do.

Args:
    window: memory of level and scale [steps], >= 16. Default 50.
    threshold: least value of reach [scales], > 0. Default 8, some 6 standard deviations of Gaussian noise.
    margin: distance from the largest usual outlier to the limit [mean tail lengths], > 0. Default 3.5.
    warmup: ticks before the first alarm [steps], >= 4. Default 20; until then `divergence` watches.
    rebaseline: flagged ticks in a row after which their level is the usual one (a harder stage) [steps]. Default 20.
Signals: loss, float, unscaled.
Cost: O(1) per tick, some 20 numbers of memory, no extra host sync.
Blind to: slow drift; spikes during warm-up; one bad batch in a run where many are as bad. What came and went three
    times, and was accepted each time, is usual.
Raises: PolicyError at load; never at run time.
Example:
    {type: loss_spike, window: 50 steps, threshold: 8.0}
Source: mean + 6 sigma over 128 steps, as OLMo-core and llm-foundry do it; made robust, and judged by the run's own
    outliers, because healthy heavy-tailed losses (diffusion, batch size 2) exceed any fixed multiple of sigma. The
    defaults are the ones at which some hundred small healthy runs stay silent.
"""

from __future__ import annotations

import math
from typing import Any

from guard.detectors._base import detector
from guard.detectors._jump import Jump
from guard.types import Detection, Signals

_FALLS, _SCALES = 8.0, 20.0  # how far a loss may fall below its level in one tick


@detector("loss_spike")
class LossSpike(Jump):
    def __init__(self, params: Any) -> None:
        super().__init__(params, floor=0.75, start_floor=0.1, alarms=3)

    def score(self, s: Signals) -> Detection | None:
        loss, usual = s.loss, self.usual
        if not loss > usual.level + usual.gap:
            return None if loss >= 0.0 else self._far_below(s)
        if not loss > usual.limit:
            return None
        if loss == math.inf:  # the business of non_finite
            return None
        return Detection("loss_spike", "loss", loss, usual.limit, usual.level, s.tick, f"loss {self.told(loss)}")

    def _far_below(self, s: Signals) -> Detection | None:
        level, loss = self.usual.level, s.loss
        limit = level - _FALLS * (abs(level) + _SCALES * self.usual.scale)
        if not -math.inf < loss < limit or self.usual.gap == math.inf:
            return None
        message = f"loss {loss:.3g} is far below its usual {level:.3g}: are all targets in range?"
        return Detection("loss_spike", "loss", loss, limit, level, s.tick, message)

    def learn(self, s: Signals) -> None:
        self.usual.learn(s.loss)

    def hold(self, s: Signals) -> None:
        self.usual.hold(s.loss)
