from __future__ import annotations

import math

from detectors.traces import fires, make, play

from guard.types import Signals


def test_fires_when_no_parameter_has_a_gradient() -> None:
    alarms = play(make("dead_parameters"), [Signals(t, t, 2.3, 0.0, params=0) for t in range(40)])
    assert list(alarms) == list(range(19, 40))
    assert alarms[30].since == 0
    assert "no parameter" in alarms[30].message


def test_fires_when_the_norm_turns_to_exactly_zero() -> None:
    dies = [Signals(t, t, 2.3, 0.0 if t >= 50 else 1.0) for t in range(100)]
    alarms = play(make("dead_parameters", patience="10 steps"), dies)
    assert next(iter(alarms)) == 59
    assert alarms[59].since == 50


def test_counts_an_unknown_loss_as_not_done() -> None:
    assert fires("dead_parameters", [Signals(t, t, math.nan, 0.0) for t in range(20)]) == [19]


def test_stays_silent() -> None:
    assert fires("dead_parameters", [Signals(t, t, 0.0, 0.0) for t in range(100)]) == []  # nothing left to learn
    assert fires("dead_parameters", [Signals(t, t, 1.0, 1e-30) for t in range(100)]) == []
    assert fires("dead_parameters", [Signals(t, t, 1.0, float(t % 15 == 0)) for t in range(100)]) == []


def test_refill_starts_to_count_anew() -> None:
    detector = make("dead_parameters")
    assert play(detector, [Signals(t, t, 2.3, 0.0) for t in range(25)])
    detector.refill()
    assert list(play(detector, [Signals(t, t, 2.3, 0.0) for t in range(25, 50)])) == list(range(44, 50))
