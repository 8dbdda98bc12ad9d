"""Accumulate: average the gradients of several windows into one update.

Why: where gradients are too noisy for the rate, a larger batch steadies them without a change of the rate.
Does: from the next step on, the update of all but every `factor`-th step is left out and its gradient is held; then
    the optimizer gets the mean. Every step still counts and consumes its data, so schedules keep their length; the
    loop's own accumulation and `zero_grad` stay as they are. Steps left out for another reason hold nothing. Held
    gradients are part of a snapshot. Clipping, the loop's or the guard's, is window by window.

Args:
    factor: windows per update, >= 2; multiplies the number in force.
    max: never more than so many windows per update.
Example:
    {type: accumulate, factor: 2}
Source: Smith et al. 2018 (increase the batch size instead of decaying the learning rate).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from guard.actions._base import Action, Run, action
from guard.registry import Params as BaseParams
from guard.types import Detection, Result


@action("accumulate")
class Accumulate(Action):
    class Params(BaseParams):
        factor: Annotated[int, Field(ge=2)] = 2
        max: Annotated[int, Field(ge=2)] = 16

    def unavailable(self, run: Run, detection: Detection) -> str | None:  # noqa: ARG002
        return run.can_accumulate(self.params.factor, self.params.max)

    def apply(self, run: Run, detection: Detection) -> Result:  # noqa: ARG002
        before, after = run.accumulate(self.params.factor)
        return Result(
            "accumulate",
            f"made one update of {after} windows from the next step on",
            {"windows_per_update": [before, after]},
            standing=True,
        )

    def describe(self) -> str:
        return f"average the gradients of {self.params.factor} windows into one update"
