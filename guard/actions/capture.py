"""Capture: keep the evidence of a fault.

Why: which batch, which layer, which random state is gone a step later, and with it the chance to find the cause.
Does: writes ``evidence/<incident>/`` in the run directory: ``layers.csv`` (minimum, maximum, mean of the finite
    elements and the non-finite share, of every weight, buffer and gradient) and ``batch.pt`` (the micro-batches of this
    iteration and the random states with which it began; `torch.load` reads it). Taken before any other action of the
    attempt; files are readable by their owner only; once per incident. A batch may be as private as its source.

Args:
    max_bytes: largest ``batch.pt`` [bytes], >= 0; a larger one is left out, and that is said. 0: statistics only.
Example:
    {type: capture, max_bytes: 16777216}
Source: a failing batch, replayed with its random state, shows where a NaN is born; anomaly mode without its cost.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from guard.actions._base import Action, Run, action
from guard.registry import Params as BaseParams
from guard.types import Detection, Result


@action("capture")
class Capture(Action):
    remedy = False

    class Params(BaseParams):
        max_bytes: Annotated[int, Field(ge=0)] = 64 << 20

    def apply(self, run: Run, detection: Detection) -> Result:  # noqa: ARG002
        if not run.once("capture"):
            return Result("capture", "had captured the evidence before")
        changes = run.capture_evidence(self.params.max_bytes)
        if "no_batch" in changes:
            return Result("capture", f"captured layer statistics only: {changes['no_batch']}", changes)
        return Result("capture", "captured the batch and layer statistics", changes)

    def describe(self) -> str:
        return f"keep {'the batch and ' if self.params.max_bytes else ''}layer statistics as evidence"
