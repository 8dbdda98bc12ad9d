from __future__ import annotations

import math

from detectors.traces import falling, fires, make, play, trace

FLAT = lambda t, r: 2.303 + 0.005 * r.gauss(0, 1)  # noqa: E731 - a curve


def test_fires_at_the_second_judgement_that_agrees() -> None:
    alarms = play(make("flat_loss"), trace(300, FLAT))
    first = next(iter(alarms))
    assert first == 144
    assert alarms[first].since == 0
    assert "it started at 2.3" in alarms[first].message
    assert fires("flat_loss", trace(300, FLAT), window="64 steps")[0] == 72


def test_a_network_that_died_in_its_first_steps_is_no_better_than_at_its_start() -> None:
    def died(t, r):  # type: ignore[no-untyped-def]
        return 2.3 if t < 8 else 8.5 if t == 8 else 2.36 + 0.5 * math.exp(-t / 10) + 0.04 * r.gauss(0, 1)

    assert fires("flat_loss", trace(300, died))[0] == 176


def test_a_known_trivial_level() -> None:
    drops = falling(4.0, 2.303, 10, 0.005)
    assert fires("flat_loss", trace(300, drops)) == []
    alarms = play(make("flat_loss", trivial=2.303), trace(300, drops))
    first = next(iter(alarms))
    assert first == 192
    assert alarms[first].since > 0


def test_the_level_that_the_loss_function_shows() -> None:
    drops = trace(300, falling(4.0, 2.303, 10, 0.005))
    for s in drops[8:]:
        s.guess = 2.303
    alarms = play(make("flat_loss"), drops)
    first = next(iter(alarms))
    assert first == 192
    assert "a guess that knows nothing gets 2.303" in alarms[first].message
    on = trace(300, falling(4.0, 2.1, 10, 0.005))
    for s in on:
        s.guess = 2.303
    assert play(make("flat_loss"), on) == {}


def test_after_an_alarm_it_wants_to_see_movement() -> None:
    detector = make("flat_loss")
    before = detector.state_dict()
    assert play(detector, trace(200, FLAT))
    detector.load_state_dict(before)  # a rollback to the start
    detector.refill()
    noisy = trace(300, lambda t, r: 2.303 + 0.3 * r.gauss(0, 1))
    assert fires("flat_loss", noisy) == []
    assert next(iter(play(detector, noisy))) == 144


def test_slow_noisy_or_warming_up_is_none() -> None:
    assert fires("flat_loss", trace(600, lambda t, r: FLAT(t, r) - 1e-4 * t)) == []
    assert fires("flat_loss", trace(600, lambda t, r: 2.3 + 0.3 * r.gauss(0, 1))) == []
    assert fires("flat_loss", trace(600, FLAT, lr=lambda t: 1e-3 * (t + 1) / 600)) == []
    assert fires("flat_loss", trace(600, FLAT, lr=lambda t: 1e-5)) == []


def test_once_moved_it_is_silent_for_good() -> None:
    there_and_back = trace(900, lambda t, r: FLAT(t, r) - 0.3 * (100 < t < 200))
    assert fires("flat_loss", there_and_back) == []


def test_a_loss_that_is_not_positive_is_not_judged() -> None:
    assert fires("flat_loss", trace(600, lambda t, r: -1.0)) == []
    assert fires("flat_loss", trace(600, lambda t, r: math.nan)) == []
