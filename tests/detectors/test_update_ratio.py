from __future__ import annotations

from collections.abc import Callable

import pytest
from detectors.traces import fires, looked_at, make, play, update
from pydantic import ValidationError

from guard.types import Signals


def updates(of: Callable[[int], dict[str, object]], lr: Callable[[int], float] = lambda t: 1e-3) -> list[Signals]:
    """A look every 5 ticks, known one tick later."""
    return looked_at([{"updates": {"tick": t - 1, "lr": lr(t), "layers": {"w": of(t), "b": update(dims=1, ratio=9.0)}}}
                      if t % 5 == 1 else None for t in range(60)])  # fmt: skip


def test_too_large() -> None:
    alarms = play(make("update_ratio"), updates(lambda t: update(ratio=0.5 if t > 20 else 1e-3)))
    assert list(alarms) == [31, 36, 41, 46, 51, 56]
    assert alarms[31].since == 20
    assert alarms[31].threshold == 0.1
    assert "changes w by 0.5 of its size" in alarms[31].message


def test_too_small_with_a_gradient_and_a_rate() -> None:
    alarms = play(make("update_ratio"), updates(lambda t: update(ratio=1e-8)))
    assert next(iter(alarms)) == 11
    assert alarms[11].since == 0
    assert "by only 1e-08" in alarms[11].message


def test_one_large_update_is_none() -> None:
    assert fires("update_ratio", updates(lambda t: update(ratio=0.5 if t % 15 < 10 else 1e-3))) == []


@pytest.mark.parametrize(
    "of",
    [
        lambda t: update(ratio=0.5, rms=1e-5),  # on its way from zero
        lambda t: update(ratio=1e-8 if t > 20 else 1e-3, grad=1e-6 if t > 20 else 0.1),  # converged
        lambda t: update(ratio=0.0, grad=None),
        lambda t: update(ratio=0.0, grad=0.0),
        lambda t: update(ratio=float("nan")),
        lambda t: update(ratio=float("inf")),
    ],
)
def test_stays_silent(of: Callable[[int], dict[str, object]]) -> None:
    assert fires("update_ratio", updates(of)) == []


def test_a_rate_near_its_end_explains_small_updates() -> None:
    ends = updates(lambda t: update(ratio=1e-3 if t < 30 else 1e-9), lambda t: 1e-3 if t < 30 else 1e-9)
    assert fires("update_ratio", ends) == []
    assert fires("update_ratio", updates(lambda t: update(ratio=0.0), lambda t: 0.0)) == []


def test_no_range_is_refused() -> None:
    with pytest.raises(ValidationError, match="no ratio is allowed"):
        make("update_ratio", low=1.0, high=0.5)
