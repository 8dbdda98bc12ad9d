"""Skip step: leave this step's update out.

Why: a bad batch should cost that batch and nothing else.
Does: no update; gradients are cleared, buffers that the forward pass changed (BatchNorm statistics) are put back. The
    step counts as done and has consumed its batches.
Example:
    {type: skip_step}
Source: the non-finite skip of torch.amp.GradScaler, extended to buffers and to finite bad batches.
"""

from __future__ import annotations

from guard.actions._base import Action, Run, action
from guard.types import Detection, Result


@action("skip_step")
class SkipStep(Action):
    leaves_data_out = True
    repeatable = True

    def apply(self, run: Run, detection: Detection) -> Result:  # noqa: ARG002
        run.skip_step()
        return Result("skip_step", "left this step out")

    def describe(self) -> str:
        return "leave the step out"
