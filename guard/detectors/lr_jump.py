"""Learning rate jump: the rate rises manyfold from one tick to the next, long after warm-up.

Why it matters: a restarted job that begins its schedule anew throws a settled model out; alone it may be meant (warm
    restarts), so it is made to be combined with a sign of harm, such as `loss_spike`.
Fires when: within the last `hold` ticks lr_effective rose above `factor` times its highest of the `window` ticks
    before, having been lower than its highest ever for that long.

Args:
    factor: > 1. Default 4.
    window: [steps], >= 2. Default 20.
    hold: how long it counts as new [steps], >= 1. Default 10.
Signals: lr_effective, float.
Cost: O(1) per tick, a few numbers, no extra host sync.
Blind to: a rate that creeps up; warm-up, in which there was no higher rate before.
Raises: PolicyError at load; never at run time.
Example:
    {type: lr_jump, factor: 4.0}
Source: reports of schedules that start anew after a resume (Lightning-AI/pytorch-lightning 5486,
    huggingface/transformers 33336).
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.types import Detection, Signals
from guard.units import Steps


@detector("lr_jump")
class LRJump(Detector):
    class Params(Detector.Params):
        factor: Annotated[float, Field(gt=1)] = 4.0
        window: Annotated[Steps, Field(ge=2)] = 20
        hold: Annotated[Steps, Field(ge=1)] = 10

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._ever = 0.0  # highest rate so far
        self._recent = 0.0  # highest of late; renewed every `window` ticks
        self._usual = 0.0  # highest of the span before
        self._left = params.window
        self._limit = math.inf  # factor * usual; a rate below it is no jump
        self._jump: tuple[int, float, float] | None = None  # tick, rate before, rate after

    def score(self, s: Signals) -> Detection | None:
        if self._jump is None and not s.lr_effective > self._limit:
            return None
        jump = self._jump or self._seen(s)
        if jump is None or s.tick - jump[0] >= self.params.hold or s.lr_effective < jump[2]:
            return None
        at, before, after = jump
        message = f"learning rate rose from {before:.3g} to {after:.3g} at tick {at}"
        return Detection("lr_jump", "lr", after, self.params.factor * before, before, at, message)

    def _seen(self, s: Signals) -> tuple[int, float, float] | None:
        usual = max(self._usual, self._recent)
        new = s.lr_effective > self.params.factor * usual and usual < self._ever
        return (s.tick, usual, s.lr_effective) if new else None

    def learn(self, s: Signals) -> None:
        lr = s.lr_effective
        if self._jump is not None and (s.tick - self._jump[0] >= self.params.hold or lr < self._jump[2]):
            self._jump = None
        if lr > self._limit and self._jump is None:
            self._jump = self._seen(s)
        if lr > self._recent:
            self._recent = lr
            self._ever = max(self._ever, lr)
        self._left -= 1
        if not self._left:
            self._usual, self._recent, self._left = self._recent, 0.0, self.params.window
            self._set_limit()

    def _set_limit(self) -> None:
        limit = self.params.factor * self._usual
        self._limit = limit if limit > 0.0 else math.inf  # no rate is usual yet

    hold = learn

    def refill(self) -> None:
        self._jump = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "ever": self._ever,
            "recent": self._recent,
            "usual": self._usual,
            "left": self._left,
            "jump": None if self._jump is None else list(self._jump),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ever, self._recent, self._usual = state["ever"], state["recent"], state["usual"]
        self._left, jump = state["left"], state["jump"]
        self._set_limit()
        self._jump = None if jump is None else (jump[0], jump[1], jump[2])
