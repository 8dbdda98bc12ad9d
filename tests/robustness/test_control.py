"""A person takes the wheel of a live run: what is asked is done at the next step, and receipted."""

from __future__ import annotations

from typing import Any

import pytest

import guard
from guard.incidents.control import Request, submit

from .conftest import Train, Training

SLOWER = {
    "name": "slower",
    "trigger": {"type": "threshold", "signal": "reward", "below": 0.0},
    "resolve_after": 2,
    "actions": [{"type": "scale_lr", "factor": 0.5}],
    "limits": {"max": 4},
}
BACK = {
    "name": "back",
    "severity": "critical",
    "trigger": {"type": "non_finite"},
    "resolve_after": 3,
    "actions": [{"type": "rollback", "data": "advance"}],
    "limits": {"max": 5},
}


def ask(run: Training, verb: Any, **more: Any) -> dict[str, Any]:
    """Asks, takes one step, and returns the receipt."""
    before = sum(k == "request" for k in run.kinds)
    submit(run.run_dir, Request(verb, "ada", **more))
    run.steps(1)
    receipts = [e for e in run.journal if e["kind"] == "request"]
    assert len(receipts) == before + 1
    assert receipts[-1]["author"] == "ada"
    assert receipts[-1]["request"]["verb"] == verb
    return receipts[-1]


def accepted(receipt: dict[str, Any]) -> str:
    assert receipt["accepted"], receipt
    return str(receipt["message"])


def refused(receipt: dict[str, Any]) -> str:
    assert not receipt["accepted"], receipt
    return str(receipt["message"])


def test_observe_and_enforce_the_run(train: Train) -> None:
    run = train(BACK)
    run.steps(3)
    assert accepted(ask(run, "observe")) == "the run is now in mode observe"
    assert run.guard.mode == "observe"
    run.fault()
    assert run.guard.incidents[-1].status in ("observed", "firing")
    assert not run.finite  # nobody acted, which is what was asked for


def test_enforce_makes_an_observed_run_protected(train: Train) -> None:
    run = train(BACK, mode="observe")
    run.steps(3)
    assert accepted(ask(run, "enforce")) == "the run is now in mode enforce"
    run.steps(10)
    run.fault()
    assert run.finite
    assert [r.type for r in run.guard.incidents[-1].attempts[0].results] == ["rollback"]
    assert [e["mode"] for e in run.journal if e["kind"] == "mode"] == ["enforce"]


def test_observe_one_policy_and_let_the_others_act(train: Train) -> None:
    run = train(BACK, SLOWER)
    run.steps(8)
    assert accepted(ask(run, "observe", policy="slower")) == "slower is now in mode observe"
    run.guard.log(reward=-1.0)
    run.steps(1)
    assert (run.guard.incidents[-1].status, run.guard.lr_multiplier) == ("observed", 1.0)
    run.fault()
    assert run.finite


def test_the_gate_holds_when_only_the_policy_observes(train: Train) -> None:
    run = train(BACK)
    run.steps(3)
    accepted(ask(run, "observe", policy="back"))
    run.fault()
    assert run.finite


def test_undo_takes_an_incidents_standing_change_back(train: Train) -> None:
    run = train(SLOWER)
    run.steps(2)
    run.guard.log(reward=-1.0)
    run.steps(1)
    assert run.guard.lr_multiplier == 0.5
    incident = run.guard.incidents[-1].id
    assert accepted(ask(run, "undo", incident=incident)) == "undone: lr multiplier is 1.0"
    assert run.guard.lr_multiplier == 1.0
    assert "undone" in run.kinds
    assert "nothing that incident" in refused(ask(run, "undo", incident=incident))


def test_undo_of_one_of_two_changes_leaves_the_other(train: Train) -> None:
    run = train(SLOWER)
    for _ in range(2):
        run.guard.log(reward=-1.0)
        run.steps(5)
    assert run.guard.lr_multiplier == 0.25
    accepted(ask(run, "undo", incident=run.guard.incidents[0].id))
    assert run.guard.lr_multiplier == 0.5


def test_rollback_goes_back_and_on_with_fresh_data(train: Train) -> None:
    run = train(BACK)
    run.steps(23)
    message = accepted(ask(run, "rollback"))
    assert message.startswith("went back from step 23 to step ")
    assert run.guard.step < 23
    assert run.guard.tick == 24
    run.steps(10)
    assert run.finite


def test_rollback_to_the_start(train: Train) -> None:
    run = train(BACK)
    run.steps(23)
    assert accepted(ask(run, "rollback", to="start")) == "went back from step 23 to step 0"
    assert run.guard.step == 0


def test_checkpoint_takes_one_before_the_next_step(train: Train) -> None:
    run = train(BACK, checkpoints={"every": 1000, "probation": 0})
    run.steps(10)
    accepted(ask(run, "checkpoint"))
    run.steps(3)
    assert accepted(ask(run, "rollback")) == "went back from step 14 to step 11"


def test_stop_ends_the_run_and_says_who_asked(train: Train) -> None:
    run = train(BACK)
    run.steps(5)
    submit(run.run_dir, Request("stop", "ada"))
    with pytest.raises(guard.TrainingStopped) as stopped:
        run.steps(1)
    assert stopped.value.incident.status == "stopped"
    assert stopped.value.incident.evidence["detection"]["message"] == "ada asked for it"
    run.guard.close()
    assert run.kinds[-4:] == ["incident_opened", "incident_closed", "request", "run_finished"]
    assert run.journal[-1]["status"] == "stopped"


@pytest.mark.parametrize(
    ("verb", "more", "why"),
    [
        ("observe", {"policy": "nobody"}, "there is no policy 'nobody'; there are: back"),
        ("undo", {"incident": "i9999"}, "there is no incident 'i9999'"),
        ("undo", {}, "there is no incident None"),
        ("rollback", {"to": "yesterday"}, "allowed: last_good, previous, start, best"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    train: Train, verb: str, more: dict[str, str], why: str
) -> None:
    run = train(BACK)
    run.steps(3)
    assert why in refused(ask(run, verb, **more))
    assert run.guard.tick == 4


@pytest.mark.parametrize("verb", ["rollback", "checkpoint"])
def test_observe_mode_keeps_no_checkpoints(train: Train, verb: str) -> None:
    run = train(BACK, mode="observe")
    run.steps(3)
    assert "the run is in observe mode" in refused(ask(run, verb))


@pytest.mark.parametrize(
    "nonsense", [b"nonsense", b"[" * 60_000, b"\xff" * 10], ids=["text", "deeper than Python counts", "no unicode"]
)
def test_nonsense_is_noticed_and_training_goes_on(train: Train, nonsense: bytes) -> None:
    run = train(BACK)
    run.steps(3)
    (run.run_dir / "control").mkdir(exist_ok=True)
    (run.run_dir / "control" / "x.json").write_bytes(nonsense)
    run.steps(3)
    assert run.guard.tick == 6
    assert any("is not understood" in e["message"] for e in run.journal if e["kind"] == "notice")


def test_several_requests_at_once_are_all_taken_in_order(train: Train) -> None:
    run = train(BACK)
    run.steps(3)
    for verb in ("observe", "enforce", "checkpoint"):
        submit(run.run_dir, Request(verb, "ada"))  # type: ignore[arg-type]
    run.steps(1)
    receipts = [e["request"]["verb"] for e in run.journal if e["kind"] == "request"]
    assert sorted(receipts) == ["checkpoint", "enforce", "observe"]
