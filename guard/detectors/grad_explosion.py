"""Gradient explosion: the global gradient norm jumps far above all that is usual in this run.

Why it matters: the update is as long as the gradient; recurrent nets and deep transformers lose their weights in one
    step. The norm shows it before the step, the loss only after it.
Fires when: norm > level + max(reach * scale, 2 * level, 0.5 * start level), after `warmup` ticks; level, scale and
    reach as in `loss_spike`. Before that, where nothing is known yet: norm > `absolute`, if that is given.

Args:
    window: memory of level and scale [steps], >= 16. Default 50.
    threshold: least value of reach [scales], > 0. Default 8, some 6 standard deviations of Gaussian noise.
    margin: distance from the largest usual outlier to the limit [mean tail lengths], > 0. Default 3.5.
    warmup: ticks before the first alarm [steps], >= 4. Default 20; until then `divergence` watches.
    rebaseline: flagged ticks in a row after which their level is the usual one [steps]. Default 20.
    absolute: norm that is too large during warm-up, e.g. 100 for a language model; what is usual depends on how the
        loss is added up, so there is no limit by default.
Signals: grad_norm, float, L2 over all gradients, unscaled; overflow, bool.
Cost: O(1) per tick, some 20 numbers of memory, no extra host sync.
Blind to: growth so slow that the level follows; gradients that arrive already clipped; one layer among many.
Raises: PolicyError at load; never at run time.
Example:
    {type: grad_explosion, threshold: 8.0, window: 128 steps}
Source: Pascanu et al. 2013 name the fault; ZClip's z-score of the norm is the nearest relative. Here the tail of the
    run's own norms sets the limit, because norms of small batches are log-normal and a z-score cries wolf on them.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import detector
from guard.detectors._jump import Jump
from guard.types import Detection, Signals


@detector("grad_explosion")
class GradExplosion(Jump):
    class Params(Jump.Params):
        absolute: Annotated[float, Field(gt=0)] | None = None

    def __init__(self, params: Any) -> None:
        # alarms=0: an explosion that was clipped and accepted is no reason to let the next one through
        super().__init__(params, floor=2.0, start_floor=0.5, alarms=0)
        self.absolute: float = params.absolute or math.inf

    def score(self, s: Signals) -> Detection | None:
        norm, usual = s.grad_norm, self.usual
        if not norm > usual.level + usual.gap:
            return None if norm <= self.absolute else self._too_large(s)
        if not norm > usual.limit:
            return None
        if norm == math.inf or s.overflow:  # the business of non_finite and of the loss scaler
            return None
        message = f"gradient norm {self.told(norm)}"
        return Detection("grad_explosion", "grad_norm", norm, usual.limit, usual.level, s.tick, message)

    def _too_large(self, s: Signals) -> Detection | None:
        norm, limit = s.grad_norm, self.absolute
        if not limit < norm < math.inf or self.usual.gap < math.inf or s.overflow:
            return None
        message = f"gradient norm {norm:.3g} is above {limit:g} while nothing is known of this run yet"
        return Detection("grad_explosion", "grad_norm", norm, limit, math.nan, s.tick, message)

    def learn(self, s: Signals) -> None:
        self.usual.learn(s.grad_norm)

    def hold(self, s: Signals) -> None:
        if self.usual.gap == math.inf:  # too large for the absolute limit: then the median of such norms is usual here
            self.usual.learn(s.grad_norm)
        else:
            self.usual.hold(s.grad_norm)
