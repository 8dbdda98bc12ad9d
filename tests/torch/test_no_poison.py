"""Whatever goes wrong, once or every time its data comes: no NaN or Inf is left in the state, and the run ends."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from _runs import OPTIMIZERS, Faults, Parts, Setup, policies, policy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import guard

# Torch's own, when a GradScaler leaves out the first step.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")

SETUPS = st.builds(
    Setup,
    optimizer=st.sampled_from(OPTIMIZERS),
    batch_norm=st.booleans(),
    ema=st.sampled_from(["none", "module", "dict"]),
    fp16=st.booleans(),
    accumulate=st.sampled_from([1, 2]),
    source=st.sampled_from(["callable", "shuffled"]),
    steps=st.sampled_from([7, 24]),
)
SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
EAGER = {"every": 3, "probation": 1}
SKIP, BACK, OFFENDING, WINDOW, ADVANCE = (
    {"type": "skip_step"},
    {"type": "rollback"},
    {"type": "rollback", "data": "skip_offending"},
    {"type": "rollback", "to": "previous", "data": "skip_window"},
    {"type": "rollback", "data": "advance"},
)
REMEDIES: list[Any] = [  # can undo what is in the state already
    "default",
    policies(policy("non_finite", [BACK], [OFFENDING], [WINDOW], [WINDOW], [WINDOW], [WINDOW]), **EAGER),
    policies(policy("non_finite", [OFFENDING]), policy("loss_spike", [WINDOW], limits={"max": 3}), **EAGER),
    policies(policy("non_finite", [ADVANCE], limits={"max": 100}), **EAGER),
]
SHIELDS: list[Any] = [  # can only keep things out
    policies(**EAGER),
    policies(policy("non_finite", [SKIP]), policy("loss_spike", [SKIP]), **EAGER),
    policies(policy("non_finite", [SKIP], limits={"max": 1}), **EAGER),
    policies(policy("non_finite", [BACK], limits={"max": 1}), **EAGER),
    policies(policy("non_finite", [SKIP], mode="observe"), **EAGER),
    policies(policy("non_finite", []), **EAGER),
]


def nonfinite(state: dict[str, Any]) -> list[str]:
    return [
        k for k, v in state.items() if isinstance(v, torch.Tensor) and v.is_floating_point() and not v.isfinite().all()
    ]


def run(setup: Setup, chosen: Any, faults: Faults, bad: set[int], *, one_line: bool) -> tuple[Parts, guard.Guard, str]:
    """`bad`: micro-batches that are NaN whenever they are read."""
    parts = Parts(setup)
    how = "finished"
    with parts.attached(chosen) as g:
        faults.join(parts, g)
        source = parts.source if setup.source == "callable" else list(parts.source) * 9

        def read(index: int) -> Any:
            x, y = source(index) if callable(source) else source[index % len(source)]
            return (x * math.nan if index in bad else x), y

        count = setup.steps * setup.accumulate
        batches = map(read, range(count)) if one_line else g.batches(read, setup.steps, setup.accumulate)
        try:
            for number, batch in enumerate(batches, 1):
                loss = parts.forward(faults.on_batch(batch), g.autocast)
                parts.backward(loss) if one_line else g.backward(loss)
                faults.after_backward()
                if number % setup.accumulate == 0:
                    parts.update(loss)
        except guard.TrainingStopped:
            how = "stopped"
        faults.leave()
        if not one_line and how == "finished":
            assert g.step == setup.steps
    return parts, g, how


BAD = st.sets(st.integers(0, 40), max_size=4)


def faults_of(*kinds: str) -> Any:
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 23)), max_size=3)


def assert_sound(parts: Parts, g: guard.Guard) -> None:
    assert nonfinite(parts.state()) == []
    assert [i for i in g.incidents if i.detector == "plugin_failure"] == []
    assert all(i.ended for i in g.incidents)


@given(
    setup=SETUPS,
    chosen=st.sampled_from(REMEDIES),
    faults=faults_of("weight", "input", "update", "gradient", "drift"),
    bad=BAD,
    one_line=st.booleans(),
)
@SETTINGS
def test_remedies(setup: Setup, chosen: Any, faults: list[tuple[str, int]], bad: set[int], one_line: bool) -> None:
    parts, g, _ = run(setup, chosen, Faults(*faults), bad, one_line=one_line)
    assert_sound(parts, g)


@given(
    setup=SETUPS,
    chosen=st.sampled_from(SHIELDS),
    faults=faults_of("input", "gradient"),
    bad=BAD,
    one_line=st.booleans(),
)
@SETTINGS
def test_shields(setup: Setup, chosen: Any, faults: list[tuple[str, int]], bad: set[int], one_line: bool) -> None:
    parts, g, how = run(setup, chosen, Faults(*faults), bad, one_line=one_line)
    assert how == "finished"
    assert_sound(parts, g)


def test_scaler_and_a_bad_batch_without_remedies() -> None:
    """The scaler leaves the step out, the guard puts the running statistics back."""
    setup = Setup(fp16=True, batch_norm=True, steps=7)
    parts, g, _ = run(setup, SHIELDS[3], Faults(), {0}, one_line=False)
    assert_sound(parts, g)
