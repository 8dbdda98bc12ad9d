"""Loss-scale collapse: the GradScaler halves its scale again and again, and every step is left out.

Why it matters: nothing is learnt any more, and no scale can help when the forward pass itself overflows. Once the
    scale has decayed to 0, 0 * Inf = NaN passes for "no overflow" and reaches the weights.
Fires when: an overflow is the `patience`-th tick in a row without a completed step, after at least one was completed;
    or an overflow comes at a scale below `floor`; or the scale is 0.

Args:
    patience: ticks in a row without a completed step [steps], >= 2. Default 8: a factor of 256, when one or two is
        usual.
    floor: smallest sound loss scale. Default 1.
Signals: overflow, bool; loss_scale, float, 1.0 without a scaler.
Cost: O(1) per tick, two numbers of memory, no extra host sync.
Blind to: a search from the initial scale however long, while it stays above `floor`; overflows with good steps in
    between.
Raises: PolicyError at load; never at run time.
Example:
    {type: loss_scale_collapse, patience: 8 steps, floor: 1.0}
Source: fairseq's minimum loss scale; torch.amp.GradScaler has no such limit. `patience` leaves its normal search
    alone: down from 2^20 or 2^24 at the start, one skip after each growth.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.types import Detection, Signals
from guard.units import Steps


@detector("loss_scale_collapse")
class LossScaleCollapse(Detector):
    class Params(Detector.Params):
        patience: Annotated[Steps, Field(ge=2)] = 8
        floor: Annotated[float, Field(gt=0)] = 1.0

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._completed = -1  # tick of the last completed step
        self._scale = 1.0  # its loss scale

    def score(self, s: Signals) -> Detection | None:
        if not s.overflow and s.loss_scale != 0.0:
            return None
        since = self._completed + 1
        left_out = s.tick - self._completed
        collapsed = self._completed >= 0 and left_out >= self.params.patience and s.loss_scale < self._scale
        if not collapsed and s.loss_scale >= self.params.floor:
            return None
        scale, floor = s.loss_scale, self.params.floor
        message = f"{left_out} steps in a row left out, loss scale down from {self._scale:.3g} to {scale:.3g}"
        return Detection("loss_scale_collapse", "loss_scale", scale, floor, self._scale, since, message)

    def learn(self, s: Signals) -> None:
        if not s.overflow:  # an overflow that is learnt was only accepted, not completed
            self._completed, self._scale = s.tick, s.loss_scale

    def state_dict(self) -> dict[str, Any]:
        return {"completed": self._completed, "scale": self._scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._completed, self._scale = state["completed"], state["scale"]
