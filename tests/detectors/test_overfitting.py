from __future__ import annotations

import math
import random

from detectors.traces import fires, make, play

from guard.types import Signals


def run(
    validation: list[float], every: int = 25, train: float = 100.0, name: str = "val_loss", noise: float = 0.0
) -> list[Signals]:
    """A falling training loss with a validation loss logged every so many ticks."""
    r = random.Random(3)
    signals = []
    for t in range(every * len(validation) + 1):
        due = t and t % every == 0
        metrics = {name: validation[t // every - 1] + noise * r.gauss(0, 1)} if due else None
        signals.append(Signals(t, t, 2.0 * math.exp(-t / train), 1.0, metrics=metrics))
    return signals


TURNS = [1.0, 0.85, 0.72, 0.63, 0.58, 0.6, 0.64, 0.68, 0.73, 0.78, 0.83, 0.88]


def test_fires_at_the_third_evaluation_well_above_the_best_and_stays_on() -> None:
    alarms = play(make("overfitting"), run(TURNS))
    assert list(alarms) == list(range(250, 301))
    assert alarms[250].since == 125
    assert alarms[250].baseline == 0.58
    assert fires("overfitting", run(TURNS), patience=1)[0] == 200
    assert fires("overfitting", run(TURNS, name="dev"), metric="dev")[0] == 250


def test_an_evaluation_that_is_good_again_takes_it_back() -> None:
    assert fires("overfitting", run([*TURNS[:10], 0.5, 0.5])) == list(range(250, 275))


def test_works_where_every_tick_has_an_evaluation() -> None:
    assert fires("overfitting", run(TURNS, every=1, train=3.0)) == [10, 11, 12]


def test_stays_silent_while_the_training_loss_rises_too() -> None:
    assert fires("overfitting", run(TURNS, train=-100.0)) == []


def test_stays_silent_on_noise_around_a_level_and_on_missing_numbers() -> None:
    level = [2.0 * 0.5**i + 0.3 for i in range(60)]
    assert fires("overfitting", run(level, every=5, noise=0.04)) == []
    assert fires("overfitting", run([1.0, 0.5, math.nan, math.inf, 0.4, 0.3])) == []
    assert fires("overfitting", run(TURNS, name="accuracy")) == []
