"""Weights: a parameter tensor is constant, huge, or growing without end.

Why it matters: equal weights learn equal things, so that a wide layer is one unit; huge ones overflow half precision
    and drown what comes after them; growth by the same factor over and over ends in NaN.
Fires when: in some trained tensor max - min < 1e-10 in `looks` looks in a row, although it differed before or has two
    and more dimensions; or max |w| > `huge`; or the norm grew at least `growth`-fold from look to look, `looks` times
    in a row, to a root mean square above 1.

Args:
    every: ticks between two looks [steps], >= 1. Default 50.
    looks: in a row, for constant and growing [looks], 1 to 8. Default 3.
    huge: largest healthy |w|, > 0. Default 1000.
    growth: factor from one look to the next, > 1. Default 2.
Signals: deep.layers, by tensor: size, dims, grad, norm, peak, spread; lr_effective, float.
Cost: nothing between looks; a look reads each weight three times, and all results in one transfer.
Blind to: biases at zero and scales at one that never moved; constant tensors without a gradient, or while the rate is
    0; rows that are equal while the tensor is not.
Raises: PolicyError at load; never at run time.
Example:
    {type: weights, every: 50 steps, huge: 1e3, growth: 2.0}
Source: the PoorWeightInitialization and ExplodingTensor rules of SageMaker Debugger; looks in a row are wanted, because
    LoRA, zero-convolutions and position embeddings begin at zero and are in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import detector
from guard.detectors._looks import Fault, Looking
from guard.types import Signals

_CONSTANT = 1e-10  # max - min below which all weights are equal


@detector("weights")
class Weights(Looking):
    needs = frozenset({"layers"})

    class Params(Looking.Params):
        huge: Annotated[float, Field(gt=0)] = 1e3
        growth: Annotated[float, Field(gt=1)] = 2.0

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._norms: dict[str, float] = {}  # at the look before
        self._varied: dict[str, bool] = {}  # tensors in which weights have differed

    def faults(self, s: Signals) -> Sequence[Fault] | None:
        layers = s.deep.get("layers") if s.deep else None
        if layers is None:
            return None
        return [f for name, w in layers.items() for f in self._of(name, w, moving=s.lr_effective > 0.0)]

    def _of(self, name: str, w: dict[str, Any], *, moving: bool) -> list[Fault]:
        p, found = self.params, []
        varied, before = name in self._varied, self._norms.get(name, math.nan)
        trained = w["grad"] is not None and moving
        if w["size"] > 1 and w["spread"] < _CONSTANT and (varied or (w["dims"] > 1 and trained)):
            message = f"all {w['size']} weights of {name} are equal"
            found.append(Fault(f"constant {name}", 0.0, "spread", w["spread"], _CONSTANT, math.nan, message, p.looks))
        if w["peak"] > p.huge:
            message = f"a weight of {name} is as large as {w['peak']:.3g} (limit {p.huge:g})"
            badness = 2.0 * w["peak"] / p.huge
            found.append(Fault(f"huge {name}", badness, "weight", w["peak"], p.huge, math.nan, message, 1))
        if math.inf > w["norm"] >= p.growth * before > 0.0:
            rms = w["norm"] / math.sqrt(w["size"])
            message = f"the norm of {name} went from {before:.3g} to {w['norm']:.3g} since the last look"
            # Small weights may grow; the row is counted all the same, so that it is known when they are large.
            patience = p.looks if rms > 1.0 else math.inf
            found.append(
                Fault(
                    f"growing {name}",
                    w["norm"] / before / p.growth,
                    "weight_norm",
                    w["norm"],
                    p.growth * before,
                    before,
                    message,
                    patience,
                )
            )
        return found

    def remember(self, s: Signals) -> None:
        layers = s.deep["layers"]  # type: ignore[index] # asked only on a look
        self._norms = {name: w["norm"] for name, w in layers.items() if w["norm"] < math.inf}
        self._varied |= {name: True for name, w in layers.items() if w["spread"] >= _CONSTANT}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "norms": dict(self._norms), "varied": dict(self._varied)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._norms, self._varied = dict(state["norms"]), dict(state["varied"])
