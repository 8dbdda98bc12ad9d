"""Dead parameters: nothing that could be trained receives a gradient.

Why it matters: an adapter frozen by mistake, or a loss detached from the model, trains for days and changes no
    weight; backward() does not complain.
Fires when: no parameter has a gradient, or the global norm is exactly 0, for `patience` ticks in a row, while the
    loss is unknown or |loss| > `done`.

Args:
    patience: ticks in a row [steps], >= 1. Default 20.
    done: a loss this small has a right to no gradient (memorised, hinge loss satisfied). Default 1e-6.
Signals: params, int; grad_norm, float, L2 over all gradients, unscaled; loss, float, unscaled.
Cost: O(1) per tick, two numbers of memory, no extra host sync.
Blind to: some dead parameters among living ones; gradients that are tiny but not 0 (`grad_vanishing`).
Raises: PolicyError at load; never at run time.
Example:
    {type: dead_parameters, patience: 20 steps}
Source: reports of frozen adapters (huggingface/trl 3926); the check is the definition.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.types import Detection, Signals
from guard.units import Steps


@detector("dead_parameters")
class DeadParameters(Detector):
    class Params(Detector.Params):
        patience: Annotated[Steps, Field(ge=1)] = 20
        done: Annotated[float, Field(ge=0)] = 1e-6

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._dead = 0  # ticks in a row
        self._since = 0

    def score(self, s: Signals) -> Detection | None:
        if (s.grad_norm != 0.0 and s.params) or self._dead + 1 < self.params.patience or not self._is_dead(s):
            return None
        since = self._since if self._dead else s.tick
        what = "no parameter has a gradient" if not s.params else "the gradient norm is exactly 0"
        message = f"{what} for {self._dead + 1} ticks, loss {s.loss:.4g}"
        return Detection("dead_parameters", "grad_norm", s.grad_norm, 0.0, 0.0, since, message)

    def learn(self, s: Signals) -> None:
        if (s.grad_norm != 0.0 and s.params) or not self._is_dead(s):
            self._dead = 0
        else:
            if not self._dead:
                self._since = s.tick
            self._dead += 1

    hold = learn

    def _is_dead(self, s: Signals) -> bool:
        return (not s.params or s.grad_norm == 0.0) and not s.overflow and not abs(s.loss) <= self.params.done

    def refill(self) -> None:
        self._dead = 0

    def state_dict(self) -> dict[str, Any]:
        return {"dead": self._dead, "since": self._since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._dead, self._since = state["dead"], state["since"]
