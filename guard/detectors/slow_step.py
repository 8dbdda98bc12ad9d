"""Slow step: iterations take far longer than they used to.

Why it matters: a throttled accelerator, a full disk behind the loader or a neighbour on the host doubles the bill of a
    night; nothing is wrong with the numbers, so nothing else says so. A policy for it has severity info.
Fires when: the time of an iteration is above `factor` * its usual, and above all that is usual in this run as in
    `loss_spike`, for `patience` ticks in a row, after `warmup` ticks.

Args:
    factor: how many times the usual time, > 1. Default 3.
    patience: ticks in a row [steps], >= 1. Default 5: one evaluation or checkpoint is no slow run.
    window: memory of the usual time [steps], >= 16. Default 100.
    warmup: ticks before there is a usual time [steps], >= 4. Default 20.
    rebaseline: flagged ticks in a row after which the new time is the usual one [steps], >= 1. Default 100.
Signals: deep.seconds, float, wall time from one guarded step to the next, by the guard's own clock [s].
Cost: O(1) per tick, some 20 numbers of memory, one reading of the clock.
Blind to: a run that is slow from its start; one that hangs (no tick comes any more); slowness that creeps in.
Raises: PolicyError at load; never at run time.
Example:
    {type: slow_step, factor: 3.0, patience: 5 steps}
Source: straggler detection of NVIDIA's resiliency extension compares ranks; here one run is compared with its own past.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.detectors._stats import Upper
from guard.types import Detection, Signals
from guard.units import Steps


@detector("slow_step")
class SlowStep(Detector):
    needs = frozenset({"seconds"})

    class Params(Detector.Params):
        factor: Annotated[float, Field(gt=1)] = 3.0
        patience: Annotated[Steps, Field(ge=1)] = 5
        window: Annotated[Steps, Field(ge=16)] = 100
        warmup: Annotated[Steps, Field(ge=4)] = 20
        rebaseline: Annotated[Steps, Field(ge=1)] = 100

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._usual = Upper(
            window=params.window,
            threshold=8.0,
            floor=params.factor - 1.0,
            start_floor=0.0,
            margin=3.5,
            warmup=params.warmup,
            rebaseline=params.rebaseline,
            alarms=0,
        )
        self._slow = self._since = 0  # ticks in a row, and the first of them

    def score(self, s: Signals) -> Detection | None:
        seconds = s.deep.get("seconds") if s.deep is not None else None
        if seconds is None or not seconds > self._usual.limit or self._slow + 1 < self.params.patience:
            return None
        level, limit = self._usual.level, self._usual.limit
        message = (
            f"an iteration takes {seconds:.3g} s, usual are {level:.3g} s (limit {limit:.3g} s), "
            f"for {self._slow + 1} ticks"
        )
        return Detection("slow_step", "seconds", seconds, limit, level, self._since if self._slow else s.tick, message)

    def learn(self, s: Signals) -> None:
        seconds = s.deep.get("seconds") if s.deep is not None else None
        if seconds is None:
            return
        if not seconds > self._usual.limit:
            self._slow = 0
            self._usual.learn(seconds)
            return
        if not self._slow:
            self._since = s.tick
        self._slow += 1
        if self._slow >= self.params.patience:
            self._usual.hold(seconds)

    hold = learn

    def refill(self) -> None:
        self._slow = 0
        self._usual.refill()

    def state_dict(self) -> dict[str, Any]:
        return {"usual": self._usual.state(), "slow": self._slow, "since": self._since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._usual.load(state["usual"])
        self._slow, self._since = state["slow"], state["since"]
