"""What a supervisor makes of what one before it has left behind, on a fake clock."""

from __future__ import annotations

import pytest
from daemon.conftest import Play, Script

from guard.daemon.child import UNKNOWN
from guard.daemon.custody import Ward
from guard.incidents import IncidentLog, outside, read_journal
from guard.incidents.journal import NAME


def former(stage):
    """A life before the one that is taken over: its lines are no news."""
    stage.started()
    stage.journal("run_finished", status="finished", summary={})


def faults(stage):
    return [e["kind"] for e in read_journal(stage.path) if e.get("incident", "").startswith("d")]


def left(stage, *scripts, spent=0, best=-1, restarts=3, gone=False, offset=None):
    """A supervisor that finds the first of the scripts at work, or ended."""
    size = (stage.path / NAME).stat().st_size if stage.path.exists() else 0
    ward = Ward(began=stage.clock.now, spent=spent, best=best, offset=size if offset is None else offset)
    play = Play(stage, *scripts, restarts=restarts)
    child = play._start("")
    if gone:
        stage.clock.advance(30)
        child.poll()
    play.take_over(ward, child)
    return play


def finished(stage):
    stage.journal("run_finished", tick=9, status="finished", summary={})


def test_it_is_watched_to_its_end_which_the_journal_tells(stage):
    former(stage)
    do = [(0.5, stage.started), (1, lambda: stage.beat(9)), (3, lambda: finished(stage))]
    play = left(stage, Script(UNKNOWN, 4, do))
    assert play.run() == 0
    assert len(play.lives) == 1
    assert play.said == ["its guard run was killed, process 100 was not: this one watches it from now on"]
    assert play.lives[0].closed


def test_one_that_ends_without_a_word_has_crashed_and_is_started_again(stage):
    former(stage)
    play = left(stage, Script(UNKNOWN, 4, [(0.5, stage.started), (1, lambda: stage.beat(9))]), Script(ends=3))
    assert play.run() == 0
    assert len(play.lives) == 2
    assert play.said[1] == "the training process is gone, its exit code not known; it is started again"
    assert faults(stage) == ["incident_opened", "incident_evidence", "attempt"]


def test_the_budget_is_the_one_that_was_left(stage):
    stage.started()
    play = left(stage, Script(UNKNOWN, 4, [(1, lambda: stage.beat(9))]), Script(5, 1), spent=2, best=9)
    assert play.run() == 5
    assert len(play.lives) == 2, "two had been spent, and step 9 is no progress"
    assert "GIVEN UP" in play.said[-1]


def test_hangs_are_seen_as_in_one_of_its_own(stage):
    do = [(0.5, lambda: stage.beat(9)), (2, lambda: stage.beat(10)), (3, lambda: stage.beat(11))]
    stage.started()
    play = left(stage, Script(UNKNOWN, None, do, on={15: UNKNOWN}), Script(ends=3))
    assert play.run() == 0
    assert "rank 0 made no progress for 6" in play.said[2]
    assert play.looked == [[100]]


def test_what_ended_while_nobody_watched_is_judged_once(stage):
    stage.started()
    play = left(stage, Script(UNKNOWN, 4, [(1, lambda: stage.beat(9))]), Script(ends=3), gone=True)
    assert play.run() == 0
    assert faults(stage) == ["incident_opened", "incident_evidence", "attempt"]
    assert len(play.lives) == 2


@pytest.mark.parametrize("restarts", [0, 3])
def test_a_fault_that_the_one_before_had_written_down_is_not_told_again(stage, restarts):
    first = Play(stage, Script(1, 4, [(0.1, stage.started), (1, lambda: stage.beat(9))]), restarts=0)
    assert first.run() == 1
    before = faults(stage)
    play = left(stage, Script(UNKNOWN, 0), Script(ends=3), gone=True, offset=0, restarts=restarts)
    assert play.run() == 0
    assert len(play.lives) == 2
    assert faults(stage) == before
    (incident,) = IncidentLog(read_journal(stage.path)).incidents.values()
    assert incident.count == 1


def test_a_crash_that_a_daemon_has_told_of_meanwhile_is_not_told_again(stage):
    stage.started()
    stage.clock.advance(60)
    detection = {"message": "the training process is gone"}
    keys = {"policy": "watch", "detector": "crash", "severity": "critical", "detection": detection}
    outside.append(stage.path, stage.clock, "incident_opened", incident="w1", **keys)
    play = left(stage, Script(UNKNOWN, 0), Script(ends=3), gone=True, offset=0)
    assert play.run() == 0
    assert len(play.lives) == 2
    assert faults(stage) == []


def test_a_run_that_came_to_its_end_while_nobody_watched_is_not_started_again(stage):
    stage.started()
    play = left(stage, Script(UNKNOWN, 4, [(1, lambda: finished(stage))]), gone=True)
    assert play.run() == 0
    assert len(play.lives) == 1
    assert "came to its end" in play.said[0]


def test_one_that_was_stopped_while_nobody_watched_stays_stopped(stage):
    stage.started()
    play = left(stage, Script(UNKNOWN, 4, [(1, stage.stopped)]), gone=True)
    stage.journal("run_finished", status="stopped", summary={})
    assert play.run() == 76
    assert len(play.lives) == 1


@pytest.mark.parametrize("status", ["preempted", "reopened", "KeyboardInterrupt"])
def test_what_only_a_person_or_a_scheduler_starts_again_they_have(stage, status):
    stage.started()
    play = left(stage, Script(UNKNOWN, 4, [(1, lambda: stage.beat(9))]), Script(ends=3), gone=True)
    match status:
        case "KeyboardInterrupt":
            stage.journal("run_finished", status="crashed", error="KeyboardInterrupt: ", summary={})
        case "preempted":
            stage.journal("run_finished", status="preempted", summary={})
        case "reopened":
            stage.stopped()
            stage.journal("run_finished", status="stopped", summary={})
            stage.journal("reopened", author="ada")
    assert play.run() == 0
    assert len(play.lives) == 2
    assert faults(stage) == []


def test_where_another_restarts_the_run_it_just_has(stage):
    stage.started()
    play = left(stage, Script(UNKNOWN, 4, [(1, lambda: stage.beat(9))]), Script(ends=3), gone=True, restarts=0)
    assert play.run() == 0
    assert len(play.lives) == 2
    (incident,) = IncidentLog(read_journal(stage.path)).incidents.values()
    assert incident.attempts[0].results[0].summary == "started the run again"


def test_what_is_known_of_a_life_is_written_down_before_it_begins(stage):
    play = Play(stage, Script(1, 4, [(0.1, stage.started), (1, lambda: stage.beat(9))]), Script(ends=3))
    assert play.run() == 0
    begins = [n for n in play.notes if "token" in n]
    assert [(n["child"], n["spent"], n["best"]) for n in begins] == [(None, 0, -1), (None, 1, 9)]
    assert begins[0]["offset"] == 0 < begins[1]["offset"]
    assert [n["child"] for n in play.notes if n.get("child")] == [(100, "1"), (200, "1")]
