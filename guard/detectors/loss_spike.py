"""Loss spike: the loss jumps far above all that is usual in this run.

Why it matters: one bad batch, or one update that was too long, can throw away hours of training; caught in its own
    tick, the weights need not take it.
Fires when: loss > level + max(reach * scale, 0.75 * |level|, 0.1 * |start level|) after `warmup` ticks. level and scale are
    winsorised averages of loss and absolute deviation; reach = exp(top + margin * tail * (1 + tail)) - 1, where top is the
    largest and tail the mean excess of the run's own outliers on the scale log(1 + d / scale); never below `threshold`.

Args:
    window: memory of level and scale [steps], >= 16. Default 50.
    threshold: the least distance from the level [mean absolute deviations], > 0. Default 8, about 6 standard deviations.
    margin: distance beyond the largest usual outlier [mean tail lengths], > 0. Default 3.5.
    warmup: ticks before the first alarm [steps], >= 4. Default 20; before that `divergence` watches.
    rebaseline: flagged ticks in a row after which the new level is the usual one (a curriculum) [steps]. Default 20.
Signals: loss, float, unscaled.
Cost: O(1) per tick, some 20 numbers of memory, no extra host sync.
Blind to: slow drift; spikes during warm-up; one bad batch among many that are as bad by nature.
Raises: PolicyError at load; never at run time.
Example:
    {type: loss_spike, window: 50 steps, threshold: 8.0}
Source: the mean + 6 sigma over 128 steps of OLMo-core and llm-foundry; here robust, and judged against the run's own outliers,
    because heavy-tailed losses (diffusion, batch size 2) exceed any fixed multiple of sigma in health.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.detectors._jump import Jump
from guard.detectors._stats import Upper
from guard.types import Detection, Signals
from guard.units import Steps


@detector("loss_spike")
class LossSpike(Jump):
    class Params(Detector.Params):
        window: Annotated[Steps, Field(ge=16)] = 50
        threshold: Annotated[float, Field(gt=0)] = 8.0
        margin: Annotated[float, Field(gt=0)] = 3.5
        warmup: Annotated[Steps, Field(ge=4)] = 20
        rebaseline: Annotated[Steps, Field(ge=1)] = 20

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.usual = Upper(params.window, params.threshold, 0.75, 0.1, params.margin, params.warmup, params.rebaseline)

    def score(self, s: Signals) -> Detection | None:
        loss, usual = s.loss, self.usual
        if not loss > usual.limit or loss == math.inf:  # an infinite loss is non_finite's
            return None
        return Detection("loss_spike", "loss", loss, usual.limit, usual.level, s.tick, f"loss {self.times(loss)}")

    def learn(self, s: Signals) -> None:
        self.usual.learn(s.loss)

    def hold(self, s: Signals) -> None:
        self.usual.hold(s.loss)
