"""What is wanted is done to the run that is meant, with its author; what is not, is journaled with the reason."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from cli.run_builder import RunBuilder, a_night

from guard.clock import FakeClock
from guard.daemon.deeds import EXPIRY, TWINS, Deeds
from guard.daemon.hearing import BUTTONS, HELP, Refused, Wish
from guard.home import Daemon, Home
from guard.incidents import IncidentLog, control, read_journal, read_story
from guard.notify.failure import Failure

AT = "https://hooks.slack.com/actions/1"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def home(tmp_path: Path, clock: FakeClock) -> Home:
    return Home(tmp_path / "home", clock)


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    built = a_night(tmp_path / "runs" / "exp1")
    built.alive()
    return built


@pytest.fixture
def answers() -> list[str]:
    return []


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def deeds(home: Home, clock: FakeClock, answers: list[str], said: list[str]) -> Deeds:
    def answer(at: str, text: str) -> None:
        assert at == AT
        answers.append(text)

    return Deeds([home], clock, answer, said.append)


def wish(verb: str, run: str, incident: str = "", **more: Any) -> Wish:
    return Wish(verb, "U0ADA", "U0ADA 1", AT, run, incident, **more)


def announced(home: Home, run: RunBuilder, host: str = "", monkeypatch: pytest.MonkeyPatch | None = None) -> str:
    if monkeypatch is None:
        return home.announce_run(run.path, run.path.name).id
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: host)
        return home.announce_run(run.path, run.path.name).id


# ---- each verb


def test_acknowledge(deeds: Deeds, home: Home, run: RunBuilder, answers: list[str]) -> None:
    id_ = announced(home, run)
    assert deeds.do(wish("ack", id_, "i0004"))
    assert IncidentLog(read_story(run.path)).acks["i0004"]["author"] == "U0ADA (Slack)"
    assert answers == ["exp1: i0004 is acknowledged: nobody is reminded of it, and no further receiver is called."]
    deeds.do(replace(wish("ack", id_, "i0004"), user="U0BOB"))
    assert len([e for e in read_story(run.path) if e["kind"] == "ack"]) == 1
    assert answers[1] == "exp1: i0004 was acknowledged before, by U0ADA (Slack)."


def test_silence_mutes_the_policy_of_its_incident(
    deeds: Deeds, home: Home, run: RunBuilder, clock: FakeClock, answers: list[str]
) -> None:
    assert deeds.do(wish("silence", announced(home, run), "i0004"))
    log = IncidentLog(read_story(run.path))
    entry = log.silence("skip-on-loss-spike", clock.time())
    assert entry is not None
    assert (entry["until"], entry["author"]) == (clock.time() + 3600, "U0ADA (Slack)")
    assert log.silence("nan-rollback-retry-bf16", clock.time()) is None, "another fault is told all the same"
    assert answers == [
        "exp1: messages of policy skip-on-loss-spike are silenced for 60 min; the run is protected as before."
    ]


def test_silence_of_a_run(deeds: Deeds, home: Home, run: RunBuilder, clock: FakeClock) -> None:
    announced(home, run)
    assert deeds.do(wish("silence", "exp1", seconds=600.0, command=True))
    assert IncidentLog(read_story(run.path)).silence("whatever", clock.time() + 599) is not None
    assert IncidentLog(read_story(run.path)).silence("whatever", clock.time() + 601) is None


@pytest.mark.parametrize("verb", ["observe", "undo", "rollback", "stop", "resume"])
def test_the_run_is_asked_and_its_answer_is_told(
    verb: str, deeds: Deeds, home: Home, run: RunBuilder, clock: FakeClock, answers: list[str]
) -> None:
    assert deeds.do(wish(verb, announced(home, run), "i0004"))
    (request,) = control.take(run.path, clock.time())
    assert isinstance(request, control.Request)
    assert (request.verb, request.author, request.refused) == (verb, "U0ADA (Slack)", "")
    assert request.run == control.incarnation(run.path)
    assert request.expires == clock.time() + EXPIRY
    assert request.incident == ("i0004" if verb == "undo" else None)
    assert answers[0].startswith("exp1 was asked to ")
    deeds.tick()
    assert len(answers) == 1
    run.write("request", request=asdict(request), author=request.author, accepted=True, message="as you wish")
    deeds.tick()
    deeds.tick()
    assert answers[1:] == ["exp1: done at step 1,714: as you wish"]


def test_what_the_run_refuses_is_told(
    deeds: Deeds, home: Home, run: RunBuilder, clock: FakeClock, answers: list[str]
) -> None:
    deeds.do(wish("rollback", announced(home, run)))
    (request,) = control.take(run.path, clock.time())
    assert isinstance(request, control.Request)
    run.write("request", request=asdict(request), author="", accepted=False, message="there is no checkpoint yet")
    deeds.tick()
    assert answers[1] == "exp1: refused: there is no checkpoint yet"


def test_a_run_that_ends_first_or_never_answers_is_told(
    deeds: Deeds, home: Home, run: RunBuilder, clock: FakeClock, answers: list[str]
) -> None:
    id_ = announced(home, run)
    deeds.do(wish("stop", id_))
    clock.advance(EXPIRY + 1)
    deeds.tick()
    assert "not taken the request in time" in answers[-1]
    (late,) = control.take(run.path, clock.time())
    assert isinstance(late, control.Request)
    assert "expired" in late.refused
    deeds.do(wish("stop", id_))
    (run.path / "owner.json").unlink()
    deeds.tick()
    assert "ended before it took the request" in answers[-1]
    assert control.take(run.path, clock.time()) == [], "withdrawn, lest a resumed run obeys it"


def test_a_stopped_run_may_go_on(deeds: Deeds, home: Home, run: RunBuilder, answers: list[str]) -> None:
    (run.path / "owner.json").unlink()
    run.finished("stopped")
    assert deeds.do(wish("resume", announced(home, run)))
    last = read_journal(run.path)[-1]
    assert (last["kind"], last["author"]) == ("reopened", "U0ADA (Slack)")
    assert answers == [f"exp1 may go on. Start it again with the same run directory: {run.path}"]


# ---- what is not done


def refusals(run: RunBuilder) -> list[dict[str, Any]]:
    return [e for e in read_story(run.path) if e["kind"] == "request" and not e["accepted"]]


@pytest.mark.parametrize("verb", ["observe", "undo", "rollback", "stop", "resume"])
def test_a_dead_run_takes_no_request_and_the_reason_is_told(
    verb: str, deeds: Deeds, home: Home, run: RunBuilder, answers: list[str]
) -> None:
    (run.path / "owner.json").unlink()
    assert not deeds.do(wish(verb, announced(home, run), "i0004"))
    assert answers == ["Not done: it is not running, so nobody would take the request"]
    (entry,) = refusals(run)
    assert (entry["request"]["verb"], entry["author"]) == (verb, "U0ADA (Slack)")
    assert entry["message"] == "it is not running, so nobody would take the request"
    assert not (run.path / "control").exists()


@pytest.mark.parametrize("verb", ["ack", "silence"])
def test_an_incident_that_is_not_there(
    verb: str, deeds: Deeds, home: Home, run: RunBuilder, answers: list[str]
) -> None:
    assert not deeds.do(wish(verb, announced(home, run), "i0099"))
    assert "no incident 'i0099'" in answers[0]
    assert len(refusals(run)) == 1
    assert not IncidentLog(read_story(run.path)).acks


@pytest.mark.parametrize("id_", ["../x", "..", "0123456789abcdef", "/etc/passwd", ""])
def test_a_run_that_is_not_known(
    id_: str, deeds: Deeds, home: Home, run: RunBuilder, answers: list[str], said: list[str], tmp_path: Path
) -> None:
    announced(home, run)
    before = sorted(tmp_path.rglob("*"))
    assert not deeds.do(wish("stop", id_))
    assert answers[0].startswith("Not done: this run is not known here")
    assert len(said) == 1, "there is no journal to put it in"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_whose_directory_is_gone(
    deeds: Deeds, home: Home, run: RunBuilder, answers: list[str], tmp_path: Path
) -> None:
    id_ = announced(home, run)
    run.path.rename(tmp_path / "elsewhere")
    assert not deeds.do(wish("stop", id_))
    assert "no run in" in answers[0]
    assert not run.path.exists()


def test_who_is_not_listed_is_journaled_at_most_once_a_minute(
    deeds: Deeds, home: Home, run: RunBuilder, clock: FakeClock, answers: list[str]
) -> None:
    stranger = replace(wish("stop", announced(home, run)), user="U0EVE")
    refused = Refused("not listed as an operator", "Only people listed…", stranger, AT)
    for _ in range(50):
        deeds.refuse(refused)
    assert len(answers) == 50
    (entry,) = refusals(run)
    assert (entry["author"], entry["message"]) == ("U0EVE (Slack)", "not listed as an operator")
    clock.advance(61)
    deeds.refuse(refused)
    assert len(refusals(run)) == 2
    assert not (run.path / "control").exists()


def test_a_failure_of_ours_is_said_and_told(
    deeds: Deeds, home: Home, run: RunBuilder, answers: list[str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("out of paper\x1b[31m" + "x" * 5000)

    monkeypatch.setattr("guard.daemon.deeds.acts.acknowledge", fail)
    assert not deeds.do(wish("ack", announced(home, run), "i0004"))
    assert answers == ["Not done: the guard's daemon failed; its log says more."]
    assert "RuntimeError: out of paper" in said[0]
    assert len(said[0]) < 400


def test_an_answer_that_cannot_be_given_does_not_undo_the_deed(
    home: Home, run: RunBuilder, clock: FakeClock, said: list[str]
) -> None:
    def unreachable(at: str, text: str) -> None:
        raise Failure("retry", "connection refused")

    assert Deeds([home], clock, unreachable, said.append).do(wish("ack", announced(home, run), "i0004"))
    assert IncidentLog(read_story(run.path)).acks
    assert said == ["a person in Slack was not answered: connection refused"]


# ---- which run


def test_a_name_is_enough_where_there_is_only_one(
    deeds: Deeds, home: Home, run: RunBuilder, answers: list[str], tmp_path: Path, clock: FakeClock
) -> None:
    assert not deeds.do(wish("stop", "", command=True))
    assert answers[-1] == "Not done: no run is known here"
    id_ = announced(home, run)
    assert deeds.do(wish("stop", "", command=True))
    other = a_night(tmp_path / "other" / "exp1")
    other_id = announced(home, other)
    assert deeds.do(wish("stop", "exp1", command=True)), "only one of them runs"
    other.alive()
    assert not deeds.do(wish("stop", "exp1", command=True))
    assert f"exp1 ({id_})" in answers[-1]
    assert f"exp1 ({other_id})" in answers[-1]
    assert deeds.do(wish("stop", other_id, command=True))
    assert len(control.take(other.path, clock.time())) == 1
    assert not deeds.do(wish("stop", "exp<!channel>", command=True))
    assert len(control.take(run.path, clock.time())) == 2


def test_status(deeds: Deeds, home: Home, run: RunBuilder, answers: list[str], tmp_path: Path) -> None:
    deeds.do(wish("status", "", command=True))
    assert answers.pop() == "No such run is known here."
    run.beat(1.7e9)
    id_ = announced(home, run)
    over, gone = a_night(tmp_path / "over"), a_night(tmp_path / "gone")
    over.finished("stopped")
    over_id, gone_id = announced(home, over), announced(home, gone)
    gone.path.rename(tmp_path / "elsewhere")
    assert deeds.do(wish("status", "", command=True))
    here = socket.gethostname()
    assert sorted(answers.pop().splitlines()) == [
        f"exp1 ({id_}) on {here}: running, step 1,714, 1 open incident",
        f"gone ({gone_id}) on {here}: not reachable from here",
        f"over ({over_id}) on {here}: stopped, no open incident",
    ]
    deeds.do(wish("status", "over", command=True))
    assert len(answers.pop().splitlines()) == 1


def test_help(deeds: Deeds, answers: list[str]) -> None:
    assert deeds.do(wish("help", "", command=True))
    assert answers == [HELP]


# ---- a run on another host


@pytest.fixture
def far(home: Home, run: RunBuilder, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run that only node9 reaches; its id."""
    return announced(home, run, "node9", monkeypatch)


def test_it_is_passed_on_and_done_there(
    deeds: Deeds,
    home: Home,
    run: RunBuilder,
    far: str,
    clock: FakeClock,
    answers: list[str],
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home.announce_daemon(Daemon("watcher", "node9", "boot", 1, "1", delivers=False))
    home.announce_daemon(Daemon("d9", "node9", "boot", 1, "1"))
    assert deeds.do(wish("stop", far))
    assert answers == ["exp1: passed on to the daemon on node9, which answers here itself."]
    assert not (run.path / "control").exists()

    monkeypatch.setattr(socket, "gethostname", lambda: "node9")
    run.alive()
    there: list[tuple[str, str]] = []
    (message,) = home.forwarded("d9")
    assert Deeds([home], clock, lambda at, text: there.append((at, text)), said.append).do_forwarded(message)
    (request,) = control.take(run.path, clock.time())
    assert isinstance(request, control.Request)
    assert (request.verb, request.author) == ("stop", "U0ADA (Slack)")
    assert there == [(AT, "exp1 was asked to stop at its next step.")]


def test_what_comes_too_late_is_not_done(
    deeds: Deeds, home: Home, run: RunBuilder, far: str, clock: FakeClock, answers: list[str], monkeypatch: Any
) -> None:
    home.announce_daemon(Daemon("d9", "node9", "boot", 1, "1"))
    deeds.do(wish("stop", far))
    (message,) = home.forwarded("d9")
    monkeypatch.setattr(socket, "gethostname", lambda: "node9")
    run.alive()
    clock.advance(EXPIRY + 1)
    assert not deeds.do_forwarded(message)
    assert answers[-1] == "Not done: it came too late to this host"
    assert refusals(run)


def test_where_no_daemon_lives_the_person_hears_what_to_type(
    deeds: Deeds, run: RunBuilder, far: str, answers: list[str], said: list[str]
) -> None:
    assert not deeds.do(wish("undo", far, "i0004"))
    assert "no daemon lives there" in answers[0]
    assert answers[0].endswith(f"Type there: guard undo {run.path} i0004")
    assert len(said) == 1
    assert not list(run.path.glob("outside.*"))


def test_a_disk_that_both_see_needs_no_daemon(
    deeds: Deeds, run: RunBuilder, far: str, answers: list[str], clock: FakeClock
) -> None:
    (run.path / "run.json").write_text('{"host": "node8"}')
    assert not deeds.do(wish("stop", far)), "a run of another host at the same path here"
    (run.path / "run.json").write_text('{"host": "node9"}')
    assert deeds.do(wish("stop", far))
    assert len(control.take(run.path, clock.time())) == 1


GARBLED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "empty": lambda m: {},
    "verb": lambda m: {**m, "verb": "explode"},
    "verb type": lambda m: {**m, "verb": ["stop"]},
    "run type": lambda m: {**m, "run": 7},
    "no end": lambda m: {k: v for k, v in m.items() if k != "expires"},
    "end type": lambda m: {**m, "expires": "soon"},
    "seconds": lambda m: {**m, "seconds": None},
}


@pytest.mark.parametrize("change", GARBLED.values(), ids=GARBLED)
def test_what_was_not_passed_on_by_a_listener_is_not_done(
    change: Callable[[dict[str, Any]], dict[str, Any]],
    deeds: Deeds,
    home: Home,
    run: RunBuilder,
    clock: FakeClock,
    answers: list[str],
    said: list[str],
) -> None:
    message = {**asdict(wish("stop", announced(home, run))), "expires": clock.time() + 1}
    assert not deeds.do_forwarded(change(message))
    assert said == ["a forwarded request is not understood"]
    assert answers == []
    assert deeds.do_forwarded(message)


def test_what_is_passed_on_to_the_wrong_host_is_not_passed_on_again(
    deeds: Deeds, home: Home, far: str, clock: FakeClock, answers: list[str]
) -> None:
    home.announce_daemon(Daemon("d9", "node9", "boot", 1, "1"))
    assert not deeds.do_forwarded({**asdict(wish("stop", far)), "expires": clock.time() + 1})
    assert "does not reach" in answers[0]
    assert home.forwarded("d9") == []


def test_each_button_has_its_twin() -> None:
    assert set(TWINS) == set(BUTTONS)
