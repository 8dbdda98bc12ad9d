"""Checkpoint: take a snapshot now.

Why: what is good now (a new best, the last steps before a change) may be wanted later.
Does: a snapshot at the next iteration boundary, whatever `checkpoints.every` says; it counts as good after the same
    probation as any other.
Example:
    {type: checkpoint}
Source: checkpoint on demand, as by a signal in torchrun and Slurm practice.
"""

from __future__ import annotations

from guard.actions._base import Action, Run, action
from guard.types import Detection, Result


@action("checkpoint")
class Checkpoint(Action):
    remedy = False

    def apply(self, run: Run, detection: Detection) -> Result:  # noqa: ARG002
        run.checkpoint()
        return Result("checkpoint", "asked for a checkpoint before the next step")

    def describe(self) -> str:
        return "take a checkpoint before the next step"
