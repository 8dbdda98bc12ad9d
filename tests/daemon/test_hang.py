from __future__ import annotations

import math

import pytest

from guard.daemon.beats import Beat
from guard.daemon.hang import HangJudge


class Watched:
    """A judge, and a run of some ranks that it looks at once a second."""

    def __init__(self, judge: HangJudge | None = None) -> None:
        self.judge, self.now, self.beats = judge or HangJudge(), 0.0, {}
        self.judge.begin()

    def beat(self, tick: int, phase: str = "step", rank: int = 0) -> Watched:
        self.beats[rank] = Beat(rank, tick, tick, phase)
        self.judge.look(self.beats, self.now)
        return self

    def steps(self, count: int, every: float, first: int = 1) -> Watched:
        for tick in range(first, first + count):
            for rank in self.beats or {0: None}:
                self.beats[rank] = Beat(rank, tick, tick, "step")
            assert self.silent(every) is None
        return self

    def silent(self, seconds: float):
        """The first hang that is seen in that time."""
        for _ in range(int(seconds)):
            if hang := self.judge.look(self.beats, self.now):
                return hang
            self.now += 1
        return self.judge.look(self.beats, self.now)


def test_silence_beyond_the_floor_is_a_hang_and_names_rank_phase_and_seconds():
    run = Watched().beat(0, "start").steps(10, 1)
    hang = run.silent(100)
    assert (hang.rank, hang.tick, hang.phase, hang.seconds, hang.limit) == (0, 10, "step", 61, 60)


def test_slow_but_steady_is_no_hang():
    Watched().beat(0, "start").steps(5, 2).steps(10, 55, first=6)


def test_what_was_usual_is_waited_for_ten_times():
    run = Watched().beat(0, "start").steps(10, 30)
    assert run.silent(270) is None
    assert run.silent(10).limit == 300


@pytest.mark.parametrize(("phase", "limit"), [("eval", 600), ("checkpoint", 600), ("start", 600), ("data", 60)])
def test_each_phase_has_its_floor(phase, limit):
    run = Watched().beat(0, "start").steps(5, 1).beat(5, phase)
    assert run.silent(limit) is None
    assert run.silent(2).phase == phase


def test_a_long_evaluation_does_not_make_steps_slow():
    run = Watched().beat(0, "start").steps(5, 1).beat(5, "eval")
    assert run.silent(500) is None
    run.steps(5, 1, first=6)
    assert run.judge.limit("eval") == 5000
    assert run.silent(70).limit == 60


def test_the_first_step_has_a_floor_of_its_own():
    run = Watched().beat(0, "start").beat(0, "step")
    assert run.silent(590) is None
    run.steps(5, 1)
    assert run.judge.limit("step") == 60
    assert run.silent(70) is not None


def test_steps_that_each_take_longer_than_the_floor():
    run = Watched().beat(0, "start").beat(0).steps(1, 90).steps(3, 90, first=2)
    assert run.judge.limit("step") == 900


def test_one_that_stops_right_after_its_first_steps():
    run = Watched().beat(0, "start").steps(1, 1).steps(1, 1, first=12)
    assert run.silent(100).limit == 60


def test_a_paused_run_waits_for_a_person_for_ever():
    assert Watched().beat(0, "start").steps(3, 1).beat(3, "paused").silent(100_000) is None


def test_what_comes_after_the_run_is_the_scripts_own():
    assert Watched().beat(0, "start").steps(3, 1).beat(3, "end").silent(100_000) is None


def test_nothing_is_judged_before_the_first_heartbeat():
    assert Watched().silent(100_000) is None


def test_a_supervisor_that_slept_gives_fresh_grace():
    run = Watched().beat(0, "start").steps(5, 1)
    assert run.silent(50) is None
    run.now += 8 * 3600
    run.judge.forgive(run.now)
    assert run.silent(60) is None
    assert run.judge.limit("step") == 60, "the sleep is no pause of the run's"
    assert run.silent(3) is not None


def test_an_own_limit_holds_in_every_phase_but_paused():
    run = Watched(HangJudge(5.0)).beat(0, "start")
    assert run.silent(10).limit == 5
    assert Watched(HangJudge(5.0)).beat(0, "paused").silent(100) is None
    assert Watched(HangJudge(math.inf)).beat(0, "start").steps(3, 1).silent(10_000) is None


def test_what_was_learned_outlives_a_restart():
    run = Watched().beat(0, "start").steps(5, 30)
    again = Watched(run.judge)
    assert again.judge.limit("step") == 300
    assert again.silent(10_000) is None, "the ranks of the life before are gone"


def test_the_rank_that_is_waited_for_is_named():
    run = Watched().beat(0, "start", 0).beat(0, "start", 1).beat(0, "start", 2).steps(5, 1)
    run.beat(6, rank=0).beat(6, rank=2)  # rank 1 never comes to step 6
    hang = run.silent(100)
    assert (hang.rank, hang.tick, hang.others) == (1, 5, 2)


def test_of_ranks_at_one_step_the_first_to_fall_silent_is_named():
    run = Watched().beat(0, "start", 0).beat(0, "start", 1).steps(5, 1).beat(5, "data", rank=1)
    run.now += 2
    assert run.beat(5, "data", rank=0).silent(100).rank == 1


def test_ranks_that_wait_for_an_evaluation_do_not_hang():
    run = Watched().beat(0, "start", 0).beat(0, "start", 1).steps(5, 1).beat(5, "eval", rank=0)
    assert run.silent(590) is None
    assert run.silent(20).rank in (0, 1)


def test_a_rank_that_is_gone_is_not_waited_for():
    run = Watched().beat(0, "start", 0).beat(0, "start", 1).steps(5, 1)
    del run.beats[1]
    run.steps(100, 1, first=6)
    assert run.silent(100).others == 0
