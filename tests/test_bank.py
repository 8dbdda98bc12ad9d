"""The bank: whom it asks in a tick, and whom no longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from guard.bank import Bank
from guard.detectors import Detector
from guard.types import Detection, Signals


class Scripted(Detector):
    """Fires at some ticks, settles after some, and counts how often it is asked and taught."""

    name = "scripted"

    def __init__(self, *fires: int, settles: int = 10**9, breaks: str = "") -> None:
        super().__init__(None)
        self.fires, self.settles, self.breaks = fires, settles, breaks
        self.scored, self.learnt, self.held = 0, 0, 0

    def _may_break(self, where: str) -> None:
        if where == self.breaks:
            raise ZeroDivisionError(where)

    @property
    def settled(self) -> bool:
        self._may_break("settled")
        return self.learnt >= self.settles

    def score(self, s: Signals) -> Detection | None:
        self._may_break("score")
        self.scored += 1
        return Detection("scripted", "loss", s.loss, 0.0, 0.0, s.tick, "scripted") if s.tick in self.fires else None

    def learn(self, s: Signals) -> None:
        self._may_break("learn")
        self.learnt += 1

    def hold(self, s: Signals) -> None:
        self._may_break("hold")
        self.held += 1

    def state_dict(self) -> dict[str, Any]:
        return {"learnt": self.learnt}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learnt = state["learnt"]


class Silent(Detector):
    """Overrides nothing but what it must."""

    name = "silent"

    def score(self, s: Signals) -> None:
        return None


def run(bank: Bank, ticks: range) -> dict[int, list[int]]:
    """Tick -> which detectors fired, in their order."""
    fired = {}
    for t in ticks:
        s = Signals(t, t, 1.0, 1.0)
        bank.flagged = bank.score(s)
        if bank.flagged:
            fired[t] = list(bank.flagged)
        bank.learn(s)
    return fired


def test_those_that_fire_hold_and_the_others_learn() -> None:
    a, b = Scripted(3, 5), Scripted(3)
    assert run(Bank({7: a, 1: Silent(None), 4: b}), range(10)) == {3: [7, 4], 5: [7]}
    assert (a.scored, a.learnt, a.held) == (10, 8, 2)
    assert (b.scored, b.learnt, b.held) == (10, 9, 1)


def test_a_settled_detector_rests_until_an_earlier_state_is_loaded() -> None:
    settled, other = Scripted(settles=5), Scripted(400)
    bank = Bank({0: settled, 1: other})
    run(bank, range(3))
    early = bank.state_dict()
    run(bank, range(3, 300))
    asked = settled.scored
    assert asked < 100
    assert run(bank, range(300, 500)) == {400: [1]}
    assert settled.scored == asked
    assert other.scored == 500
    bank.refill(None, 0)
    run(bank, range(500, 510))
    assert settled.scored == asked
    bank.refill(SimpleNamespace(context={"baselines": [early]}), 0)  # type: ignore[arg-type] # all it asks of one
    run(bank, range(510, 515))
    assert settled.scored == asked + 5
    assert settled.learnt == 3 + 5


@pytest.mark.parametrize("where", ["settled", "score", "learn", "hold"])
def test_one_that_raises_is_out_and_the_others_are_not(where: str) -> None:
    first, broken, last = Scripted(2), Scripted(2, breaks=where), Scripted(2, 4)
    bank = Bank({0: first, 1: broken, 2: last})
    assert run(bank, range(6))[4] == [2]
    assert [(name, str(error)) for name, error in bank.failed] == [("scripted", where)]
    assert list(bank.state_dict()) == [0, 2]
    assert first.scored + last.scored >= 12
