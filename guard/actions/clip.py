"""Clip: scale the gradients of this step down to a norm.

Why: one exploding gradient need not cost the step, only its length.
Does: multiplies gradients in place by ``max_norm / norm`` where that is below 1.

Args:
    max_norm: largest global L2 norm, > 0, or ``auto``: the typical norm from before the fault.
    params: shell pattern over parameter names; those are clipped by their own norm. Default: all together.
    lasts: go on clipping for so many steps; default: this step only.
Example:
    {type: clip, max_norm: auto}
Source: Pascanu et al. 2013, as torch.nn.utils.clip_grad_norm_; `auto` uses the guard's robust baseline in place of a
    hand-picked constant.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from guard.actions._base import Action, Run, action
from guard.registry import Params as BaseParams
from guard.types import Detection, Result
from guard.units import Steps


@action("clip")
class Clip(Action):
    repeatable = True

    class Params(BaseParams):
        max_norm: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
        params: str | None = None
        lasts: Annotated[Steps, Field(ge=1)] | None = None

    def unavailable(self, run: Run, detection: Detection) -> str | None:
        if math.isfinite(self._max_norm(run, detection)):
            return None
        return "no typical gradient norm is known yet"

    def apply(self, run: Run, detection: Detection) -> Result:
        limit = self._max_norm(run, detection)
        factor = run.clip(limit, self.params.params, self.params.lasts)
        of = f" of {self.params.params}" if self.params.params else ""
        if self.params.lasts is None:
            return Result(
                "clip", f"clipped the gradient{of} to norm {limit:.3g}", {"factor": factor, "max_norm": limit}
            )
        return Result(
            "clip",
            f"clips the gradient{of} to norm {limit:.3g} for {self.params.lasts} steps",
            {"max_norm": limit, "until": run.tick + self.params.lasts},
            standing=True,
        )

    def describe(self) -> str:
        of = f" of parameters {self.params.params}" if self.params.params else ""
        limit = "its typical norm" if self.params.max_norm == "auto" else f"norm {self.params.max_norm:g}"
        return f"clip the gradient{of} to {limit}" + (f" for {self.params.lasts} steps" if self.params.lasts else "")

    def _max_norm(self, run: Run, detection: Detection) -> float:
        if self.params.max_norm != "auto":
            return float(self.params.max_norm)
        typical = run.typical_grad_norm(detection.since)
        return detection.baseline if not math.isfinite(typical) and detection.signal == "grad_norm" else typical
