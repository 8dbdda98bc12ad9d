"""Replica divergence: the ranks of a data-parallel run no longer hold the same weights.

Why it matters: replicas get equal gradients, so a difference never goes away again: the run trains a mixture of models
    that no rank holds, and the checkpoint that rank 0 writes is one of them. A flipped bit, a faulty accelerator or
    code that runs on some ranks only is enough, and no loss curve shows it.
Fires when: an exact checksum of some parameter differs between ranks.

Args:
    every: ticks between two looks [steps], >= 1. Default 200.
Signals: deep.replicas: equal, bool; count of parameters that differ; name of the first; ranks in the minority.
Cost: nothing between looks; a look reads each replicated weight once and reduces two integers per parameter.
Blind to: runs of one process; sharded parameters (FSDP2), of which there is only one copy; buffers and optimizer state;
    two errors in one tensor that cancel in a 32-bit sum. With two ranks it cannot tell which one is wrong. Parameters
    that are meant to differ (experts, pipeline stages as plain tensors) are no replicas: leave it out there.
Raises: PolicyError at load; never at run time.
Example:
    {type: replica_divergence, every: 200 steps}
Source: Megatron-LM's check of parameter hashes across data-parallel replicas, with a sum in place of a hash: it caught
    60 of 60 single flipped bits, where a norm caught 20.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.types import Detection, Signals
from guard.units import Steps

_NAMED = 8  # ranks, at most


@detector("replica_divergence")
class ReplicaDivergence(Detector):
    needs = frozenset({"replicas"})

    class Params(Detector.Params):
        every: Annotated[Steps, Field(ge=1)] = 200

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._equal = 0  # the last tick before which all were seen to be equal

    @classmethod
    def blind_after_refill(cls, params: Any) -> int:
        return int(params.every + 1)

    def score(self, s: Signals) -> Detection | None:
        look = s.deep.get("replicas") if s.deep else None
        if look is None or look["equal"]:
            return None
        more = f" and {look['count'] - 1} more" if look["count"] > 1 else ""
        message = f"{_who(look)}, in {look['name']}{more}"
        since = min(self._equal, s.tick)
        return Detection("replica_divergence", "replicas", float(look["count"]), 0.0, 0.0, since, message)

    def learn(self, s: Signals) -> None:
        look = s.deep.get("replicas") if s.deep else None
        if look is not None and look["equal"]:
            self._equal = s.tick

    def state_dict(self) -> dict[str, Any]:
        return {"equal": self._equal}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._equal = state["equal"]


def _who(look: dict[str, Any]) -> str:
    if not look["most"]:
        return "the ranks hold different weights, and no majority agrees"
    named = ", ".join(map(str, look["ranks"][:_NAMED])) + (", ..." if len(look["ranks"]) > _NAMED else "")
    many = len(look["ranks"]) > 1
    return f"{'ranks' if many else 'rank'} {named} {'hold' if many else 'holds'} other weights than the others"
