"""Bad batch: the inputs of this step are not what they should be.

Why it matters: a broken file, a log of zero or a tokenizer's empty answer is found here before it is a loss; after it,
    the model would be searched for what is the data's fault.
Fires when: an input holds NaN or Inf (a mask of 0 and -Inf is none); or the largest input tensor is all zero; or
    max |x| > `factor` * its usual, after `warmup` looks, as in `grad_explosion`; or every label is -100.

Args:
    every: ticks between two looks at batches of more than 1e6 floating-point numbers [steps], >= 1. Default 50. Smaller
        batches are looked at in every tick, the others also whenever loss or gradient is not finite.
    factor: how many times its usual the largest |x| must be, > 1. Default 10.
    warmup: looks before the first alarm about size, >= 4. Default 20.
    rebaseline: looks in a row with the same oddity after which it is usual in this run (NaN for missing labels, an
        initial state of zeros), >= 1. Default 20.
Signals: deep.inputs: finite, zero, ignored, bool; peak, float; of the batch that `g.batches` gave, else of the
    arguments of the model's forward pass.
Cost: nothing without a policy that asks; a look reads the inputs once, and its results in one transfer.
Blind to: token ids and other whole numbers, except labels of -100; labels that are wrong but valid; large batches
    between two looks; labels that the forward pass does not see, in one-line use; batches that are neither tensors nor
    tuples, lists or mappings of them.
Raises: PolicyError at load; never at run time.
Example:
    {type: bad_batch, factor: 10.0}
Source: reports of runs that died of a zero-length or all-ignored batch (torch's cross-entropy is NaN if every label is
    -100); the size check is `grad_explosion`'s, on inputs.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.detectors._stats import Upper
from guard.types import Detection, Signals
from guard.units import Steps

_ODD = {
    "non-finite": "the inputs hold NaN or Inf",
    "zero": "the inputs are all zero",
    "ignored": "every label is -100, which means: ignore it",
}


@detector("bad_batch")
class BadBatch(Detector):
    needs = frozenset({"inputs"})

    class Params(Detector.Params):
        every: Annotated[Steps, Field(ge=1)] = 50
        factor: Annotated[float, Field(gt=1)] = 10.0
        warmup: Annotated[int, Field(ge=4)] = 20
        rebaseline: Annotated[int, Field(ge=1)] = 20

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._peak = Upper(
            window=50,
            threshold=8.0,
            floor=params.factor - 1.0,
            start_floor=0.0,
            margin=3.5,
            warmup=params.warmup,
            rebaseline=params.rebaseline,
            alarms=3,
        )
        self._rows = dict.fromkeys(_ODD, 0)  # looks in a row with that oddity

    def score(self, s: Signals) -> Detection | None:
        inputs = s.deep.get("inputs") if s.deep is not None else None
        if inputs is None:
            return None
        for kind in self._oddities(inputs):
            if self._rows[kind] < self.params.rebaseline:
                return Detection("bad_batch", "inputs", inputs["peak"], math.nan, self._peak.level, s.tick, _ODD[kind])
        peak, usual = inputs["peak"], self._peak
        if not usual.limit < peak < math.inf:
            return None
        message = f"the largest input is {peak:.3g}, usual are {usual.level:.3g} (limit {usual.limit:.3g})"
        return Detection("bad_batch", "inputs", peak, usual.limit, usual.level, s.tick, message)

    def _oddities(self, inputs: dict[str, Any]) -> list[str]:
        seen = {"non-finite": not inputs["finite"], "zero": inputs["zero"], "ignored": inputs["ignored"]}
        return [kind for kind, is_odd in seen.items() if is_odd]

    def learn(self, s: Signals) -> None:
        inputs = s.deep.get("inputs") if s.deep is not None else None
        if inputs is None:
            return
        odd = self._oddities(inputs)
        self._rows = {
            kind: min(n + 1, self.params.rebaseline) if kind in odd else self._kept(n) for kind, n in self._rows.items()
        }
        if inputs["peak"] > self._peak.limit:
            self._peak.hold(inputs["peak"])
        elif inputs["peak"] > 0.0:
            self._peak.learn(inputs["peak"])

    def _kept(self, n: int) -> int:
        """A row ends with a batch that is in order; what is usual in this run stays so."""
        return n if n >= self.params.rebaseline else 0

    hold = learn

    def refill(self) -> None:
        self._peak.refill()

    def state_dict(self) -> dict[str, Any]:
        return {"peak": self._peak.state(), "rows": dict(self._rows)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._peak.load(state["peak"])
        self._rows = dict(state["rows"])
