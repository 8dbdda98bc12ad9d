"""The step that went wrong, with all that it takes to try it again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from guard.checkpoints import Snapshot
from guard.incidents.diagnose import Origin
from guard.policy.schema import Policy
from guard.types import Detection

_BACK = 0.5  # of the distance from the usual value: if so much of it is there again, the fault is


@dataclass(slots=True)
class Subject:
    """What is examined.

    Args:
        policy, detection: why.
        tick, step: when.
        state: the state with which the failing iteration began; None: nothing may be restored.
        batches: its micro-batches; empty: they are not known.
        calls: arguments with which the model was called in it, ``(module, args, kwargs)``.
        window: index of its accumulation window.
        loss: as measured.
        poisoned: the state itself is not finite.
        found: what of it is not.
        standing: what was in force: multiplier, precision and so on.
        clip: usual gradient norm before it; NaN: not known.
        ops: functions behind the model, from the loss backwards, as far as its graph still tells.
    """

    policy: Policy
    detection: Detection
    tick: int
    step: int
    state: Snapshot | None
    batches: list[Any] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    window: int = 0
    loss: float = math.nan
    poisoned: bool = False
    found: Origin | None = None
    standing: dict[str, Any] = field(default_factory=dict)
    clip: float = math.nan
    ops: list[str] = field(default_factory=list)

    @property
    def given(self) -> list[Any]:
        """What the step was made from: its batches, else the arguments of the model."""
        return self.batches or [(args, kwargs) for _, args, kwargs in self.calls]

    @property
    def fault(self) -> str:
        return self.detection.detector

    def is_back(self, loss: float, grad_norm: float, *, overflow: bool = False) -> bool:
        """Such a step has the fault.

        Args:
            loss, grad_norm: of the step, unscaled.
            overflow: the loss scaler left it out, which is an ordinary event if the loss is finite.
        """
        if not math.isfinite(loss) or (not math.isfinite(grad_norm) and not overflow):
            return True
        d = self.detection
        value = {"loss": loss, "grad_norm": grad_norm}.get(d.signal)
        if value is None or not math.isfinite(d.value) or not math.isfinite(d.baseline):
            return False
        return (value - d.baseline) / (d.value - d.baseline or 1.0) > _BACK
