"""Threshold: a measured or logged number leaves its allowed range.

Why it matters: some limits only the person knows: a reward, an accuracy, a loss that must never be exceeded.
Fires when: value > above, or value < below. NaN crosses nothing.

Args:
    signal: loss, grad_norm, lr, lr_effective, loss_scale, params, or the name of a number given to `g.log`.
    above: largest allowed value [unit of the signal].
    below: smallest allowed value [unit of the signal]. At least one of the two is needed.
Signals: the one named; a logged number counts in the tick after it was logged.
Cost: O(1) per tick, no memory, no extra host sync.
Blind to: everything else; add `for: 3 steps` to the trigger if one tick is no proof.
Raises: PolicyError at load if neither limit is given, or if below > above; never at run time.
Example:
    {type: threshold, signal: reward, below: 0.0}
Source: the alert rules of Prometheus, on training signals.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

from pydantic import model_validator

from guard.detectors._base import Detector, detector
from guard.types import Detection, Signals

_MEASURED = ("loss", "grad_norm", "lr", "lr_effective", "loss_scale", "params")


@detector("threshold")
class Threshold(Detector):
    class Params(Detector.Params):
        signal: str
        above: float | None = None
        below: float | None = None

        @model_validator(mode="after")
        def _range(self) -> Threshold.Params:
            if self.above is None and self.below is None:
                raise ValueError("give `above`, `below` or both")
            if self.above is not None and self.below is not None and self.below > self.above:
                raise ValueError(f"no value is allowed: below {self.below:g} > above {self.above:g}")
            return self

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._read = attrgetter(params.signal) if params.signal in _MEASURED else None
        self._high = math.inf if params.above is None else params.above
        self._low = -math.inf if params.below is None else params.below

    def score(self, s: Signals) -> Detection | None:
        if self._read is not None:
            value = self._read(s)
        elif s.metrics is None:
            return None
        else:
            value = s.metrics.get(self.params.signal, math.nan)
        if not (value > self._high or value < self._low):
            return None
        side, limit = ("above", self._high) if value > self._high else ("below", self._low)
        message = f"{self.params.signal} {value:.4g} is {side} {limit:.4g}"
        return Detection("threshold", self.params.signal, value, limit, math.nan, s.tick, message)
