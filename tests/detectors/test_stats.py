from __future__ import annotations

import math
import random

import pytest

from guard.detectors._stats import Upper, line, median


def test_median() -> None:
    assert median([3.0]) == 3.0
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


def test_line() -> None:
    slope, t = line([1.0, 2.0, 3.0, 4.0])
    assert (slope, t) == (1.0, math.inf)
    assert line([5.0, 5.0, 5.0]) == (0.0, 0.0)
    slope, t = line([0.0, 1.1, 1.9, 3.0])
    assert slope == pytest.approx(0.98)
    assert t == pytest.approx(23.1, abs=0.1)


def usual(values: list[float], **kwargs: float) -> Upper:
    upper = Upper(
        **{
            "window": 50,
            "threshold": 8.0,
            "floor": 0.0,
            "start_floor": 0.0,
            "margin": 3.5,
            "warmup": 20,
            "rebaseline": 20,
            "alarms": 3,
            **kwargs,
        }
    )  # type: ignore[arg-type]
    for x in values:
        upper.learn(x)
    return upper


def test_level_and_scale_of_gaussian_noise() -> None:
    r = random.Random(0)
    upper = usual([10.0 + r.gauss(0, 1) for _ in range(2000)])
    assert upper.level == pytest.approx(10.0, abs=0.5)
    assert upper.scale == pytest.approx(0.8, abs=0.2)  # mean absolute deviation
    assert 15.0 < upper.limit < 30.0


def test_the_limit_of_heavy_tailed_noise_lies_further_out() -> None:
    r = random.Random(0)
    light, heavy = usual([r.gauss(1, 0.2) for _ in range(1000)]), usual([r.paretovariate(2.0) for _ in range(1000)])
    reach = [(u.limit - u.level) / u.scale for u in (light, heavy)]
    assert reach[1] > 5 * reach[0]


def test_a_trend_widens_nothing() -> None:
    falling = usual([1000.0 * math.exp(-t / 20) for t in range(400)])
    assert falling.limit < 1e-3


def test_floors() -> None:
    assert usual([2.0] * 100, floor=0.5).limit == pytest.approx(3.0)
    assert usual([2.0] * 100, start_floor=1.0).limit == pytest.approx(4.0)
    assert usual([2.0] * 19).limit == math.inf
