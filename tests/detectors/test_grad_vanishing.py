from __future__ import annotations

import math

from detectors.traces import falling, fires, make, play, trace


def dies(t: int) -> float:
    return 1e-6 if t >= 100 else 1.0


def test_fires_after_patience_while_the_loss_is_high() -> None:
    alarms = play(make("grad_vanishing"), trace(150, lambda t, r: 2.3, lambda t, r: dies(t)))
    assert next(iter(alarms)) == 119
    assert alarms[119].since == 100
    assert fires("grad_vanishing", trace(150, lambda t, r: 2.3, lambda t, r: dies(t)), patience=5)[0] == 104


def test_fires_when_no_loss_is_known() -> None:
    assert fires("grad_vanishing", trace(150, lambda t, r: math.nan, lambda t, r: dies(t)))[0] == 119


def test_stays_silent_when_the_loss_went_down_as_well() -> None:
    assert fires("grad_vanishing", trace(400, falling(2.3, 0.0, 20), lambda t, r: math.exp(-t / 20))) == []


def test_stays_silent_on_a_negative_loss_and_on_ratios_above_the_limit() -> None:
    assert fires("grad_vanishing", trace(150, lambda t, r: -2.3, lambda t, r: dies(t))) == []
    assert fires("grad_vanishing", trace(150, lambda t, r: 2.3, lambda t, r: max(dies(t), 0.002))) == []
