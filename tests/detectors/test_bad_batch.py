from __future__ import annotations

import pytest
from detectors.traces import fires, inputs, looked_at, make, play

from guard.types import Signals


def batches(ticks: int = 60, **odd: dict[str, object]) -> list[Signals]:
    """Healthy batches with peaks around 3, but for those given as ``at_<tick>``."""
    return looked_at([{"inputs": inputs(peak=3.0 + t % 3) | odd.get(f"at_{t}", {})} for t in range(ticks)])


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"finite": False}, "NaN or Inf"),
        ({"zero": True}, "all zero"),
        ({"ignored": True}, "-100"),
        ({"peak": 400.0}, "usual"),
    ],
)
def test_fires_at_the_tick_of_the_batch(odd: dict[str, object], said: str) -> None:
    alarms = play(make("bad_batch"), batches(at_40=odd, at_50=odd))
    assert list(alarms) == [40, 50]
    assert alarms[50].since == 50
    assert said in alarms[40].message


def test_the_first_batch_can_be_bad() -> None:
    assert fires("bad_batch", batches(at_0={"finite": False})) == [0]


def test_what_every_batch_has_is_usual() -> None:
    always = looked_at([{"inputs": inputs(zero=True, peak=0.0)} for _ in range(60)])
    assert fires("bad_batch", always) == list(range(20))
    larger = looked_at([{"inputs": inputs(peak=3.0 if t < 50 else 3000.0)} for t in range(120)])
    assert fires("bad_batch", larger) == list(range(50, 70))


def test_stays_silent() -> None:
    assert fires("bad_batch", batches()) == []
    assert fires("bad_batch", batches(at_40={"peak": 20.0})) == []
    assert fires("bad_batch", batches(at_3={"peak": 400.0})) == []  # nothing is usual yet
    assert fires("bad_batch", looked_at([None, {"seconds": 1.0}] * 40)) == []
