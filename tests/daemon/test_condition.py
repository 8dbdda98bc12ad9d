"""How a run is, from outside: the states, and that no order of events leads to one that is not so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from guard.daemon.beats import Beat
from guard.daemon.condition import OVER, STATES, Condition, Seen
from guard.daemon.hang import HangJudge


class Run:
    """A condition, and the run that it is of."""

    def __init__(self) -> None:
        self.condition, self.now = Condition(HangJudge()), 1000.0
        self.life, self.said, self.alive = "a", None, True
        self.beat = Beat(0, 0, 0, "start")

    def look(self, seconds: float = 1.0) -> str:
        self.now += seconds
        self.condition.look(Seen(self.life, {0: self.beat}, self.said, self.alive), self.now)
        return self.condition.state

    def step(self, seconds: float = 1.0, phase: str = "step") -> str:
        self.beat = Beat(0, self.beat.tick + 1, self.beat.step + 1, phase)
        return self.look(seconds)


def test_a_day() -> None:
    run = Run()
    assert run.look() == "new"
    assert [run.step() for _ in range(3)] == ["running"] * 3
    assert run.look(20) == "running"
    assert run.look(15) == "late"
    assert run.step() == "running"
    assert run.look(400) == "hung", "ten times the longest pause (35 s) is over"
    assert run.condition.hang is not None
    assert run.condition.hang.step == 4
    assert run.step() == "running"
    run.said = "finished"
    assert run.look() == "finished"


def test_gone_without_a_word() -> None:
    run = Run()
    run.step()
    run.alive = False
    assert [run.look(2) for _ in range(3)] == ["running", "running", "running"]
    assert run.look(2) == "crashed"
    assert run.look(2) == "crashed"
    run.life, run.alive, run.beat = "b", True, Beat(0, 2, 2, "start")
    assert run.look() == "new"
    assert run.step() == "running"


def test_a_short_absence_is_none() -> None:
    run = Run()
    run.step()
    for _ in range(5):
        run.alive = False
        assert run.look(3) == "running"
        run.alive = True
        assert run.look(3) == "running"


def test_grace_after_sleep() -> None:
    run = Run()
    run.step()
    run.step()
    run.now += 10_000
    run.condition.forgive(run.now)
    assert run.look() == "running"
    run.alive = False
    run.look()
    run.now += 10_000
    run.condition.forgive(run.now)
    assert run.look() == "running"


def test_how_its_journal_calls_its_end() -> None:
    for said, state in (
        ("finished", "finished"),
        ("stopped", "stopped"),
        ("preempted", "stopped"),
        ("reopened", "stopped"),
        ("crashed", "crashed"),
        ("of a later version", "finished"),
    ):
        run = Run()
        run.said = said
        assert run.look() == state


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["step", "silence", "eval", "die", "appear", "finish", "crash", "resume", "sleep"]),
        st.floats(0.1, 2000.0),
    ),
    max_size=40,
)


@given(_EVENTS)
def test_whatever_happens(events: list[tuple[str, float]]) -> None:
    run = Run()
    gone = 0.0
    for what, seconds in events:
        before, hung = run.condition.state, run.condition.state == "hung"
        match what:
            case "die" | "appear":
                run.alive = what == "appear"
            case "finish" | "crash":
                run.said = "finished" if what == "finish" else "crashed"
            case "resume":
                run.life, run.said, run.alive = run.life + "'", None, True
            case "sleep":
                run.now += seconds
                run.condition.forgive(run.now)
        progress = what in ("step", "eval")
        state = run.step(seconds, "eval" if what == "eval" else "step") if progress else run.look(seconds)
        gone = 0.0 if run.alive else gone + seconds
        assert state in STATES
        if run.said is not None:
            assert state in OVER
        elif run.alive:
            assert state not in OVER
            assert not (progress and state in ("hung", "late")), "what makes progress is not hung"
        if state == "hung" and not hung:
            assert run.condition.hang is not None
            assert run.condition.hang.seconds > run.condition.hang.limit >= 60.0
        if state == "crashed" and run.said is None:
            assert gone >= 5.0 or before == "crashed"
