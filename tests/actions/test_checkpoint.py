"""checkpoint: a snapshot at the next boundary, out of turn."""

from __future__ import annotations

from ._small import call
from .conftest import Start


def test_a_snapshot_is_taken_before_the_next_step(start: Start) -> None:
    run = start(call({"type": "checkpoint"}))
    taken: list[int] = []
    capture = run.guard.live.capture

    def watched() -> object:
        taken.append(run.guard.step)
        return capture()

    run.guard.live.capture = watched  # type: ignore[method-assign]
    run.go(12, calls=[5])
    assert taken == [0, 4, 6, 10]
    (result,) = run.results
    assert result.summary == "asked for a checkpoint before the next step"


def test_it_is_where_a_rollback_goes(start: Start) -> None:
    back = {
        "name": "back",
        "trigger": {"type": "threshold", "signal": "back", "above": 0.5},
        "actions": [{"type": "rollback", "data": "replay"}],
    }
    run = start(call({"type": "checkpoint"}), back)
    asked: list[int] = []

    def each(step: int) -> None:
        if step == 9 and not asked:
            asked.append(step)
            run.guard.log(back=1.0)

    run.go(12, calls=[5], each=each)
    assert run.results[-1].changes["to_step"] == 6
