from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from detectors.traces import fires, layer, looked_at, make, play

from guard.types import Signals


def layers(of: Callable[[int], dict[str, Any]], lr: float = 1e-3) -> list[Signals]:
    """Ten looks, one every 10 ticks."""
    signals = looked_at([{"layers": {"w": of(t // 10), "fine": layer()}} if t % 10 == 0 else None for t in range(100)])
    for s in signals:
        s.lr_effective = lr
    return signals


def test_weights_that_become_equal() -> None:
    alarms = play(make("weights"), layers(lambda i: layer(dims=1, spread=0.0 if i >= 4 else 0.5)))
    assert list(alarms) == [60, 70, 80, 90]
    assert alarms[60].since == 40
    assert "all 100 weights of w are equal" in alarms[60].message


def test_a_matrix_that_stays_equal_from_the_start() -> None:
    assert fires("weights", layers(lambda i: layer(spread=0.0))) == [20, 30, 40, 50, 60, 70, 80, 90]


def test_huge_weights_at_once() -> None:
    alarms = play(make("weights"), layers(lambda i: layer(peak=2e3 if i == 5 else 0.3)))
    assert list(alarms) == [50]
    assert alarms[50].threshold == 1e3


def test_growth_without_end() -> None:
    alarms = play(make("weights"), layers(lambda i: layer(norm=1.0 * 3.0**i)))
    assert list(alarms) == [30, 40, 50, 60, 70, 80, 90]  # a root mean square above 1 is a norm above 10
    assert alarms[30].since == 10
    assert alarms[30].signal == "weight_norm"


@pytest.mark.parametrize(
    "of",
    [
        lambda i: layer(dims=1, spread=0.0, norm=0.0, peak=0.0),  # a bias at zero
        lambda i: layer(dims=1, spread=0.0, norm=10.0, peak=1.0),  # a scale at one
        lambda i: layer(size=1, dims=2, spread=0.0),
        lambda i: layer(spread=0.0 if i < 2 else 0.1),  # LoRA's B
        lambda i: layer(spread=0.0, grad=None),
        lambda i: layer(norm=1e-4 * 2.5**i),  # growing from zero
        lambda i: layer(norm=100.0 * 1.5**i),
        lambda i: layer(norm=float("nan"), peak=float("nan"), spread=float("nan")),
    ],
)
def test_stays_silent(of: Callable[[int], dict[str, Any]]) -> None:
    assert fires("weights", layers(of)) == []


def test_nothing_moves_without_a_rate() -> None:
    assert fires("weights", layers(lambda i: layer(spread=0.0), lr=0.0)) == []
