"""Pause: let the run wait for a person.

Why: where every further step costs money and only a person can judge, waiting is cheaper than going on, and stopping
    gives the node away.
Does: the training thread waits inside the step; the heartbeat says ``paused``. It goes on at `guard resume`, or by
    itself after `timeout`, with this step's update. Requests are obeyed meanwhile: `guard stop` ends the run,
    `guard observe` the pause. Once per incident.

Args:
    timeout: how long at most [s], > 0.
Example:
    {type: pause, timeout: 2 h}
Source: the manual gate of deployment pipelines.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from guard.actions._base import Action, Run, action
from guard.registry import Params as BaseParams
from guard.types import Detection, Result
from guard.units import Seconds


@action("pause")
class Pause(Action):
    class Params(BaseParams):
        timeout: Annotated[Seconds, Field(gt=0)] = 3600.0

    def apply(self, run: Run, detection: Detection) -> Result:  # noqa: ARG002
        if not run.once("pause"):
            return Result("pause", "did not pause again")
        run.pause(self.params.timeout)
        return Result(
            "pause",
            f"paused the run, until `guard resume` or for {_span(self.params.timeout)}",
            {"paused_for": self.params.timeout},
        )

    def describe(self) -> str:
        return f"pause the run until a person resumes it, for {_span(self.params.timeout)} at most"


def _span(seconds: float) -> str:
    size, unit = next((s, u) for s, u in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= s or s == 1)
    return f"{seconds / size:g} {unit}"
