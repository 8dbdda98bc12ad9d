"""Three faults as they happen in real runs. Each does its harm by arithmetic alone: nothing here writes a NaN."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from guard.demo.data import Batch

_WEIGHT = 1000.0  # a shard whose weights are counts, where all others sum to the number of sequences
_RATE = 80.0  # a learning rate meant in another unit
_WARMUP, _DECAY = 30, 0.3


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes wrong in a run, and when.

    Args:
        steps: length of the run.
        faulty: False: nothing goes wrong.
    """

    steps: int
    faulty: bool

    @property
    def faults(self) -> list[tuple[str, str]]:
        """Title and cause of each fault, in the order in which they usually strike."""
        shard = f"one shard's loss weights are {_WEIGHT:.0f} times too large, whenever it is read: at step "
        rate = f"at step {self.rate_rises_at} the schedule warms up again, to {_RATE:.0f} times the rate, for good"
        return [
            ("a corrupt batch", f"{shard}{self.bad_batch} and {self.bad_batch + self.pass_length}"),
            ("an FP16 overflow", "attention takes exp(score), and scores grow; exp(11.1) is more than FP16 holds"),
            ("a wrong learning rate", rate),
        ]

    @property
    def dtype(self) -> torch.dtype:
        """FP16 is the second fault: the attention's written-out softmax overflows in it once its scores have grown."""
        return torch.float16 if self.faulty else torch.bfloat16

    @property
    def pass_length(self) -> int:
        """Batches in one pass over the data; the run makes more than one."""
        return max(1, self.steps * 6 // 10)

    @property
    def bad_batch(self) -> int:
        """Its place in every pass."""
        return self.steps * 13 // 100

    @property
    def rate_rises_at(self) -> int:
        """Step from which the schedule is wrong."""
        return self.steps * 11 // 20

    def corrupt(self, batch: Batch, index: int) -> Batch:
        """The first fault: one shard's weights were never normalised. It comes back whenever it is read."""
        if self.faulty and index % self.pass_length == self.bad_batch:
            return replace(batch, weight=batch.weight * _WEIGHT)
        return batch

    def rate(self, step: int) -> float:
        """Factor on the learning rate: warm-up, level, straight down to 0. The third fault: it warms up twice."""
        factor = min(1.0, (step + 1) / _WARMUP, (self.steps - step) / (_DECAY * self.steps))
        if not self.faulty or step < self.rate_rises_at:
            return factor
        return factor * (1.0 + (_RATE - 1.0) * min(1.0, (step - self.rate_rises_at) / (0.12 * self.steps)))
