"""Vanishing gradient: the gradient norm has all but disappeared while the loss is still high.

Why it matters: saturated units or a collapsed layer pass nothing back; the run goes on, and learns nothing.
Fires when: norm < `ratio` * (median norm of the first 20 ticks) for `patience` ticks in a row, while the loss is
    unknown or above half of its start level.

Args:
    ratio: share of the early gradient norm, 0 < ratio < 1. Default 0.001.
    patience: ticks in a row [steps], >= 1. Default 20.
Signals: grad_norm, float, L2 over all gradients, unscaled; loss, float, unscaled.
Cost: O(1) per tick, some 20 numbers of memory, no extra host sync.
Blind to: gradients that are small from the start; a loss that is not positive at the start; one dead layer among
    many.
Raises: PolicyError at load; never at run time.
Example:
    {type: grad_vanishing, ratio: 0.001, patience: 20 steps}
Source: the vanishing-gradient rule of SageMaker Debugger (an absolute 1e-7); relative to the run's own start here,
    because a memorised data set has small gradients too, and a small loss with them.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.detectors._stats import median
from guard.types import Detection, Signals
from guard.units import Steps

_EARLY = 20  # ticks


@detector("grad_vanishing")
class GradVanishing(Detector):
    class Params(Detector.Params):
        ratio: Annotated[float, Field(gt=0, lt=1)] = 1e-3
        patience: Annotated[Steps, Field(ge=1)] = 20

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._norms: list[float] = []
        self._losses: list[float] = []
        self._limit = -1.0  # no norm is below it until the early ones are known
        self._high = -math.inf  # a loss above this is still high
        self._low = self._since = 0  # ticks in a row below the limit, and the first of them

    def score(self, s: Signals) -> Detection | None:
        norm = s.grad_norm
        if not norm < self._limit or self._low + 1 < self.params.patience or s.loss <= self._high:
            return None
        since = self._since if self._low else s.tick
        early = self._limit / self.params.ratio
        message = f"gradient norm is down from {early:.3g} to {norm:.3g} for {self._low + 1} ticks, loss {s.loss:.4g}"
        return Detection("grad_vanishing", "grad_norm", norm, self._limit, early, since, message)

    def learn(self, s: Signals) -> None:
        norm = s.grad_norm
        if norm >= self._limit > 0.0:
            self._low = 0
        elif self._limit < 0.0:
            self._early(s)
        elif norm < self._limit:
            if not self._low:
                self._since = s.tick
            self._low += 1

    hold = learn

    def _early(self, s: Signals) -> None:
        if 0.0 < s.grad_norm < math.inf:
            self._norms.append(s.grad_norm)
            if s.loss - s.loss == 0.0:
                self._losses.append(s.loss)
        if len(self._norms) == _EARLY:
            start = median(self._losses) if self._losses else math.nan
            self._high = 0.5 * start if start > 0.0 else math.inf if start <= 0.0 else -math.inf
            self._limit = self.params.ratio * median(self._norms)

    def refill(self) -> None:
        self._low = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "norms": list(self._norms),
            "losses": list(self._losses),
            "limit": self._limit,
            "high": self._high,
            "low": self._low,
            "since": self._since,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._norms, self._losses = list(state["norms"]), list(state["losses"])
        self._limit, self._high, self._low, self._since = state["limit"], state["high"], state["low"], state["since"]
