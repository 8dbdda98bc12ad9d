"""Update ratio: a step changes a layer's weights by far too large or far too small a part of them.

Why it matters: a healthy step moves weights by about a thousandth of their size. A tenth destroys in ten steps what
    was learnt; a millionth is a rate forgotten in its exponent, or an update that rounds to nothing in BF16.
Fires when: |dw| / |w| of one weight matrix is above `high`, or below `low` while the learning rate is at least a
    tenth and the layer's gradient at least a thousandth of its largest so far, in `looks` looks in a row.

Args:
    every: ticks between two looks [steps], >= 1. Default 50.
    looks: in a row [looks], 1 to 8. Default 3.
    high: largest healthy ratio, > 0. Default 0.1.
    low: smallest healthy ratio, >= 0. Default 1e-6; 0 never fires.
Signals: deep.updates, ratio and gradient norm by tensor, over one whole iteration; lr_effective, float. They are known
    one tick after the look.
Cost: nothing between looks; a look copies the weights (of large tensors a sample of at most 2^18 numbers) for one tick.
Blind to: biases and scales (tensors of one dimension), which start at zero and may move fast; tensors whose root mean
    square is below 1e-4 (LoRA's B at its start); looks whose step was left out.
Raises: PolicyError at load; never at run time.
Example:
    {type: update_ratio, every: 50 steps, high: 0.1, low: 1e-6}
Source: the usual 1e-3 of Karpathy's lectures, also a rule of SageMaker Debugger (WeightUpdateRatio).
    A small ratio is excused by a small gradient or rate, because those are how training ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from guard.detectors._base import detector
from guard.detectors._looks import Fault, Looking
from guard.types import Signals

_RATE = 0.1  # share of the largest rate below which small updates are meant
_GRADIENT = 1e-3  # share of the layer's largest gradient below which small updates follow from it
_TINY = 1e-4  # root mean square of weights that are still on their way from zero


@detector("update_ratio")
class UpdateRatio(Looking):
    needs = frozenset({"updates"})

    class Params(Looking.Params):
        high: Annotated[float, Field(gt=0)] = 0.1
        low: Annotated[float, Field(ge=0)] = 1e-6

        @model_validator(mode="after")
        def _range(self) -> UpdateRatio.Params:
            if self.low >= self.high:
                raise ValueError(f"no ratio is allowed: low {self.low:g} >= high {self.high:g}")
            return self

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._rate = 0.0  # largest so far
        self._gradients: dict[str, float] = {}  # largest so far, by tensor

    def looked_at(self, s: Signals) -> int:
        return int(s.deep["updates"]["tick"]) if s.deep and "updates" in s.deep else s.tick

    def faults(self, s: Signals) -> Sequence[Fault] | None:
        updates = s.deep.get("updates") if s.deep else None
        if updates is None:
            return None
        rate = updates["lr"] > 0.0 and updates["lr"] >= _RATE * self._rate
        return [f for name, u in updates["layers"].items() if (f := self._fault(name, u, rate))]

    def _fault(self, name: str, u: dict[str, Any], rate: bool) -> Fault | None:
        ratio, p = u["ratio"], self.params
        if u["dims"] < 2 or not u["rms"] >= _TINY or not ratio < math.inf:
            return None
        if ratio > p.high:
            message = f"a step changes {name} by {ratio:.2g} of its size (limit {p.high:g})"
            return Fault(f"high {name}", ratio / p.high, "update_ratio", ratio, p.high, 1e-3, message, p.looks)
        gradient = u["grad"] is not None and u["grad"] > 0.0 and u["grad"] >= _GRADIENT * self._gradients.get(name, 0.0)
        if ratio < p.low and rate and gradient:
            message = f"a step changes {name} by only {ratio:.2g} of its size (limit {p.low:g})"
            return Fault(f"low {name}", p.low / max(ratio, 1e-30), "update_ratio", ratio, p.low, 1e-3, message, p.looks)
        return None

    def remember(self, s: Signals) -> None:
        updates = s.deep["updates"]  # type: ignore[index] # asked only on a look
        if updates["lr"] < math.inf:
            self._rate = max(self._rate, updates["lr"])
        for name, u in updates["layers"].items():
            if u["grad"] is not None and u["grad"] < math.inf:
                self._gradients[name] = max(self._gradients.get(name, 0.0), u["grad"])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rate": self._rate, "gradients": dict(self._gradients)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._rate, self._gradients = state["rate"], dict(state["gradients"])
