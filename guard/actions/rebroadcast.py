"""Rebroadcast: give all ranks the state of one of them.

Why: replicas that have drifted apart never meet again by themselves, and a restart costs more than a copy.
Does: overwrites parameters, buffers and optimizer state of all ranks with those of one, in place; rates, schedulers and
    random states stay each rank's own. Checkpoints in memory that were taken since the fault began are dropped, for the
    fault may be in them, and a new one is taken. Only where several processes hold the same parameters; sharded ones
    (FSDP2) have no second copy.

Args:
    source: ``majority``, the lowest rank among those whose parameters most ranks hold (rank 0 where two halves
        disagree), or ``first``, rank 0.
Example:
    {type: rebroadcast, source: majority}
Source: the broadcast at the start of torch's DistributedDataParallel, done again when it is needed.
"""

from __future__ import annotations

from typing import Literal

from guard.actions._base import Action, Run, action
from guard.registry import Params as BaseParams
from guard.types import Detection, Result


@action("rebroadcast")
class Rebroadcast(Action):
    class Params(BaseParams):
        source: Literal["majority", "first"] = "majority"

    def unavailable(self, run: Run, detection: Detection) -> str | None:  # noqa: ARG002
        return run.can_rebroadcast()

    def apply(self, run: Run, detection: Detection) -> Result:
        changes = run.rebroadcast(self.params.source, detection.since)
        return Result("rebroadcast", f"copied the state of rank {changes['from_rank']} to all ranks", changes)

    def describe(self) -> str:
        return f"copy the state of {'most ranks' if self.params.source == 'majority' else 'rank 0'} to all ranks"
