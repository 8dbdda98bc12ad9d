from __future__ import annotations

import math
import random

import pytest
from detectors.traces import falling, fires, make, play, trace


def swinging(t: int, width: float) -> float:
    return 1.0 + width * math.sin(2 * math.pi * t / 7)


def test_swings_at_a_level_far_above_the_best() -> None:
    fall = falling(2.0, 0.4, 30, 0.03)
    alarms = play(make("oscillation"), trace(400, lambda t, r: fall(t, r) if t < 200 else 2.0 * swinging(t, 0.4)))
    first = next(iter(alarms))
    assert first == 240
    assert 140 <= alarms[first].since < 200
    assert alarms[first].message.startswith("severe oscillation")


def test_swings_from_the_start_that_grow() -> None:
    growing = trace(200, lambda t, r: (0.4 + min(t, 100) * 0.02) * swinging(t, 0.3) * math.exp(0.1 * r.gauss(0, 1)))
    assert fires("oscillation", growing)[0] == 96
    assert "severe" in play(make("oscillation"), growing)[96].message


def test_a_gradient_that_is_never_cleared() -> None:
    loss = lambda t, r: (0.5 + 1.5 * math.exp(-t / 15)) * swinging(t, 0.8)  # noqa: E731 - a curve
    hoards = trace(200, loss, lambda t, r: 5.0 + 0.05 * t + 0.02 * r.gauss(0, 1))
    alarms = play(make("oscillation"), hoards)
    first = next(iter(alarms))
    assert first == 192
    assert "cleared" in alarms[first].message
    assert fires("oscillation", trace(200, loss, lambda t, r: 5.0 * math.exp(0.2 * r.gauss(0, 1)))) == []
    assert fires("oscillation", trace(200, loss, lambda t, r: 1.0)) == []  # arrives clipped


def test_wide_swings_around_a_level_that_was_never_bettered_are_noise() -> None:
    assert fires("oscillation", trace(1000, lambda t, r: swinging(t, 0.9) * math.exp(0.5 * r.gauss(0, 1)))) == []


def test_a_harder_stage_that_is_being_learnt_is_none() -> None:
    stage = falling(2.3, 0.1, 25, 0.01)
    assert fires("oscillation", trace(600, lambda t, r: stage(t % 200, r) * (1 + t // 200))) == []


@pytest.mark.parametrize("falls_again", [False, True])
def test_a_step_up_that_swings_no_more_than_before_is_another_level(falls_again: bool) -> None:
    def stage(t: int, r: random.Random) -> float:
        level = 0.5 + math.exp(-t / 20) if t < 200 else 1.0 - (0.002 * (t - 200) if falls_again else 0.0)
        return level * (1.0 + 0.2 * r.gauss(0, 1))

    assert fires("oscillation", trace(500, stage)) == []
    swings = trace(600, lambda t, r: stage(t, r) if t < 400 else 2.5 * swinging(t, 0.6))
    assert fires("oscillation", swings)[0] in range(430, 480)  # judged against the new level


def test_a_raised_rate_may_cost_some_ground() -> None:
    raised = lambda t, r: 0.5 * swinging(t, 0.1) if t < 200 else swinging(t, 0.3)  # noqa: E731 - a curve
    assert fires("oscillation", trace(300, raised))[0] == 240
    assert fires("oscillation", trace(300, raised, lr=lambda t: 1e-3 if t < 200 else 1e-2)) == []


def test_swings_at_the_floor_of_a_finished_run_are_nothing() -> None:
    floor = lambda t, r: math.exp(-t / 10) + 1e-6 * (1 + t / 60) * swinging(t, 0.5)  # noqa: E731 - a curve
    assert fires("oscillation", trace(600, floor)) == []


def test_refill_wants_a_full_window_again() -> None:
    growing = trace(400, lambda t, r: (0.4 + min(t, 100) * 0.02) * swinging(t, 0.3))
    detector = make("oscillation")
    assert play(detector, growing[:120])
    detector.refill()
    assert list(play(detector, growing[120:210])) == []
