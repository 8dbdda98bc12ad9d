from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.daemon.budget import Budget
from guard.supervised import other_restarter

STEPS = st.lists(st.none() | st.integers(0, 60), max_size=60)


@given(STEPS, st.integers(0, 4), st.integers(1, 10))
def test_it_stops_exactly_when_so_many_restarts_brought_nothing(lives, restarts, new_steps):
    budget, furthest, idle = Budget(restarts, new_steps), -1, 0
    for step in lives:
        if step is not None and step >= furthest + new_steps:
            furthest, idle = step, 0
        granted = budget.spend(step)
        assert granted == (idle < restarts)
        idle += 1
        if not granted:
            break


@given(st.integers(1, 5), st.integers(1, 50))
def test_a_run_that_gets_further_each_time_is_always_restarted(restarts, new_steps):
    budget = Budget(restarts, new_steps)
    assert all(budget.spend(step) for step in range(0, 100 * new_steps, new_steps))


@given(STEPS, st.integers(1, 4))
def test_the_number_of_restarts_is_bounded_by_progress(lives, restarts):
    budget = Budget(restarts)
    granted = sum(budget.spend(step) for step in lives)
    assert granted <= restarts * (1 + 61)


def test_a_rollback_is_no_progress():
    budget = Budget(2)
    assert [budget.spend(step) for step in (100, 60, 100, 99)] == [True, True, False, False]


def test_pauses_double_up_to_a_cap_and_are_jittered():
    budget = Budget(40)
    low, high = [], []
    for _ in range(12):
        budget.spend(None)
        low.append(budget.pause(0.0))
        high.append(budget.pause(1.0))
    assert low[:4] == [2.5, 5.0, 10.0, 20.0]
    assert high[:4] == [5.0, 10.0, 20.0, 40.0]
    assert (low[-1], high[-1]) == (150.0, 300.0)
    budget.spend(5)
    assert budget.pause(0.0) == 2.5


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("TORCHELASTIC_RUN_ID", "torchrun"),
        ("SLURM_JOB_ID", "Slurm"),
        ("KUBERNETES_SERVICE_HOST", "Kubernetes"),
        ("HOME", None),
    ],
)
def test_who_else_restarts(name, who):
    assert other_restarter({name: "x"}) == who
