from __future__ import annotations

import math

from detectors.traces import at, falling, fires, make, play, trace

from guard.types import Signals

LOSS = falling(3.0, 1.0, 50, 0.02)
NORM = lambda t, r: math.exp(0.2 * r.gauss(0, 1))  # noqa: E731 - a curve


def test_fires_at_the_tick_of_the_explosion() -> None:
    alarms = play(make("grad_explosion"), trace(200, LOSS, at([100], 1e4, NORM)))
    assert list(alarms) == [100]
    assert alarms[100].since == 100
    assert alarms[100].signal == "grad_norm"


def test_an_explosion_that_was_clipped_does_not_let_the_next_one_through() -> None:
    when = [100, 110, 120, 130, 140, 150]
    assert fires("grad_explosion", trace(200, LOSS, at(when, 100.0, NORM))) == when


def test_three_times_the_usual_is_no_explosion() -> None:
    assert fires("grad_explosion", trace(400, LOSS, at([300], 2.5, lambda t, r: 1.0 + 0.01 * r.gauss(0, 1)))) == []


def test_growth_over_many_ticks_is_none() -> None:
    assert fires("grad_explosion", trace(500, LOSS, lambda t, r: math.exp(t / 200 + 0.2 * r.gauss(0, 1)))) == []


def test_overflow_and_infinity_are_the_business_of_others() -> None:
    signals = trace(100, LOSS, NORM)
    signals[60] = Signals(60, 60, 1.0, math.inf, overflow=True)
    signals[70] = Signals(70, 70, 1.0, math.inf)
    signals[80] = Signals(80, 80, 1.0, 1e4, overflow=True)
    assert fires("grad_explosion", signals) == []
    assert fires("grad_explosion", [*signals, Signals(100, 100, 1.0, 1e4)]) == [100]


def test_an_absolute_limit_holds_only_until_something_is_known() -> None:
    large = trace(100, LOSS, lambda t, r: 500.0 + r.gauss(0, 1))
    assert fires("grad_explosion", large) == []
    assert fires("grad_explosion", large, absolute=100)[:3] == [0, 1, 2]
    assert fires("grad_explosion", trace(100, LOSS, lambda t, r: 50.0 + t), absolute=100) == []
