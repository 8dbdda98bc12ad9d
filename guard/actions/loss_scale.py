"""Loss scale: steer the GradScaler's search.

Why: a scale that has collapsed loses small gradients and, at 0, writes NaN into the weights (0 * inf); one that grows
    too eagerly overflows again and again.
Does: sets the scale once, keeps it above a floor, changes how soon it grows; from the next iteration on, also after a
    rollback.

Args:
    set: the scale to go on with, > 0.
    floor: never below this scale from now on, > 0.
    growth_interval: steps without an overflow after which the scale is doubled, >= 1.
Example:
    {type: loss_scale, set: 1024, floor: 1, growth_interval: 4000}
Source: torch.amp.GradScaler; Micikevicius et al. 2018 (mixed precision training); min_loss_scale of fairseq.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from guard.actions._base import Action, Run, action
from guard.registry import Params as BaseParams
from guard.types import Detection, Result


@action("loss_scale")
class LossScale(Action):
    class Params(BaseParams):
        set_: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(None, alias="set")
        floor: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
        growth_interval: Annotated[int, Field(ge=1)] | None = None

        @model_validator(mode="after")
        def _something(self) -> LossScale.Params:
            if self.set_ is None and self.floor is None and self.growth_interval is None:
                raise ValueError("say what to change: at least one of 'set', 'floor', 'growth_interval'")
            if self.set_ is not None and self.floor is not None and self.set_ < self.floor:
                raise ValueError(f"'set' is {self.set_:g}, below the floor of {self.floor:g}")
            return self

    def unavailable(self, run: Run, detection: Detection) -> str | None:  # noqa: ARG002
        return run.can_change_loss_scale()

    def apply(self, run: Run, detection: Detection) -> Result:  # noqa: ARG002
        p = self.params
        changes = run.change_loss_scale(p.set_, p.growth_interval, p.floor)
        return Result(
            "loss_scale",
            " and ".join(self._parts("set", "kept", "let")),
            changes,
            standing=p.floor is not None or p.growth_interval is not None,
        )

    def describe(self) -> str:
        return " and ".join(self._parts("set", "keep", "let"))

    def _parts(self, set_: str, keep: str, let: str) -> list[str]:
        p = self.params
        return [
            text
            for value, text in (
                (p.set_, f"{set_} the loss scale to {p.set_ or 0:g}"),
                (p.floor, f"{keep} the loss scale at or above {p.floor or 0:g}"),
                (p.growth_interval, f"{let} the loss scale grow every {p.growth_interval} steps"),
            )
            if value is not None
        ]
