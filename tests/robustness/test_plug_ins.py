"""Plug-ins that raise: training goes on, and each failure is an incident of its own, journaled and told once."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from guard.actions import ACTIONS, Action
from guard.bank import Rules
from guard.detectors import DETECTORS, Detector
from guard.notify import ReceiverSpec, render
from guard.policy import engine
from guard.registry import Params

from .conftest import BAD_BATCH, Train


class Broken(Detector):
    """Broken: raises where it is told to."""

    class Params(Params):
        where: str
        after: int = 3

    def _may_raise(self, where: str, tick: int = 99) -> None:
        if self.params.where == where and tick >= self.params.after:
            raise ZeroDivisionError(f"in {where}")

    def score(self, s: Any) -> None:
        self._may_raise("score", s.tick)

    def learn(self, s: Any) -> None:
        self._may_raise("learn", s.tick)

    def refill(self) -> None:
        self._may_raise("refill")

    def state_dict(self) -> dict[str, Any]:
        self._may_raise("state_dict")
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._may_raise("load_state_dict")


class BrokenAction(Action):
    """Broken: raises where it is told to."""

    asked: ClassVar[list[str]] = []

    class Params(Params):
        where: str

    def unavailable(self, run: Any, detection: Any) -> str | None:
        self.asked.append("unavailable")
        if self.params.where == "unavailable":
            raise ZeroDivisionError("in unavailable")
        return None

    def apply(self, run: Any, detection: Any) -> Any:
        self.asked.append("apply")
        raise ZeroDivisionError("in apply")

    def describe(self) -> str:
        if self.params.where == "describe":
            raise ZeroDivisionError("in describe")
        return "break"


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry, cls in ((DETECTORS, Broken), (ACTIONS, BrokenAction)):
        assert registry.get("broken") is None  # also loads the built-in ones
        monkeypatch.setattr(cls, "name", "broken", raising=False)
        monkeypatch.setitem(registry._found, "broken", cls)  # type: ignore[attr-defined]


ROLLBACK = {
    "name": "back",
    "trigger": {"type": "non_finite"},
    "actions": [{"type": "rollback", "data": "advance"}],
    "limits": {"max": 5},
    "resolve_after": 3,
}


def watched(where: str) -> dict[str, Any]:
    return {"name": "watch", "trigger": {"type": "broken", "where": where}, "actions": [{"type": "skip_step"}]}


@pytest.mark.parametrize("where", ["score", "learn", "refill", "state_dict", "load_state_dict"])
def test_a_detector_that_raises_is_switched_off_and_reported(train: Train, where: str) -> None:
    run = train(watched(where), ROLLBACK)
    run.steps(12)
    run.fault()
    run.steps(10)
    assert run.guard.tick == 27
    assert run.finite
    failures = [i for i in run.guard.incidents if i.detector == "plugin_failure"]
    assert len(failures) == 1
    assert "detector broken failed: ZeroDivisionError" in failures[0].evidence["detection"]["message"]
    assert any(i.detector == "non_finite" and i.status == "resolved" for i in run.guard.incidents)


def test_the_failure_is_journaled_and_can_be_told(train: Train) -> None:
    run = train(watched("score"), BAD_BATCH)
    run.steps(6)
    opened, closed = [e for e in run.journal if e.get("incident", "").startswith("f")]
    assert (opened["kind"], opened["detector"], opened["severity"]) == ("incident_opened", "plugin_failure", "warning")
    assert (closed["kind"], closed["status"]) == ("incident_closed", "ended")
    text = " ".join(render.to_terminal(render.root(run.guard.report.log, run.guard.incidents[0])).split())
    assert "etector broken failed: ZeroDivisionError: in score" in text
    assert "training goes on" in text
    assert "Run over" not in text


@pytest.mark.parametrize("where", ["unavailable", "apply"])
def test_an_action_that_raises_is_reported_and_the_others_of_its_attempt_are_taken(train: Train, where: str) -> None:
    run = train({**BAD_BATCH, "actions": [{"type": "broken", "where": where}, {"type": "skip_step"}]})
    run.steps(3)
    run.fault()
    assert run.finite
    assert [i.detector for i in run.guard.incidents].count("plugin_failure") == 1
    (incident,) = (i for i in run.guard.incidents if i.detector == "non_finite")
    assert [r.type for r in incident.attempts[0].results] == ["skip_step"]
    assert incident.status == "resolved"


@pytest.mark.parametrize("where", ["unavailable", "apply", "describe"])
@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_remedy_that_only_raises_lets_training_go_on(train: Train, where: str, mode: str) -> None:
    run = train({**BAD_BATCH, "actions": [{"type": "broken", "where": where}]}, mode=mode)
    run.steps(3)
    run.fault()
    assert run.guard.tick == 8
    assert run.finite is (mode == "enforce")  # the gate holds whatever an action does
    raised = mode == "enforce" or where != "apply"  # which nobody calls in observe mode
    assert any(i.detector == "plugin_failure" for i in run.guard.incidents) is raised


def test_an_action_that_failed_is_switched_off(train: Train) -> None:
    """It says so in its incident: "it is switched off"."""
    BrokenAction.asked.clear()
    run = train({**BAD_BATCH, "actions": [{"type": "broken", "where": "apply"}, {"type": "skip_step"}]})
    run.steps(3)
    for _ in range(4):
        run.fault()
    assert BrokenAction.asked.count("apply") == 1
    assert [i.detector for i in run.guard.incidents].count("plugin_failure") == 1


def sealed() -> str:
    raise RuntimeError("the vault is sealed")


def test_a_receiver_that_raises_is_the_couriers_affair(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(receivers=[ReceiverSpec("hook", "webhook", webhook_url=sealed)])
    run.steps(3)
    run.fault()
    run.guard.close(timeout=5.0)
    assert run.finite
    assert run.kinds[-1] == "run_finished"
    said = capsys.readouterr().err
    assert "guard: telling failed (RuntimeError)" in said
    assert "Traceback" not in said


def test_a_receiver_that_raises_keeps_nothing_from_the_others(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(receivers=[ReceiverSpec("hook", "webhook", webhook_url=sealed), ReceiverSpec("here", "console")])
    run.steps(3)
    run.fault()
    run.guard.close(timeout=5.0)
    assert "No action needed: repaired, 1 step lost" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["advance", "satisfied"])
def test_the_gate_holds_in_the_tick_in_which_the_guard_fails(
    train: Train, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("a mistake of the guard's own")

    run = train()
    run.steps(3)
    owner = engine if broken == "advance" else Rules
    monkeypatch.setattr(owner, broken, fails)
    run.fault()
    assert run.finite


def test_a_log_entry_that_is_no_number_is_the_callers_mistake(train: Train) -> None:
    run = train()
    with pytest.raises((TypeError, ValueError)):
        run.guard.log(val_loss="low")  # type: ignore[arg-type]
    run.steps(2)
