"""Warm up LR: start with a small share of the learning rate and return to it step by step.

Why: after a rollback or a reset of the moments, the first full-length steps are the likeliest to break the run again.
Does: a factor on top of the standing multiplier rises linearly from `from` to 1. The schedule goes on beneath it, and
    so does a `scale_lr`, its `min_lr` and its `recover`. Time is counted in ticks: a rollback does not start it anew.

Args:
    steps: length of the ramp [ticks], >= 1.
    from: share of the learning rate in force at which it begins, 0 to 1.
Example:
    {type: warmup_lr, steps: 200 steps, from: 0.1}
Source: Goyal et al. 2017 (gradual warm-up), here after a fault in place of the start.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from guard.actions._base import Action, Run, action
from guard.registry import Params as BaseParams
from guard.types import Detection, Result
from guard.units import Steps


@action("warmup_lr")
class WarmupLR(Action):
    class Params(BaseParams):
        steps: Annotated[Steps, Field(ge=1)]
        from_: Annotated[float, Field(ge=0, le=1)] = Field(0.0, alias="from")

    def unavailable(self, run: Run, detection: Detection) -> str | None:  # noqa: ARG002
        return run.can_scale_lr()

    def apply(self, run: Run, detection: Detection) -> Result:  # noqa: ARG002
        until = run.warmup_lr(self.params.steps, self.params.from_)
        ramp = f"from {self._share} over {self.params.steps} steps"
        return Result(
            "warmup_lr",
            f"began to warm the learning rate up {ramp}",
            {"warmup": {"from": self.params.from_, "until": until}},
            standing=True,
        )

    def describe(self) -> str:
        return f"warm the learning rate up from {self._share} over {self.params.steps} steps"

    @property
    def _share(self) -> str:
        return f"{100 * self.params.from_:.3g} % of it"
