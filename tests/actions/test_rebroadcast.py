"""rebroadcast: it asks the run for what the policy says, and is not available to one process. What it does over several
ranks: tests/ranks/test_replicas.py."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from guard.actions import ACTIONS
from guard.types import Detection

from ._small import call
from .conftest import Start

SEEN = Detection("replica_divergence", "replicas", 1.0, 0.0, 0.0, 12, "rank 1 holds other weights than the others")


class Asked:
    """Three ranks, the first of which is wrong."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def rebroadcast(self, source: str, since: int) -> dict[str, Any]:
        self.calls.append((source, since))
        holder = 1 if source == "majority" else 0
        return {"from_rank": holder, "tensors": 12, "ranks_that_differed": [0] if holder else [1, 2]}


def make(**params: Any) -> Any:
    cls = ACTIONS.get("rebroadcast")
    assert cls is not None
    return cls(cls.Params(**params))


@pytest.mark.parametrize(("params", "source", "holder"), [({}, "majority", 1), ({"source": "first"}, "first", 0)])
def test_the_run_is_asked_for_it(params: dict[str, Any], source: str, holder: int) -> None:
    run = Asked()
    result = make(**params).apply(run, SEEN)
    assert run.calls == [(source, 12)], "checkpoints since tick 12 may hold the fault"
    assert result.summary == f"copied the state of rank {holder} to all ranks"
    assert result.changes["from_rank"] == holder
    assert not result.standing


def test_in_plain_words() -> None:
    assert make().describe() == "copy the state of most ranks to all ranks"
    assert make(source="first").describe() == "copy the state of rank 0 to all ranks"
    with pytest.raises(ValidationError, match="source"):
        make(source="best")


def test_one_process_has_nobody_to_copy_from(start: Start) -> None:
    run = start(call({"type": "rebroadcast"}, {"type": "checkpoint"})).go(5, calls=[2])
    assert run.left_out == [("rebroadcast", "the run has one process only")]
    assert [r.type for r in run.results] == ["checkpoint"]
