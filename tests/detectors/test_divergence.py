from __future__ import annotations

import math
import random

from detectors.traces import falling, fires, make, play, trace

from guard.types import Signals


def test_a_loss_that_climbs_back_steadily() -> None:
    fall = falling(3.0, 1.0, 40, 0.03)
    alarms = play(make("divergence"), trace(420, lambda t, r: fall(t, r) + (0.01 * (t - 300) if t >= 300 else 0.0)))
    first = next(iter(alarms))
    assert first == 384
    assert 250 < alarms[first].since <= 348
    assert alarms[first].message.startswith("loss fell from")


def test_a_loss_that_jumps_back_and_stays() -> None:
    shuffled = trace(800, lambda t, r: (falling(2.3, 0.2, 40)(t, r) if t < 300 else 2.3) * (1 + 0.1 * r.gauss(0, 1)))
    ticks = fires("divergence", shuffled)
    assert ticks[0] == 348
    assert ticks[-1] < 720  # after four windows it is told long enough


def test_a_blow_up_in_the_first_ticks() -> None:
    losses = [1.1, 5.8, 149.0, 6.2e6, 1e21, math.inf]
    alarms = play(make("divergence"), [Signals(t, t, x, 2 * x) for t, x in enumerate(losses)])
    assert list(alarms) == [3, 4]
    assert alarms[3].since == 2
    assert alarms[3].signal == "loss"


def test_wild_first_ticks_are_none() -> None:
    once = [0.5, 0.4, 900.0, 0.6, 0.5]
    assert fires("divergence", [Signals(t, t, x, x) for t, x in enumerate(once)]) == []
    calm_gradients = [1.0, 20.0, 2000.0, 1e5]
    assert fires("divergence", [Signals(t, t, x, 1.0) for t, x in enumerate(calm_gradients)]) == []
    assert fires("divergence", [Signals(t, t, 6.0 + 10.0 * (t == 2), 30.0) for t in range(15)]) == []


def test_a_rise_from_a_loss_that_never_fell_or_is_slow_is_none() -> None:
    assert fires("divergence", trace(600, lambda t, r: 1.0 + t / 200)) == []
    assert fires("divergence", trace(3000, lambda t, r: 1.0 + 2 * math.exp(-t / 30) + t / 3000)) == []
    assert fires("divergence", trace(600, lambda t, r: -2.0 - 3 * math.exp(-t / 30) + max(0, t - 300) / 50)) == []


def harder(t: int, r: random.Random, after: float) -> float:
    return (0.4 + 2.0 * math.exp(-t / 40) if t < 300 else after) * (1 + 0.05 * r.gauss(0, 1))


def test_a_step_up_that_is_being_learnt_away_is_none() -> None:
    assert fires("divergence", trace(700, lambda t, r: harder(t, r, 0.8 + 0.9 * math.exp(-(t - 300) / 60)))) == []


def test_a_step_that_came_back_after_a_remedy_is_harder_data() -> None:
    detector = make("divergence")
    steps = trace(500, lambda t, r: harder(t, r, 1.6))
    before = trace(250, lambda t, r: harder(t, r, 1.6))
    assert play(detector, before) == {}
    kept = detector.state_dict()
    assert next(iter(play(detector, steps[250:]))) == 348
    detector.load_state_dict(kept)  # a rollback to step 250, at tick 360
    detector.refill()
    again = steps[250:]
    for i, s in enumerate(again):
        s.tick = 360 + i
    assert play(detector, again) == {}
