"""What a person does to a run from outside: journaled with who, and refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.run_builder import RunBuilder, a_night

from guard.clock import FakeClock
from guard.errors import UsageError
from guard.incidents import IncidentLog, acts, control, read_journal, read_story


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    return a_night(tmp_path / "exp1")


def test_an_ack_is_journaled_where_the_run_has_come_to(run: RunBuilder, clock: FakeClock) -> None:
    acts.acknowledge(run.path, "i0004", "ada", clock)
    (ack,) = [e for e in read_story(run.path) if e["kind"] == "ack"]
    last = read_journal(run.path)[-1]
    assert (ack["author"], ack["tick"], ack["step"]) == ("ada", last["tick"], last["step"])
    with pytest.raises(UsageError, match="no incident 'i0009'"):
        acts.acknowledge(run.path, "i0009", "ada", clock)


def test_a_silence_ends_or_is_ended(run: RunBuilder, clock: FakeClock) -> None:
    acts.silence(run.path, clock.time() + 600, "ada", clock)
    assert IncidentLog(read_story(run.path)).silence("p", clock.time()) is not None
    assert acts.lift(run.path, "bob", clock) == "all messages of the run come again; what is not resolved is told now"
    assert IncidentLog(read_story(run.path)).silence("p", clock.time()) is None
    with pytest.raises(UsageError, match="nothing is silenced for the whole run"):
        acts.lift(run.path, "bob", clock)
    for until in (float("inf"), float("nan"), clock.time()):
        with pytest.raises(UsageError, match="needs an end"):
            acts.silence(run.path, until, "ada", clock)


def test_what_holds_no_run_is_not_written_to(tmp_path: Path, clock: FakeClock) -> None:
    for act in (
        lambda: acts.acknowledge(tmp_path, "i0001", "ada", clock),
        lambda: acts.silence(tmp_path, clock.time() + 600, "ada", clock),
        lambda: acts.lift(tmp_path, "ada", clock),
        lambda: acts.ask(tmp_path, control.Request("stop", "ada"), clock),
        lambda: acts.refuse(tmp_path, control.Request("stop", "ada"), "ada", "no", clock),
    ):
        with pytest.raises(UsageError):
            act()
    assert not acts.reopen(tmp_path, "ada", clock)
    assert list(tmp_path.iterdir()) == []


def test_a_request_is_for_the_process_that_runs_now(run: RunBuilder, clock: FakeClock) -> None:
    run.alive()
    asked = acts.ask(run.path, control.Request("stop", "ada"), clock)
    assert asked.request.run == control.incarnation(run.path) is not None
    assert asked.receipt() is None
    (run.path / "owner.json").unlink()
    (taken,) = control.take(run.path, clock.time())
    assert isinstance(taken, control.Request)
    assert taken.refused == "it was meant for an earlier process of this run"
    run.write("request", request={"id": "another"}, author="bob", accepted=True, message="")
    assert asked.receipt() is None
    run.write("request", request={"id": asked.request.id}, author="ada", accepted=False, message="no")
    receipt = asked.receipt()
    assert receipt is not None
    assert receipt["message"] == "no"


def test_a_live_or_a_finished_run_is_not_reopened(run: RunBuilder, clock: FakeClock) -> None:
    assert not acts.reopen(run.path, "ada", clock), "it has not ended"
    run.finished("stopped")
    run.alive()
    assert not acts.reopen(run.path, "ada", clock)
    (run.path / "owner.json").unlink()
    assert acts.reopen(run.path, "ada", clock)
    assert not acts.reopen(run.path, "ada", clock), "it is open"
    assert [e["author"] for e in read_journal(run.path) if e["kind"] == "reopened"] == ["ada"]
