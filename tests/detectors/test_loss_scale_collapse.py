from __future__ import annotations

import math

from detectors.traces import fires, make, play

from guard.types import Signals


def scaler(overflows: set[int], ticks: int, scale: float, growth: int = 10**9) -> list[Signals]:
    """What a GradScaler shows when these ticks overflow."""
    signals, since = [], 0
    for t in range(ticks):
        over = t in overflows
        signals.append(Signals(t, t, 1.0, math.inf if over else 1.0, loss_scale=scale, overflow=over))
        scale, since = (scale / 2, 0) if over else (scale, since + 1)
        if since == growth:
            scale, since = scale * 2, 0
    return signals


def test_fires_at_the_eighth_step_in_a_row_that_is_left_out() -> None:
    alarms = play(make("loss_scale_collapse"), scaler(set(range(30, 60)), 60, 2.0**16))
    assert next(iter(alarms)) == 37
    assert alarms[37].since == 30
    assert alarms[37].baseline == 2.0**16
    assert fires("loss_scale_collapse", scaler(set(range(30, 34)), 60, 2.0**16), patience="4 steps") == [33]


def test_fires_below_the_floor_even_with_good_steps_in_between() -> None:
    overflows = set(range(10, 40, 3))
    assert fires("loss_scale_collapse", scaler(overflows, 40, 64.0))[0] == 31  # 64 -> 0.5 after seven of them


def test_fires_on_a_scale_of_zero() -> None:
    assert fires("loss_scale_collapse", [Signals(3, 3, 1.0, 1.0, loss_scale=0.0)]) == [3]


def test_the_search_at_the_start_is_normal() -> None:
    assert fires("loss_scale_collapse", scaler(set(range(16)), 300, 2.0**24)) == []


def test_a_skip_after_each_growth_is_normal() -> None:
    assert fires("loss_scale_collapse", scaler(set(range(26, 600, 26)), 600, 2.0**20, growth=25)) == []


def test_no_scaler_no_alarm() -> None:
    assert fires("loss_scale_collapse", [Signals(t, t, 1.0, 1.0) for t in range(50)]) == []
