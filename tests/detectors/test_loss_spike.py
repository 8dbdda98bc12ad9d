from __future__ import annotations

import math

from detectors.traces import at, falling, fires, make, play, trace

QUIET = falling(3.0, 1.0, 30, 0.02)


def test_fires_at_the_tick_of_the_spike_and_not_after_it() -> None:
    alarms = play(make("loss_spike"), trace(200, at([120], 3.0, QUIET)))
    assert list(alarms) == [120]
    found = alarms[120]
    assert found.since == 120
    assert found.signal == "loss"
    assert found.value > found.threshold > found.baseline
    assert "times its usual" in found.message


def test_one_spike_does_not_hide_the_next() -> None:
    assert fires("loss_spike", trace(200, at([120, 121, 125], 3.0, QUIET))) == [120, 121, 125]


def test_a_nan_blinds_nothing() -> None:
    gaps = trace(200, lambda t, r: math.nan if t in (50, 119) else at([120], 3.0, QUIET)(t, r))
    assert fires("loss_spike", gaps) == [120]


def test_an_infinite_or_unknown_loss_is_no_spike() -> None:
    assert fires("loss_spike", trace(100, lambda t, r: math.inf if t == 60 else QUIET(t, r))) == []
    assert fires("loss_spike", trace(100, lambda t, r: math.nan)) == []


def test_a_negative_loss_spikes_too() -> None:
    assert fires("loss_spike", trace(200, lambda t, r: -3.0 + 0.1 * r.gauss(0, 1) + 6.0 * (t == 120))) == [120]


def test_garbage_among_noise() -> None:
    noisy = at([300], 100.0, lambda t, r: (0.1 + math.exp(-t / 50)) * math.exp(0.6 * r.gauss(0, 1)))
    assert fires("loss_spike", trace(400, noisy)) == [300]


def test_no_alarm_during_warm_up() -> None:
    spiky = at([10], 5.0, QUIET)
    assert fires("loss_spike", trace(60, spiky)) == []
    assert fires("loss_spike", trace(60, spiky), warmup=4) == []  # the first fall is too steep to tell
    assert fires("loss_spike", trace(60, at([50], 5.0, QUIET)), warmup="51 steps") == []


def test_a_level_shift_is_told_and_then_taken_for_usual() -> None:
    shift = trace(300, lambda t, r: (1.0 if t < 150 else 4.0) + 0.02 * r.gauss(0, 1))
    assert fires("loss_spike", shift) == list(range(150, 170))
    assert fires("loss_spike", shift, rebaseline="5 steps") == list(range(150, 155))


def test_what_keeps_coming_and_is_accepted_is_told_three_times() -> None:
    hard = at(range(150, 1000, 40), 5.0, falling(3.0, 1.0, 30, 0.02))
    assert fires("loss_spike", trace(1000, hard)) == [150, 190, 230]


def test_a_larger_threshold_asks_for_a_larger_spike() -> None:
    small = trace(400, at([350], 2.2, lambda t, r: 1.0 + 0.02 * r.gauss(0, 1)))
    assert fires("loss_spike", small) == [350]
    assert fires("loss_spike", small, threshold=200.0) == []


def test_far_below_all_that_is_usual_are_targets_out_of_range() -> None:
    alarms = play(make("loss_spike"), trace(200, at([100], -40.0, falling(1.0, 0.3, 50, 0.02))))
    assert list(alarms) == [100]
    assert "far below" in alarms[100].message


def test_a_likelihood_that_falls_fast_is_none() -> None:
    assert fires("loss_spike", trace(400, falling(2.0, -6.0, 15, 0.1))) == []
    assert fires("loss_spike", trace(400, lambda t, r: 0.05 * r.gauss(0, 1) ** 3)) == []
