from __future__ import annotations

import math

import pytest
from detectors.traces import make

from guard.types import Signals

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(("signals", "signal"), [
    (Signals(5, 5, NAN, 1.0, loss_known=True), "loss"),
    (Signals(5, 5, INF, 1.0), "loss"),
    (Signals(5, 5, -INF, 1.0), "loss"),
    (Signals(5, 5, 1.0, NAN), "grad_norm"),
    (Signals(5, 5, 1.0, INF), "grad_norm"),
    (Signals(5, 5, NAN, INF, loss_known=False), "grad_norm"),
    (Signals(5, 5, NAN, INF, loss_known=True, overflow=True), "loss"),
    (Signals(5, 5, INF, NAN, overflow=True), "loss"),
])  # fmt: skip
def test_fires(signals: Signals, signal: str) -> None:
    found = make("non_finite").score(signals)
    assert found is not None
    assert (found.signal, found.since) == (signal, 5)


@pytest.mark.parametrize("signals", [
    Signals(5, 5, 1.0, 1.0),
    Signals(5, 5, -1e300, 1e300),
    Signals(5, 5, NAN, 1.0, loss_known=False),
    Signals(5, 5, 1.0, INF, overflow=True),
    Signals(5, 5, NAN, NAN, loss_known=False, overflow=True),
])  # fmt: skip
def test_stays_silent(signals: Signals) -> None:
    assert make("non_finite").score(signals) is None
