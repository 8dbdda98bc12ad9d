from __future__ import annotations

import math

import pytest
from detectors.traces import fires, make
from pydantic import ValidationError

from guard.types import Signals


def test_above_and_below() -> None:
    signals = [Signals(t, t, loss, 1.0) for t, loss in enumerate([1.0, 3.0, math.nan, 2.0, -1.0])]
    assert fires("threshold", signals, signal="loss", above=2.0) == [1]
    assert fires("threshold", signals, signal="loss", below=0.0) == [4]
    assert fires("threshold", signals, signal="loss", above=2.0, below=0.0) == [1, 4]
    assert fires("threshold", signals, signal="grad_norm", above=0.5) == [0, 1, 2, 3, 4]


def test_a_logged_number_counts_on_the_tick_that_brought_it() -> None:
    signals = [
        Signals(t, t, 1.0, 1.0, metrics={"reward": -5.0} if t == 3 else {"other": -9.0} if t == 4 else None)
        for t in range(6)
    ]
    assert fires("threshold", signals, signal="reward", below=0.0) == [3]


def test_says_which_side() -> None:
    found = make("threshold", signal="lr", above=0.1).score(Signals(7, 7, 1.0, 1.0, lr=0.5))
    assert found is not None
    assert (found.signal, found.value, found.threshold, found.since) == ("lr", 0.5, 0.1, 7)
    assert found.message == "lr 0.5 is above 0.1"


@pytest.mark.parametrize("params", [{"signal": "loss"}, {"signal": "loss", "above": 1.0, "below": 2.0}, {"above": 1.0}])
def test_refuses_limits_that_make_no_sense(params: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make("threshold", **params)
