"""Stop: end the run, and leave the best state that is known.

Why: some faults (a wrong program, a run out of remedies) only a person can mend; every further hour is wasted.
Does: restores the state asked for, makes journal and state safe, raises `guard.TrainingStopped`.

Args:
    restore: ``best`` (best logged validation value, else last good), ``last_good`` or ``none``.
Example:
    {type: stop, restore: last_good}
Source: exit codes for "do not restart me", as in NVIDIA's resiliency extension.
"""

from __future__ import annotations

from typing import Literal

from guard.actions._base import Action, Run, action
from guard.registry import Params as BaseParams
from guard.types import Detection, Result


@action("stop")
class Stop(Action):
    class Params(BaseParams):
        restore: Literal["best", "last_good", "none"] = "last_good"

    def apply(self, run: Run, detection: Detection) -> Result:
        changes = run.stop(self.params.restore, detection.since)
        left = f"; the state of step {changes['to_step']} is restored" if "to_step" in changes else ""
        return Result("stop", f"stopped the run{left}", changes)

    def describe(self) -> str:
        kept = {"best": " with the best state restored", "last_good": " with the last good state restored", "none": ""}
        return f"stop the run{kept[self.params.restore]}"
