"""What `loss_spike` and `grad_explosion` have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector
from guard.detectors._stats import Upper
from guard.units import Steps


class Jump(Detector):
    """A signal that jumps above all that is usual in this run; `usual` knows what is."""

    class Params(Detector.Params):
        window: Annotated[Steps, Field(ge=16)] = 50
        threshold: Annotated[float, Field(gt=0)] = 8.0
        margin: Annotated[float, Field(gt=0)] = 3.5
        warmup: Annotated[Steps, Field(ge=4)] = 20
        rebaseline: Annotated[Steps, Field(ge=1)] = 20

    def __init__(self, params: Any, *, floor: float, start_floor: float, alarms: int) -> None:
        super().__init__(params)
        self.usual = Upper(
            window=params.window,
            threshold=params.threshold,
            floor=floor,
            start_floor=start_floor,
            margin=params.margin,
            warmup=params.warmup,
            rebaseline=params.rebaseline,
            alarms=alarms,
        )

    def refill(self) -> None:
        self.usual.refill()

    def state_dict(self) -> dict[str, Any]:
        return {"usual": self.usual.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.usual.load(state["usual"])

    def told(self, x: float) -> str:
        """How far out `x` is, in words."""
        level, limit = self.usual.level, self.usual.limit
        if level > 0.0:
            return f"{x:.3g} is {x / level:.3g} times its usual {level:.3g} (limit {limit:.3g})"
        return f"{x:.3g} is {x - level:.3g} above its usual {level:.3g} (limit {limit:.3g})"
