from __future__ import annotations

from detectors.traces import fires, looked_at, make, play, units

from guard.types import Signals


def look(share: float, idle_for: int, values: int = 64) -> dict[str, object]:
    return {"activations": {"relu": units("dead", share, idle_for, values), "fine": units("dead", 0.0)}}


def dies_at_20(share: float = 0.9, values: int = 64) -> list[Signals]:
    return looked_at([look(share, min(8, max(0, t - 20) // 5 + 1) if t >= 20 else 0, values) if t % 5 == 0 else None
                      for t in range(61)])  # fmt: skip


def test_fires_on_the_third_look_and_only_on_looks() -> None:
    alarms = play(make("dead_activations"), dies_at_20())
    assert list(alarms) == [30, 35, 40, 45, 50, 55, 60]
    assert alarms[30].since == alarms[35].since - 5 == 20
    assert alarms[30].signal == "dead"
    assert "90% of the 10 units of relu" in alarms[30].message


def test_small_batches_take_more_looks() -> None:
    assert fires("dead_activations", dies_at_20(values=16))[0] == 35
    assert fires("dead_activations", dies_at_20(values=8))[0] == 55
    assert fires("dead_activations", dies_at_20(values=7)) == []


def test_parameters() -> None:
    assert fires("dead_activations", dies_at_20(), looks=1)[0] == 20
    assert fires("dead_activations", dies_at_20(0.4), share="30 %")[0] == 30


def test_stays_silent() -> None:
    assert fires("dead_activations", dies_at_20(0.5)) == []
    assert fires("dead_activations", looked_at([{"activations": {"tanh": units("saturated", 1.0)}}] * 20)) == []
    assert fires("dead_activations", looked_at([{"inputs": {}}, None] * 20)) == []


def test_refill_waits_for_new_looks() -> None:
    detector = make("dead_activations")
    assert play(detector, dies_at_20())
    detector.refill()
    alarms = play(detector, [Signals(t, t, 1.0, 1.0, deep=look(0.9, 8)) for t in range(70, 75)])
    assert list(alarms) == [72, 73, 74]
    assert alarms[72].since == 70
