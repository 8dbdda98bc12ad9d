from __future__ import annotations

from detectors.traces import fires, looked_at, make, play, units


def test_fires_on_the_third_look() -> None:
    shown = [units("saturated", 0.8 if t >= 10 else 0.0, min(8, max(1, t - 9))) for t in range(20)]
    alarms = play(make("saturated_activations"), looked_at([{"activations": {"tanh": u}} for u in shown]))
    assert list(alarms) == list(range(12, 20))
    assert alarms[12].since == 10
    assert "80% of the 10 units of tanh were at a flat end" in alarms[12].message


def test_stays_silent() -> None:
    assert fires("saturated_activations", looked_at([{"activations": {"relu": units("dead", 1.0)}}] * 20)) == []
    assert fires("saturated_activations", looked_at([{"activations": {"tanh": units("saturated", 0.5)}}] * 20)) == []
    assert fires("saturated_activations", looked_at([{"activations": {"tanh": units("saturated", 1.0, 2)}}] * 20)) == []
    assert fires("saturated_activations", looked_at([None] * 20)) == []
