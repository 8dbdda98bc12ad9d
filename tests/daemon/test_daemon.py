"""The daemon, job by job, on a clock of its own: what it makes of runs, and what it adds to their story."""

from __future__ import annotations

import json
import os

import pytest
from daemon.theatre import Theatre

from guard.daemon.service import DaemonRunningError
from guard.home import Daemon as Presence
from guard.home import run_id
from guard.incidents import IncidentLog, read_story
from guard.process import started


def test_a_run_is_found_and_followed_to_its_end(theatre: Theatre) -> None:
    assert theatre.state() == []
    stage = theatre.run()
    theatre.go(2)
    assert theatre.state() == ["new"]
    theatre.go(10, stages=(stage,))
    assert theatre.state() == ["running"]
    stage.journal("run_finished", status="finished", summary={})
    theatre.go(1)
    assert theatre.state() == ["finished"]
    assert theatre.incidents(stage) == []
    assert not list(stage.path.glob("outside.*"))


def test_a_run_that_hangs_and_goes_on(theatre: Theatre) -> None:
    stage = theatre.run()
    theatre.go(10, stages=(stage,))
    theatre.go(40)
    assert theatre.state() == ["late"]
    assert theatre.incidents(stage) == []
    theatre.go(30)
    assert theatre.state() == ["hung"]
    assert theatre.incidents(stage) == [("hang", "exhausted")]
    (incident,) = IncidentLog(read_story(stage.path)).incidents.values()
    assert incident.evidence["rank"] == 0
    assert "has made no progress for 6" in incident.evidence["detection"]["message"]
    theatre.go(100)
    assert theatre.incidents(stage) == [("hang", "exhausted")], "told once"
    theatre.go(5, stages=(stage,))
    assert theatre.incidents(stage) == [("hang", "resolved")]
    theatre.go(3000)
    assert theatre.incidents(stage) == [("hang", "resolved"), ("hang", "exhausted")]


def test_a_run_that_dies_and_is_started_again(theatre: Theatre) -> None:
    stage = theatre.run()
    theatre.go(10, stages=(stage,))
    theatre.die(stage)
    theatre.go(4)
    assert theatre.incidents(stage) == []
    theatre.go(4)
    assert theatre.state() == ["crashed"]
    assert theatre.incidents(stage) == [("crash", "exhausted")]
    theatre.own(stage, os.getppid())
    stage.started()
    theatre.home.announce_run(stage.path, "run", world=2)
    stage.beat(5, phase="start")
    theatre.go(10, stages=(stage,))
    assert theatre.state() == ["running"]
    (incident,) = IncidentLog(read_story(stage.path)).incidents.values()
    assert (incident.status, incident.attempts[0].results[0].type) == ("ended", "restart")
    theatre.die(stage)
    theatre.go(10)
    assert theatre.incidents(stage) == [("crash", "ended"), ("crash", "exhausted")]


def test_an_exception_is_its_cause_and_a_persons_own_interrupt_is_none(theatre: Theatre) -> None:
    raised, interrupted = theatre.run("raised"), theatre.run("interrupted")
    theatre.go(10, stages=(raised, interrupted))
    raised.journal("run_finished", status="crashed", summary={}, error="ValueError: no such label")
    interrupted.journal("run_finished", status="crashed", summary={}, error="KeyboardInterrupt: ")
    theatre.go(2)
    (incident,) = IncidentLog(read_story(raised.path)).incidents.values()
    assert (incident.detector, incident.cause) == ("crash", "ValueError: no such label")
    assert theatre.incidents(interrupted) == []


def test_a_supervisor_that_lives_sees_to_its_own(theatre: Theatre) -> None:
    me = (os.getpid(), started(os.getpid()))
    stage, left = theatre.run("a", supervisor=me), theatre.run("b", supervisor=(os.getpid(), "1"))
    theatre.go(10, stages=(stage, left))
    theatre.die(stage)
    theatre.die(left)
    theatre.go(10)
    assert theatre.state() == ["crashed", "crashed"]
    assert theatre.incidents(stage) == []
    (incident,) = IncidentLog(read_story(left.path)).incidents.values()
    assert incident.evidence["restarts"] == "nobody starts it again: its guard run is gone"


def test_what_a_supervisor_has_written_down_is_not_written_again(theatre: Theatre) -> None:
    stage = theatre.run(supervisor=(os.getpid(), "1"))
    theatre.go(10, stages=(stage,))
    detection = {"message": "killed"}
    opened = {"policy": "supervisor", "detector": "crash", "severity": "critical", "detection": detection}
    stage.journal("incident_opened", incident="d0001", **opened)
    stage.journal("incident_closed", incident="d0001", status="exhausted", count=1, outcome={})
    stage.journal("run_finished", status="crashed", summary={})
    theatre.go(10)
    assert theatre.incidents(stage) == [("crash", "exhausted")]


def test_a_supervisor_that_is_killed_before_it_starts_the_run_again(theatre: Theatre) -> None:
    stage = theatre.run(supervisor=(os.getpid(), "1"))
    theatre.go(10, stages=(stage,))
    theatre.die(stage)
    opened = {"policy": "supervisor", "detector": "crash", "severity": "critical", "detection": {"message": "killed"}}
    stage.journal("incident_opened", incident="d0001", **opened)
    stage.journal("incident_evidence", incident="d0001", evidence={"restarts": "it is started again"}, cause="")
    theatre.go(10)
    assert theatre.incidents(stage) == [("crash", "firing"), ("crash", "exhausted")]
    told = IncidentLog(read_story(stage.path)).incidents.values()
    assert [i.evidence["restarts"] for i in told][1] == "nobody starts it again: its guard run is gone"


def test_a_suspended_machine_gives_grace(theatre: Theatre) -> None:
    stage = theatre.run()
    theatre.go(10, stages=(stage,))
    theatre.clock.advance(50_000)
    theatre.go(20)
    assert theatre.state() == ["running"]


def test_what_was_learned_outlives_the_daemon(theatre: Theatre) -> None:
    stage = theatre.run()
    theatre.go(10, stages=(stage,))
    theatre.go(50)
    theatre.go(2, stages=(stage,))
    theatre.daemon.tidy()
    theatre.daemons.remove(theatre.daemon)
    theatre.daemon.close(0.0)
    again = theatre.begin("state")
    theatre.go(5, stages=(stage,))
    theatre.go(400)
    assert theatre.state(again) == ["late"], "it has once been silent for 50 s"
    theatre.go(200)
    assert theatre.state(again) == ["hung"]


def test_one_daemon_a_state_directory(theatre: Theatre) -> None:
    with pytest.raises(DaemonRunningError, match="runs already"):
        theatre.begin("state")


def test_two_daemons_tell_once(theatre: Theatre) -> None:
    other = theatre.begin("elsewhere")
    stage = theatre.run()
    theatre.go(10, stages=(stage,))
    theatre.die(stage)
    theatre.go(20)
    assert theatre.incidents(stage) == [("crash", "exhausted")]
    assert theatre.state() == theatre.state(other) == ["crashed"]
    tellers = [d for d in theatre.daemons if d.tells(d.watched()[0])]
    assert len(tellers) == 1
    theatre.daemons.remove(tellers[0])
    tellers[0].close(0.0)
    theatre.go(20)
    assert theatre.daemons[0].tells(theatre.daemons[0].watched()[0])
    assert theatre.incidents(stage) == [("crash", "exhausted")]


def test_another_hosts_daemon_comes_first(theatre: Theatre) -> None:
    stage = theatre.run()
    raw = json.loads(next((theatre.home.path / "runs").glob("*.json")).read_text())
    next((theatre.home.path / "runs").glob("*.json")).unlink()
    id_ = run_id("far", str(stage.path))
    (theatre.home.path / "runs" / f"{id_}.json").write_text(json.dumps({**raw, "host": "far", "id": id_}))
    theatre.home.announce_daemon(Presence("far", "far", "x", 1, "1"))
    theatre.go(20, stages=(stage,))
    (watched,) = theatre.daemon.watched()
    assert not theatre.daemon.tells(watched)
    theatre.go(70)
    assert not theatre.daemon.tells(watched), "its process lives, and tells itself"
    owner = json.loads((stage.path / "owner.json").read_text())
    (stage.path / "owner.json").write_text(json.dumps({**owner, "host": "far", "expires": theatre.clock.now - 1}))
    theatre.go(20)
    assert watched.state == "crashed"
    assert theatre.daemon.tells(watched)
    assert theatre.incidents(stage) == [("hang", "ended"), ("crash", "exhausted")]


def test_a_damaged_story_harms_no_other(theatre: Theatre) -> None:
    bad, good = theatre.run("bad"), theatre.run("good")
    bad.journal("incident_fired", incident=7, count="x")
    with (bad.path / "journal.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\n{\n")
    (bad.path / "heartbeat.0").write_bytes(b"\xff" * 500)
    theatre.go(10, stages=(good,))
    assert theatre.state() == ["new", "running"]


def test_old_runs_are_forgotten_and_their_files_are_left(theatre: Theatre) -> None:
    stage, gone = theatre.run("over"), theatre.run("gone")
    theatre.go(5, stages=(stage, gone))
    stage.journal("run_finished", status="finished", summary={})
    for path in gone.path.iterdir():
        path.unlink()
    gone.path.rmdir()
    theatre.go(2)
    theatre.daemon.tidy()
    assert [w.run.run for w in theatre.daemon.watched()] == ["over"]
    theatre.clock.advance(31 * 86400)
    theatre.go(2)
    theatre.daemon.tidy()
    assert theatre.daemon.watched() == []
    assert list(theatre.home.runs()) == []
    assert (stage.path / "journal.jsonl").exists()


def test_a_job_that_fails_is_said_once_and_tried_again(theatre: Theatre) -> None:
    calls: list[int] = []

    def fails() -> None:
        calls.append(1)
        raise RuntimeError("xoxb-secret")

    from guard.daemon.jobs import Job

    job = Job("watch", fails, 1.0)
    for _ in range(3):
        theatre.daemon.jobs.run(job)
    assert len(calls) == job.failures == 3
    (said,) = [text for text in theatre.said if "failed" in text]
    assert said.startswith("the job watch: RuntimeError (fails, line ")
    assert "secret" not in said


def test_a_stuck_job_is_noticed(theatre: Theatre) -> None:
    for job in theatre.daemon.jobs.jobs.values():
        job.done_at = theatre.clock.monotonic()
    assert theatre.daemon.jobs.stuck() == []
    theatre.clock.advance(40)
    assert theatre.daemon.jobs.stuck() == ["roster", "watch", "tell", "listen"]
