"""Scale LR: multiply every learning rate by a standing factor.

Why: oscillation and divergence mean that the steps are too long.
Does: keeps one multiplier and applies it around the real step only, so schedulers and loops that set the rate keep
    working and cannot undo it. Effective rate: ``max(lr * m, min(lr, min_lr))``.

Args:
    factor: > 0; multiplies the multiplier in force. ``auto`` reads it off the fault: where the rate jumped, from there
        on back to what it was, and before that as the schedule says; where the loss grows, a tenth of the largest
        stable rate. For a quadratic the loss is multiplied by (lr * curvature - 1)^2 a tick, and 2 / curvature is the
        largest stable rate. At least 0.01.
    min_lr: never below this rate [LR units], unless the schedule itself is.
    recover: return to the schedule's rate over that many steps; default: the cut stays.
Example:
    {type: scale_lr, factor: 0.5, min_lr: 1e-7}
Source: the usual answer to divergence in public issue trackers; a multiplier survives schedulers, a write does not.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from guard.actions._base import Action, Run, action
from guard.registry import Params as BaseParams
from guard.types import Detection, Result
from guard.units import Steps

_LEAST = 0.01


@action("scale_lr")
class ScaleLR(Action):
    class Params(BaseParams):
        factor: Annotated[float, Field(gt=0)] | Literal["auto"]
        min_lr: Annotated[float, Field(ge=0)] = 0.0
        recover: Annotated[Steps, Field(ge=1)] | None = None

    def unavailable(self, run: Run, detection: Detection) -> str | None:  # noqa: ARG002
        return run.can_scale_lr()

    def apply(self, run: Run, detection: Detection) -> Result:
        before = run.lr_multiplier
        factor = _read_off(detection, run.tick) if self.params.factor == "auto" else self.params.factor
        after = before * factor
        jumped = detection.signal == "lr" and self.params.factor == "auto"
        run.scale_lr(after, self.params.min_lr, self.params.recover, detection.since if jumped else None)
        return Result(
            "scale_lr",
            f"scaled the learning rate by {factor:.3g}; it is now {after:.3g} of the schedule's",
            {"lr_multiplier": [before, after]},
            standing=True,
        )

    def describe(self) -> str:
        floor = f", never below {self.params.min_lr:g}" if self.params.min_lr else ""
        back = f", returning over {self.params.recover} steps" if self.params.recover else ""
        if self.params.factor == "auto":
            return f"lower the learning rate as far as the fault asks for{floor}{back}"
        verb = (
            "halve the learning rate"
            if self.params.factor == 0.5
            else f"scale the learning rate by {self.params.factor:g}"
        )
        return f"{verb}{floor}{back}"


def _read_off(detection: Detection, tick: int) -> float:
    """The factor that a detection asks for."""
    value, usual = detection.value, detection.baseline
    if detection.signal == "lr":
        return min(1.0, max(_LEAST, usual / value))
    growth: float = (value / usual) ** (1.0 / max(1, tick - detection.since + 1)) if value > usual > 0.0 else 1.0
    return max(_LEAST, 0.1 * 2.0 / (1.0 + math.sqrt(growth)))
