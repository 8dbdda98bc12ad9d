from __future__ import annotations

import random

from detectors.traces import fires, looked_at, make, play

from guard.types import Signals


def times(*slow: range, by: float = 10.0, ticks: int = 200) -> list[Signals]:
    r = random.Random(0)
    return looked_at([{"seconds": 0.2 * (1 + 0.1 * r.random()) * (by if any(t in s for s in slow) else 1.0)}
                      for t in range(ticks)])  # fmt: skip


def test_fires_after_five_slow_ticks() -> None:
    alarms = play(make("slow_step"), times(range(100, 110)))
    assert list(alarms) == list(range(104, 110))
    assert alarms[104].since == 100
    assert alarms[104].value > 1.9
    assert "an iteration takes" in alarms[104].message


def test_the_new_time_becomes_the_usual_one() -> None:
    assert fires("slow_step", times(range(100, 400), ticks=400), rebaseline="50 steps") == list(range(104, 154))


def test_stays_silent() -> None:
    assert fires("slow_step", times()) == []
    assert fires("slow_step", times(*(range(t, t + 2) for t in range(30, 200, 50)), by=100.0)) == []  # an evaluation
    assert fires("slow_step", times(range(100, 200), by=2.0)) == []
    assert fires("slow_step", times(range(3), by=1000.0)) == []  # compilation
    assert fires("slow_step", looked_at([None] * 100)) == []
