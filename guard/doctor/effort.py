"""How much an examination may do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effort:
    """Bounds of one examination. The slower a step, the fewer of them, and the smaller the batches.

    Args:
        batches: read from the loader.
        overfit_steps, overfit_seconds: to memorise one batch.
        range_steps, range_seconds: of the range test.
        rate_steps, rate_seconds: of each rate of the sweep; of the whole sweep.
        curve_steps, curve_seconds: of the short run.
        sample: samples that single looks use (precision, leakage).
        look: samples of a batch on which a model is judged between steps; of sequences an eighth.
        clock: monotonic [s].
    """

    batches: int = 48
    overfit_steps: int = 600
    overfit_seconds: float = 20.0
    range_steps: int = 100
    range_seconds: float = 15.0
    rate_steps: int = 60
    rate_seconds: float = 30.0
    curve_steps: int = 240
    curve_seconds: float = 30.0
    sample: int = 16
    look: int = 128
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def quick(cls, clock: Callable[[], float] = time.monotonic) -> Effort:
        """For a first look: under 20 s with a model of a million parameters on two cores."""
        return cls(
            batches=24,
            overfit_steps=300,
            overfit_seconds=3.0,
            range_steps=60,
            range_seconds=1.0,
            rate_steps=30,
            rate_seconds=2.0,
            curve_steps=100,
            curve_seconds=1.6,
            sample=8,
            look=64,
            clock=clock,
        )

    def until(self, seconds: float) -> Callable[[], bool]:
        """A question that is answered with True once so much time has passed."""
        end = self.clock() + seconds
        return lambda: self.clock() >= end
