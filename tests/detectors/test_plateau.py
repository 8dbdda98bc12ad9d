from __future__ import annotations

import math

from detectors.traces import falling, fires, make, play, trace

STUCK = falling(4.3, 3.2, 6, 0.07)


def collapsed(t, r):  # type: ignore[no-untyped-def]
    return (0.15 + 1.5 * math.exp(-t / 12)) * math.exp(0.4 * r.gauss(0, 1))


def test_stuck_with_a_collapsed_gradient_at_a_high_rate() -> None:
    alarms = play(make("plateau"), trace(400, STUCK, collapsed, lr=lambda t: 0.05))
    assert list(alarms) == list(range(180, 400))
    assert alarms[180].since == 20
    assert "gradient norm is down" in alarms[180].message


def test_a_rate_that_fell_away_early() -> None:
    alarms = play(make("plateau"), trace(400, STUCK, lr=lambda t: 1e-2 * 0.9**t + 1e-7))
    first = next(iter(alarms))
    assert first == 180
    assert "learning rate is down" in alarms[first].message


def test_converged_with_lively_gradients_is_none() -> None:
    assert fires("plateau", trace(600, STUCK, lambda t, r: math.exp(0.2 * r.gauss(0, 1)))) == []
    steady = trace(600, STUCK, lambda t, r: (0.15 + 1.5 * math.exp(-t / 12)) * math.exp(0.1 * r.gauss(0, 1)))
    assert fires("plateau", steady) == []


def test_flat_because_the_rate_is_at_its_end_is_none() -> None:
    cosine = lambda t: 5e-4 * (1 + math.cos(math.pi * t / 1000))  # noqa: E731 - a schedule
    assert fires("plateau", trace(1000, lambda t, r: 4 - cosine(0) * 1e3 + cosine(t) * 1e3, collapsed, lr=cosine)) == []


def test_progress_noise_and_a_low_level_are_none() -> None:
    assert fires("plateau", trace(600, lambda t, r: 4 - t / 500 + 0.05 * r.gauss(0, 1), collapsed)) == []
    assert fires("plateau", trace(600, lambda t, r: STUCK(t, r) + 0.4 * r.gauss(0, 1), collapsed)) == []
    assert fires("plateau", trace(600, falling(4.3, 1.5, 6, 0.03), collapsed)) == []
