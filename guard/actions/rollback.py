"""Rollback: go back to a checkpoint in memory, in place.

Why: once weights or optimizer moments are damaged, only an earlier state is good.
Does: restores parameters, buffers, optimizer, scheduler, scaler, all random number generators, `extra`, the data
    position and the detectors' baselines. Learning rate multiplier, precision and skipped batches stay as they are.

Args:
    to: ``last_good``, the newest good checkpoint older than the fault; ``previous``, one older than this incident last
        used; ``start``; ``best``, the best logged validation value.
    data: ``replay`` the same batches; ``skip_offending`` leaves out the window of the failing step; ``skip_window`` all
        windows from the checkpoint to it; ``advance`` goes on with fresh data.
Example:
    {type: rollback, to: last_good, data: replay}
Source: large-model practice (go back, skip the batches of the spike), made exact.
"""

from __future__ import annotations

from guard.actions._base import Action, DataMode, Run, SnapshotName, action
from guard.registry import Params as BaseParams
from guard.types import Detection, Result

_TO = {
    "last_good": "the last good checkpoint",
    "previous": "the checkpoint before that",
    "start": "the start",
    "best": "the best checkpoint",
}
_DATA = {
    "replay": "replay the same batches",
    "skip_offending": "leave out the failing step's batches",
    "skip_window": "leave out all batches since",
    "advance": "go on with fresh data",
}


@action("rollback")
class Rollback(Action):
    class Params(BaseParams):
        to: SnapshotName = "last_good"
        data: DataMode = "replay"

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.leaves_data_out = params.data != "replay"  # type: ignore[misc]

    def unavailable(self, run: Run, detection: Detection) -> str | None:
        return run.can_rollback(self.params.to, detection.since)

    def apply(self, run: Run, detection: Detection) -> Result:
        data: DataMode = self.params.data if run.can_replay() else "advance"
        changes = run.rollback(self.params.to, data, detection.since)
        back = f"went back from step {changes['from_step']} to step {changes['to_step']}"
        return Result("rollback", f"{back} to {_DATA[data]}", {**changes, "data": data})

    def describe(self) -> str:
        return f"roll back to {_TO[self.params.to]} and {_DATA[self.params.data]}"
