"""The whole flow on a fake clock: who starts, who ends, what is said, what the journal has in the end."""

from __future__ import annotations

import signal

import pytest
from daemon.conftest import Play, Script

from guard.daemon.kernel import OutOfMemory
from guard.incidents import IncidentLog, read_journal
from guard.notify import account, story

TERM, INT, KILL, CONT = signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGCONT


def journal(stage):
    entries = read_journal(stage.path)
    assert [e["seq"] for e in entries] == list(range(len(entries)))
    return entries


def kinds(stage):
    return [e["kind"] for e in journal(stage)]


def lines(stage, log):
    return [(i.detector, i.status, story.first_line(log, i)) for i in log.incidents.values()]


def trains(stage, *ticks, phase="step", start=0.5):
    """Attaches, and makes a step a second."""
    beats = [(start + n, lambda t=t: stage.beat(t, phase=phase)) for n, t in enumerate(ticks)]
    return [(0.1, stage.started), *beats]


def test_done_is_done(stage):
    play = Play(stage, Script(do=trains(stage, 0, 1), ends=3))
    assert play.run() == 0
    assert (len(play.lives), play.said, play.lives[0].closed) == (1, [], True)
    assert kinds(stage) == ["run_started"]


def test_a_crash_is_written_down_and_the_run_started_again(stage):
    crash = Script(1, 4, trains(stage, 0, 1, 2), err=["Traceback", "ValueError: no more data"])
    play = Play(stage, crash, Script(do=trains(stage, 2, 3), ends=3))
    assert play.run() == 0
    assert len(play.lives) == 2
    assert kinds(stage) == ["run_started", "incident_opened", "incident_evidence", "attempt", "run_started"]
    log = IncidentLog(journal(stage))
    (incident,) = log.incidents.values()
    assert (incident.policy, incident.severity, incident.opened_tick) == ("supervisor", "critical", 2)
    assert incident.cause == "ValueError: no more data"
    assert incident.evidence["stderr"] == ["Traceback", "ValueError: no more data"]
    assert incident.evidence["exit"] == 1
    assert "started the run again (1 of 3 without a new step)" in account.what_was_done(incident)


@pytest.mark.parametrize(
    ("err", "cause"),
    [
        (["Traceback", "ValueError: no", "guard: said once", "guard │ Next: guard show"], "ValueError: no"),
        (
            ["[rank1]: torch.OutOfMemoryError: CUDA out of memory", "x.ChildFailedError:", "=====", "exitcode: 1"],
            "[rank1]: torch.OutOfMemoryError: CUDA out of memory",
        ),
        (["Segmentation fault"], "Segmentation fault"),
        (["guard: only this"], ""),
        ([], ""),
    ],
)
def test_the_cause_is_the_exception_and_nothing_the_guard_said(stage, err, cause):
    play = Play(stage, Script(1, 4, trains(stage, 0, 1), err=err), restarts=0)
    assert play.run() == 1
    (incident,) = IncidentLog(journal(stage)).incidents.values()
    assert incident.cause == cause
    assert not [line for line in incident.evidence.get("stderr", []) if line.startswith("guard")]


def test_three_restarts_without_a_new_step_are_enough(stage):
    play = Play(stage, Script(7, 4, trains(stage, 0, 1, 2)))
    assert play.run() == 7
    assert len(play.lives) == 4
    assert play.said[-1] == "the training process exited with code 7; GIVEN UP: 3 restarts brought no new step"
    log = IncidentLog(journal(stage))
    assert [i.status for i in log.incidents.values()][-1] == "exhausted"
    assert log.finished["status"] == "crashed"
    assert play.supervisor.gave_up


def test_progress_buys_restarts(stage):
    lives = [Script(1, 3, trains(stage, n, n + 1)) for n in range(8)]
    play = Play(stage, *lives, Script(do=trains(stage, 9)), restarts=1)
    assert play.run() == 0
    assert len(play.lives) == 9


def test_a_crash_before_it_could_attach_again_is_the_same_incident(stage):
    play = Play(stage, Script(1, 4, trains(stage, 0, 1)), Script(2, 1), restarts=2)
    assert play.run() == 2
    (incident,) = IncidentLog(journal(stage)).incidents.values()
    assert (incident.count, incident.status, incident.attempts[-1].repeats) == (3, "exhausted", 1)


def test_a_command_that_never_attached_leaves_no_directory(stage):
    play = Play(stage, Script(1, 1), restarts=1)
    assert play.run() == 1
    assert len(play.lives) == 2
    assert not stage.path.exists()


def test_pauses_grow_and_the_clock_is_the_injected_one(stage):
    play = Play(stage, Script(1, 1.0))
    play.run()
    pauses = [said for said in play.said if said.startswith("restart")]
    assert [p.rpartition("in ")[2] for p in pauses] == ["2 s", "5 s", "10 s"]


@pytest.mark.parametrize("policy", ["nan", "person"])
def test_a_stopped_run_is_76_and_not_started_again(stage, policy):
    do = [
        *trains(stage, 0, 1),
        (2.0, lambda: stage.stopped(policy)),
        (2.0, lambda: stage.journal("run_finished", status="stopped", summary={})),
    ]
    play = Play(stage, Script(1, 3, do))
    assert play.run() == 76
    assert len(play.lives) == 1
    assert "incident_evidence" not in kinds(stage)


def test_a_run_that_is_taken_away_is_not_started_again(stage):
    play = Play(stage, Script(143, 3, trains(stage, 0, 1)))
    assert play.run() == 143
    assert len(play.lives) == 1


def test_a_hang_is_seen_ended_written_down_and_started_again(stage):
    hangs = Script(ends=None, do=trains(stage, 0, 1, 2, 3), on={TERM: 143})
    play = Play(stage, hangs, Script(do=trains(stage, 3, 4), ends=3), hang_timeout=20.0)
    assert play.run() == 0
    assert play.lives[0].signals == [(TERM, False), (CONT, True)]
    assert play.looked == [[100]]
    (incident,) = IncidentLog(journal(stage)).incidents.values()
    assert incident.detector == "hang"
    assert incident.evidence["detection"]["message"].startswith("rank 0 made no progress for 2")
    assert (incident.evidence["rank"], incident.evidence["phase"]) == (0, "step")
    assert incident.evidence["stacks"] == {"pid 100": "wait_for_data (train.py:12)"}
    assert incident.evidence["detection"]["value"] <= 23


def test_one_that_does_not_hear_is_killed_with_its_family(stage):
    play = Play(stage, Script(ends=None, do=trains(stage, 0, 1, 2), leaves=4), restarts=0, hang_timeout=20.0)
    assert play.run() == 137
    assert play.lives[0].signals == [(TERM, False), (CONT, True), (KILL, True)]
    assert play.lives[0].family() == []
    log = IncidentLog(journal(stage))
    first_line = "Needs you: the run hung (rank 0, no progress for 20 s); it is not started again (--restarts 0)"
    assert lines(stage, log) == [("hang", "exhausted", first_line)]


def test_one_that_cannot_be_killed_is_given_up(stage):
    play = Play(stage, Script(ends=None, do=trains(stage, 0, 1), immortal=True), hang_timeout=20.0)
    assert play.run() == 137
    assert len(play.lives) == 1
    assert not play.lives[0].closed
    assert "cannot be ended" in play.said[-1]


def test_a_long_sleep_is_no_hang(stage):
    do = [*trains(stage, 0, 1, 2), (5.0, lambda: stage.clock.advance(36_000))]
    play = Play(stage, Script(ends=36_040.0, do=do), hang_timeout=50.0)
    assert play.run() == 0
    assert len(play.lives) == 1


def test_what_is_left_behind_is_ended_before_a_restart_and_left_alone_after_a_good_end(stage):
    crashed, good = Script(1, 1, leaves=2), Script(0, 1, leaves=2)
    play = Play(stage, crashed, good)
    assert play.run() == 0
    assert [life.left for life in play.lives] == [0, 2]
    assert play.lives[0].signals == [(TERM, True)]


@pytest.mark.parametrize("noticed", [3.05, 3.5])  # before and after the next look at the kernel's counters
def test_a_kill_for_lack_of_memory_is_named_as_such(stage, noticed):
    def kill():
        play.oom = OutOfMemory(group=1, machine=1)

    play = Play(stage, Script(-KILL, noticed, [*trains(stage, 0, 1), (3.0, kill)]), restarts=0)
    assert play.run() == 137
    (incident,) = IncidentLog(journal(stage)).incidents.values()
    assert incident.cause == "the kernel killed a process of this job for lack of memory"


def test_a_kill_for_lack_of_memory_long_ago_is_not(stage):
    play = Play(stage, Script(-KILL, 30, [*trains(stage, 0, 1)]), restarts=0)
    play._scripts[0].do.append((10.0, lambda: setattr(play, "oom", OutOfMemory(1, 1))))
    assert play.run() == 137
    assert "memory" not in play.said[0]


def test_ctrl_c_is_passed_on_once_then_term_then_kill(stage):
    play = Play(stage, Script(ends=None, do=[(2.0, lambda: play.supervisor.ask_to_end(INT))]))
    began = stage.clock.now
    assert play.run() == 137
    assert play.lives[0].signals == [(INT, True), (TERM, False), (KILL, True)]
    assert len(play.lives) == 1
    assert stage.clock.now - began < 40


def test_a_second_ctrl_c_hurries(stage):
    do = [(t, lambda: play.supervisor.ask_to_end(INT)) for t in (2.0, 2.5, 3.0)]
    play = Play(stage, Script(ends=None, do=do))
    began = stage.clock.now
    assert play.run() == 137
    assert play.lives[0].signals == [(INT, True), (TERM, False), (KILL, True)]
    assert stage.clock.now - began < 4


def test_term_goes_to_the_command_alone_and_its_code_is_ours(stage):
    play = Play(stage, Script(ends=None, on={TERM: 143}, do=[(2.0, lambda: play.supervisor.ask_to_end(TERM))]))
    assert play.run() == 143
    assert play.lives[0].signals == [(TERM, False)]
    assert "incident_opened" not in kinds(stage)


def test_a_signal_between_two_lives_ends_it_there(stage):
    play = Play(stage, Script(1, 1))
    wait = stage.clock.wait

    def wait_and_ask(event, timeout):
        if any(said.startswith("restart") for said in play.said) and not play.supervisor._asked:
            play.supervisor.ask_to_end(TERM)
        return wait(event, timeout)

    stage.clock.wait = wait_and_ask
    assert play.run() == 143
    assert len(play.lives) == 1


def test_who_restarts_is_said_where_another_does(stage):
    play = Play(stage, Script(1, 3, trains(stage, 0, 1)), restarts=0, restarter="Slurm")
    assert play.run() == 1
    (incident,) = IncidentLog(journal(stage)).incidents.values()
    assert incident.evidence["restarts"] == "Slurm may start it again; guard run does not (--restarts 0)"


def test_the_journal_of_a_live_guard_is_left_alone(stage):
    from cli.run_builder import RunBuilder

    play = Play(stage, Script(1, 3, trains(stage, 0, 1)), restarts=0)
    stage.started()
    RunBuilder.alive(stage)
    before = (stage.path / "journal.jsonl").read_bytes()
    assert play.run() == 1
    after = (stage.path / "journal.jsonl").read_bytes()
    assert [e["kind"] for e in read_journal(stage.path)] == ["run_started"] * 2
    assert after.startswith(before)
    assert "could not be journaled" in play.said[-1]


def test_it_is_told_as_repaired_once_the_run_is_back(stage):
    def back():
        stage.journal("incident_closed", incident="d0001", status="ended", count=1, outcome={})
        stage.started()

    play = Play(stage, Script(1, 4, trains(stage, 0, 1)), Script(do=[(0.5, back)], ends=2))
    assert play.run() == 0
    repaired = ("crash", "ended", "No action needed: the run crashed and was started again")
    assert lines(stage, IncidentLog(journal(stage))) == [repaired]
    stage.journal("run_finished", status="crashed", summary={})
    assert lines(stage, IncidentLog(journal(stage))) == [repaired], "and a later crash has an incident of its own"
