"""Crashes and hangs, which only those outside can see: what the person woken reads first, and the evidence kept."""

from __future__ import annotations

import pytest

from guard.incidents import IncidentLog, read_story
from guard.notify import evidence, lifecycle, render, story

NOBODY = "nobody starts it again"
GONE = "nobody starts it again: its guard run is gone"
SLURM = "Slurm may start it again"
HANG = "(rank 3, no progress for 12 min)"


def again(night):
    night.clock.advance(60)
    night.started()


STORIES = {
    "watched hang": (lambda n: n.watched(), f"Needs you: the run hangs {HANG}; {NOBODY}"),
    "its guard run is gone": (lambda n: n.watched(restarts=GONE), f"Needs you: the run hangs {HANG}; {GONE}"),
    "watched crash": (lambda n: n.watched(detector="crash"), f"Needs you: the run crashed; {NOBODY}"),
    "another may restart": (
        lambda n: n.watched(detector="crash", restarts=SLURM),
        f"Needs you: the run crashed; {SLURM}",
    ),
    "crash with its exception": (
        lambda n: (n.finished("crashed"), n.watched(detector="crash")),
        f"Needs you: the run crashed; {NOBODY}",
    ),
    "goes on": (
        lambda n: (n.watched(), n.goes_on()),
        "No action needed: the run hung and went on by itself",
    ),
    "hung, then gone": (
        lambda n: (n.watched(), n.goes_on(status="ended")),
        "Over: the run hung, and has ended since",
    ),
    "crash, begun again": (
        lambda n: (n.watched(detector="crash"), again(n)),
        "No action needed: the run crashed and was started again since",
    ),
    "hang, begun again, and the daemon knows": (
        lambda n: (n.watched(), again(n), n.somebody_restarted()),
        "No action needed: the run hung and was started again",
    ),
    "supervised crash": (lambda n: n.supervised(), "Working on it: the run crashed; it is started again"),
    "supervised hang": (lambda n: n.supervised("hang"), f"Working on it: the run hung {HANG}; it is started again"),
    "supervised crash with its exception": (
        lambda n: (n.finished("crashed"), n.supervised()),
        "Working on it: the run crashed; it is started again",
    ),
    "restarted": (
        lambda n: (n.supervised(), n.supervisor_restarts()),
        "Working on it: started the run again (1 of 3 without a new step), now checking that it helps",
    ),
    "restart helped": (
        lambda n: (n.supervised(), n.supervisor_restarts(), again(n), n.closed("d0001", "ended")),
        "No action needed: the run crashed and was started again",
    ),
    "given up": (
        lambda n: (n.supervised(restarts="GIVEN UP: 3 restarts brought no new step"), n.given_up()),
        "Needs you: the run crashed; given up: 3 restarts brought no new step",
    ),
    "no restarts wanted": (
        lambda n: (n.supervised("hang", restarts="it is not started again (--restarts 0)"), n.given_up()),
        f"Needs you: the run hung {HANG}; it is not started again (--restarts 0)",
    ),
    "given up, begun again": (
        lambda n: (n.supervised(restarts="GIVEN UP: 3 restarts brought no new step"), n.given_up(), again(n)),
        "No action needed: the run crashed and was started again since",
    ),
}


def read(night):
    return IncidentLog(read_story(night.run_dir))


def latest(log):
    return next(reversed(log.incidents.values()))


@pytest.mark.parametrize(("tell", "line"), STORIES.values(), ids=STORIES)
def test_the_first_line_says_what_happened_and_who_sees_to_it(night, slack, courier, deliver, spec, tell, line):
    tell(night)
    log = read(night)
    incident = latest(log)
    assert story.first_line(log, incident) == line
    assert len(line) <= 120
    assert story.needs_person(log, incident) == line.startswith("Needs you")
    shown = render.to_terminal(render.root(log, incident))
    assert "NaN" not in shown, "there is no number where nothing was measured"
    assert "None" not in shown
    deliver(courier())
    calls = [m for m in slack.live if "<@U012>" in m["text"]]
    assert len(calls) == line.startswith("Needs you"), "one call, or none"


@pytest.mark.parametrize("tell", [STORIES["watched crash"][0], STORIES["given up"][0]], ids=["watch", "supervisor"])
def test_a_death_is_told_by_one_incident(night, slack, courier, deliver, spec, tell):
    night.opened("a1")
    night.attempt("a1")
    c = courier(spec)
    deliver(c)
    tell(night)
    deliver(c)
    log = read(night)
    assert story.first_line(log, log.incidents["a1"]) == "Run over before a verdict: NaN or Inf in loss or gradients"
    assert len([m for m in slack.live if "<@U012>" in m["text"]]) == 1
    first, second = slack.roots()
    assert "Run over" in first["text"]
    assert "Needs you: the run crashed" in second["text"]
    again(night)
    assert story.first_line(read(night), latest(read(night))).startswith("No action needed")
    assert story.stage(read(night), read(night).incidents["a1"]) == ("verifying")


@pytest.mark.parametrize(("restarts", "wakes"), [("it is started again", 0), ("it is not started again", 1)])
def test_what_guard_run_repairs_does_not_wake_through_the_runs_own_message(night, restarts, wakes):
    night.finished("crashed")
    night.supervised(restarts=restarts)
    if wakes:
        night.closed("d0001", "exhausted")
    log = read(night)
    message = lifecycle.Run(log).message()
    assert not any(r.broadcast for r in lifecycle.Run(log).replies()), "the incident wakes"
    assert message.first_line == story.first_line(log, log.incidents["d0001"])


def test_nobody_can_press_what_a_dead_run_would_have_to_do(night):
    night.opened("a1")
    night.watched(detector="crash")
    log = read(night)
    for incident in log.incidents.values():
        (actions,) = [b for b in render.root(log, incident, listening=True).blocks if b["type"] == "actions"] or [{}]
        verbs = {e["action_id"] for e in actions.get("elements", [])}
        assert verbs <= {"guard:ack", "guard:silence"}


def test_the_report_shows_stacks_last_lines_and_how_it_ended_and_no_end_of_them(night):
    stacks = {
        f"rank {i}, pid {4711 + i}": "State: S (sleeping)\n" + "    forward (model.py:88)\n" * 500 for i in range(12)
    }
    err = [
        "Traceback (most recent call last):",
        '  File "train.py", line 7',
        "    ```",
        "\x1b[31mValueError: no <label>\x1b[0m",
    ]
    night.supervised("hang", exit=-9, stderr=["early"] * 300 + err, stdout=["x" * 5_000_000], stacks=stacks)
    text = evidence.report(read(night), "d0001")
    assert "killed by signal 9, after 3 h 3 min" in text
    assert '\n  File "train.py", line 7\n' in text, "indented as it was"
    assert "ValueError: no <label>\n" in text
    assert "… 284 lines before these …" in text
    assert "Stacks of rank 7, pid 4718" in text
    assert "of 4 other processes" in text
    assert "\x1b" not in text
    assert len(text) < 30_000
    fences = [line for line in text.splitlines() if line.startswith("```")]
    assert len(fences) % 2 == 0, "what it quotes does not end the quotation"
