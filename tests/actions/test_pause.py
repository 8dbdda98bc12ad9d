"""pause: the run waits inside the step, on the guard's clock, and obeys meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import guard
from guard.clock import FakeClock
from guard.incidents.control import Request, Verb, submit

from ._small import Run, call, equal
from .conftest import Start

PAUSE = call({"type": "pause", "timeout": "1 h"})


class Night(FakeClock):
    """Time passes whenever somebody waits; at the third look, something happens."""

    def __init__(self, happens: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.happens, self.looks = happens, 0

    def wait(self, event: threading.Event, timeout: float) -> bool:
        self.looks += 1
        if self.looks == 3:
            self.happens()
        return super().wait(event, timeout)


def ask(run: Run, verb: Verb) -> Callable[[], object]:
    return lambda: submit(run.run_dir, Request(verb, "ada"))


def test_it_goes_on_by_itself(start: Start) -> None:
    run = start(PAUSE)
    run.guard.clock = night = Night()
    run.go(8, calls=[4])
    assert night.now == pytest.approx(1_700_000_000.0 + 3600)
    assert run.evidence["pause"] == {"seconds": 3600.0, "ended": "nobody resumed it in time"}
    (result,) = run.results
    assert result.summary == "paused the run, until `guard resume` or for 1 h"
    assert equal(run.weights, start().go(8).weights)  # this step's update included


def test_what_can_be_seen_meanwhile(start: Start) -> None:
    run = start(PAUSE)
    seen: list[object] = []

    def look() -> None:
        seen.append(run.guard.files._beat()[2])
        seen.extend(e["kind"] for e in run.journal[-2:])

    run.guard.clock = Night(look)
    run.go(6, calls=[4])
    assert seen == ["paused", "attempt", "memory"]
    assert run.guard.files._beat()[2] != "paused"


def test_resume(start: Start) -> None:
    run = start(PAUSE)
    run.guard.clock = night = Night(ask(run, "resume"))
    run.go(8, calls=[4])
    assert night.looks == 3
    assert run.evidence["pause"] == {"seconds": 1.5, "ended": "resumed by ada"}
    (receipt,) = [e for e in run.journal if e["kind"] == "request"]
    assert (receipt["accepted"], receipt["message"], receipt["tick"]) == (True, "the run goes on", 4)
    assert run.guard.step == 8


def test_stop(start: Start) -> None:
    run = start(PAUSE)
    run.guard.clock = night = Night(ask(run, "stop"))
    with pytest.raises(guard.TrainingStopped):
        run.go(8, calls=[4])
    assert night.looks == 3
    assert run.guard.step == 4
    assert run.evidence["pause"]["ended"] == "the run was stopped"


def test_observe_ends_it(start: Start) -> None:
    run = start(PAUSE)
    run.guard.clock = night = Night(ask(run, "observe"))
    run.go(8, calls=[4])
    assert night.looks == 3
    assert run.guard.step == 8


def test_other_requests_do_not_end_it(start: Start) -> None:
    run = start(PAUSE)
    run.guard.clock = night = Night(ask(run, "rollback"))
    run.go(8, calls=[5])
    assert night.looks > 100
    assert run.guard.tick > 8  # it did go back


def test_once_per_incident(start: Start) -> None:
    run = start(PAUSE)
    run.guard.clock = night = Night()
    run.go(12, calls=[4, 5, 6])
    assert night.now == pytest.approx(1_700_000_000.0 + 3600)
    (incident,) = run.guard.incidents
    assert incident.count == 3


def test_resume_of_a_run_that_is_not_paused_is_refused(start: Start) -> None:
    run = start(PAUSE)
    ask(run, "resume")()
    run.go(4)
    (receipt,) = [e for e in run.journal if e["kind"] == "request"]
    assert (receipt["accepted"], receipt["message"]) == (False, "the run is not paused")


def test_in_observe_mode_nothing_waits(start: Start) -> None:
    run = start(PAUSE, mode="observe")
    run.guard.clock = night = Night()
    run.go(8, calls=[4])
    assert night.looks == 0
    assert run.results[0].summary == "would pause the run until a person resumes it, for 1 h at most"
