"""Precision: change the dtype of autocast for the rest of the run, or for a while.

Why: what overflows FP16 (65504) is an ordinary number in BF16.
Does: overrides the autocast dtype from the next forward pass on; the GradScaler is frozen meanwhile.

Args:
    dtype: ``bf16`` or ``fp32``.
    lasts: so many steps; default: until a person undoes it.
Example:
    {type: precision, dtype: bf16, lasts: 500 steps}
Source: FP16 has 5 exponent bits, BF16 has the 8 of FP32 (Kalamkar et al. 2019).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from guard.actions._base import Action, Run, action
from guard.registry import Params as BaseParams
from guard.types import Detection, Result
from guard.units import Steps


@action("precision")
class Precision(Action):
    class Params(BaseParams):
        dtype: Literal["bf16", "fp32"]
        lasts: Annotated[Steps, Field(ge=1)] | None = None

    def unavailable(self, run: Run, detection: Detection) -> str | None:  # noqa: ARG002
        return run.can_set_precision(self.params.dtype)

    def apply(self, run: Run, detection: Detection) -> Result:  # noqa: ARG002
        run.set_precision(self.params.dtype, self.params.lasts)
        span = f" for {self.params.lasts} steps" if self.params.lasts else ""
        return Result(
            "precision",
            f"switched to {self.params.dtype.upper()}{span}",
            {"precision": self.params.dtype},
            standing=True,
        )

    def describe(self) -> str:
        return f"switch to {self.params.dtype.upper()}" + (
            f" for {self.params.lasts} steps" if self.params.lasts else ""
        )
