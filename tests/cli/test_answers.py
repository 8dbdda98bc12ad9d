"""ack and silence: what people say about a run's messages, and where it is shown."""

from __future__ import annotations

import getpass
import json
import stat

import pytest

from guard.cli import _runs
from guard.clock import FakeClock
from guard.incidents import IncidentLog, read_story

ME = getpass.getuser()


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    fake = FakeClock(1_700_001_000.0)
    monkeypatch.setattr(_runs, "CLOCK", fake)
    return fake


def test_an_acknowledgement_is_kept_beside_the_journal_and_shown(guard, night, clock):
    before = (night.path / "journal.jsonl").read_bytes()
    answer = guard("ack", "runs/exp1", "i0004")
    assert (answer.code, answer.err) == (0, "")
    said = f"i0004 is acknowledged: nobody is reminded of it, and no further receiver is called ({ME})."
    assert " ".join(answer.out.split()) == said
    assert (night.path / "journal.jsonl").read_bytes() == before
    [file] = night.path.glob("outside.*.jsonl")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert IncidentLog(read_story(night.path)).acks["i0004"]["author"] == ME
    assert f"(acknowledged by {ME})" in guard("incidents", "runs/exp1").out
    assert f"  Acknowledged   by {ME}, 2023-11-14" in guard("show", "runs/exp1", "i0004").out
    assert json.loads(guard("show", "runs/exp1", "i0004", "--json").out)["acknowledged_by"] == ME
    assert guard("ack", "runs/exp1", "i0004").out == f"i0004 was acknowledged by {ME} already.\n"
    assert len(file.read_bytes().splitlines()) == 1


def test_an_unknown_incident_is_named_with_the_nearest(guard, night):
    answer = guard("ack", "runs/exp1", "i004")
    assert answer.code == 2
    assert "there is no incident 'i004' in runs/exp1; did you mean 'i0004'?" in answer.err


def test_a_silence_says_who_is_quiet_until_when(guard, night, clock):
    answer = guard("silence", "runs/exp1", "--for", "1h")
    assert answer.code == 0
    assert answer.out == (
        "All messages of the run are silenced for 60 min; the run is protected as before.\n"
        "Until 2023-11-14 23:30:00 UTC nothing new is told to out, here.\n"
    )
    line = f"Silenced until 2023-11-14 23:30:00 UTC by {ME}: the whole run."
    assert line in guard("incidents", "runs/exp1").out
    assert line in guard("status", "runs/exp1").out
    assert "  Silenced       until 2023-11-14 23:30:00 UTC" in guard("show", "runs/exp1", "i0004").out
    assert json.loads(guard("status", "runs/exp1", "--json").out)["silences"][0]["author"] == ME
    clock.advance(3601)
    assert "Silenced" not in guard("incidents", "runs/exp1").out


def test_a_silence_of_one_policy_is_lifted_by_its_name(guard, night):
    assert guard("silence", "runs/exp1", "--policy", "clip-on-explosion", "--for", "30 min").code == 0
    answer = guard("silence", "runs/exp1", "--lift")
    assert (answer.code, answer.err) == (1, "guard: nothing is silenced for the whole run\n")
    assert guard("silence", "runs/exp1", "--policy", "clip-on-explosion", "--lift").code == 0
    assert "Silenced" not in guard("incidents", "runs/exp1").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say how long (--for 1h), or --lift"),
        (["--for", "1h", "--lift"], "say how long (--for 1h), or --lift"),
        (["--for", "soon"], "--for: expected something like '30 min', got 'soon'"),
        (["--for", "0 s"], "allowed: more than 0 and at most 30 days"),
        (["--for", "40 days"], "allowed: more than 0 and at most 30 days"),
        (["--for", "1h", "--policy", "clip"], "there is no policy 'clip' in runs/exp1"),
    ],
)
def test_what_cannot_be_meant(guard, night, arguments, said):
    answer = guard("silence", "runs/exp1", *arguments)
    assert answer.code == 2
    assert said in answer.err
    assert list(night.path.glob("outside.*.jsonl")) == []


def test_a_directory_that_may_not_be_written(guard, night, monkeypatch):
    from guard.incidents import outside

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(outside.os, "open", refuse)
    answer = guard("ack", "runs/exp1", "i0004")
    assert answer.code == 1
    assert "Permission denied" in answer.err


def test_what_cannot_be_told_is_shown_with_its_reason(guard, night, monkeypatch):
    monkeypatch.setenv("GUARD_TEST_HOOK", "http://127.0.0.1:9/hook")
    assert guard("notify", "runs/exp1", "--wait", "0").code == 1
    assert "\nNot told to out: 3 messages (connection refused).\n" in guard("incidents", "runs/exp1").out
    untold = json.loads(guard("incidents", "runs/exp1", "--json").out)["untold"]
    assert {(p["receiver"], p["error"]) for p in untold} == {("out", "connection refused")}


def test_what_a_daemon_saw_is_part_of_the_story(guard, night, clock):
    from guard.incidents import outside

    outside.append(
        night.path,
        clock,
        "incident_opened",
        moment=(1900, 1880),
        incident="w0001",
        policy="watch",
        detector="hang",
        severity="critical",
        detection={"signal": "seconds", "value": 900.0, "message": "no progress for 900 s"},
        observed=False,
        attached_to=None,
        signals=[],
    )
    assert "Needs you: the run hangs" in guard("incidents", "runs/exp1").out
    assert "no progress for 900 s" in guard("show", "runs/exp1", "w0001").out.lower()
