"""What `loss_spike` and `grad_explosion` have in common."""

from __future__ import annotations

from typing import Any

from guard.detectors._base import Detector
from guard.detectors._stats import Upper


class Jump(Detector):
    """A signal that jumps above all that is usual in this run; `usual` knows what is."""

    usual: Upper

    def refill(self) -> None:
        self.usual.refill()

    def state_dict(self) -> dict[str, Any]:
        return {"usual": self.usual.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.usual.load(state["usual"])

    def times(self, x: float) -> str:
        """How far out `x` is, in words."""
        level, limit = self.usual.level, self.usual.limit
        if level > 0.0:
            return f"{x:.3g} is {x / level:.3g} times its usual {level:.3g} (limit {limit:.3g})"
        return f"{x:.3g} is {x - level:.3g} above its usual {level:.3g} (limit {limit:.3g})"
