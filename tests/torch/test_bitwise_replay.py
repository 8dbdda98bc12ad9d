"""After a fault that happens once and a rollback with replay, the run ends as if the fault had never happened."""

from __future__ import annotations

import pytest
from _runs import BACK_AND_REPLAY, OPTIMIZERS, Faults, Setup, differences, policies, policy, train, unguarded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FULL = Setup(batch_norm=True, ema="module", source="shuffled")
LAST = Setup().steps - 1
KINDS = ["weight", "gradient", "input", "update", "buffer"]


def assert_no_trace(setup: Setup, *faults: tuple[str, int]) -> None:
    outcome = train(setup, BACK_AND_REPLAY, Faults(*faults))
    assert 1 <= outcome.rollbacks <= len(faults)  # one rollback undoes two faults that show in the same tick
    assert differences(outcome.state, unguarded(setup)) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [0, 1, 17, LAST])
def test_every_fault_at_the_start_within_and_at_the_end(kind: str, step: int) -> None:
    assert_no_trace(FULL, (kind, step))


@pytest.mark.parametrize("step", [24, LAST])
def test_weight_that_is_wrong_but_finite_shows_as_a_loss_spike(step: int) -> None:
    assert_no_trace(Setup(ema="dict"), ("drift", step))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["update", "input"])
def test_optimizers(name: str, kind: str) -> None:
    assert_no_trace(Setup(optimizer=name), (kind, 0), (kind, 17))


@pytest.mark.parametrize(
    "setup",
    [
        Setup(dropout=False, scheduler="none"),
        Setup(dropout=True, scheduler="none"),
        Setup(batch_norm=True),
        Setup(scheduler="lambda"),
        Setup(scheduler="cosine"),
        Setup(scheduler="plateau"),
        Setup(ema="module", batch_norm=True),
        Setup(ema="dict"),
        Setup(optimizer="tensor_lr"),
        Setup(optimizer="fused"),
        Setup(accumulate=2),
        Setup(accumulate=3, source="shuffled", batch_norm=True, ema="dict"),
        Setup(fp16=True),
        Setup(fp16=True, accumulate=2, batch_norm=True, ema="module"),
        Setup(fp16=True, optimizer="fused"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["input", "update", "weight"])
def test_parts_of_a_training_script(setup: Setup, kind: str) -> None:
    assert_no_trace(setup, (kind, 13))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("source", ["callable", "shuffled", "generator", "augmented", "epochs", "workers"])
def test_data_sources_over_several_passes(source: str, accumulate: int) -> None:
    """10 batches are a pass: the faults lie in the first pass, at a border, and after it."""
    steps = 14 if source == "workers" else 30
    assert_no_trace(
        Setup(source=source, accumulate=accumulate, steps=steps), ("gradient", 3), ("update", 9), ("input", 10)
    )


def test_several_faults_in_one_run() -> None:
    assert_no_trace(
        FULL, ("update", 2), ("input", 3), ("gradient", 9), ("weight", 9 + 4), ("buffer", 21), ("update", 28)
    )


def test_fault_on_the_way_back() -> None:
    """A second fault hits while the first one's batches are replayed: it is one of an earlier step."""
    assert_no_trace(FULL, ("gradient", 15), ("input", 16), ("update", 16))


@given(
    setup=st.builds(
        Setup,
        optimizer=st.sampled_from(OPTIMIZERS),
        dropout=st.booleans(),
        batch_norm=st.booleans(),
        scheduler=st.sampled_from(["none", "lambda", "onecycle", "plateau"]),
        ema=st.sampled_from(["none", "module", "dict"]),
        fp16=st.booleans(),
        accumulate=st.sampled_from([1, 2]),
        source=st.sampled_from(["callable", "shuffled", "generator", "augmented"]),
        steps=st.sampled_from([9, 20]),
    ),
    data=st.data(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_combination(setup: Setup, data: st.DataObject) -> None:
    kinds = ["weight", "input", "update"]
    kinds += [] if setup.fp16 else ["gradient"]  # under a GradScaler a NaN gradient is an ordinary overflow
    kinds += ["buffer"] if setup.batch_norm else []
    faults = data.draw(
        st.lists(
            st.tuples(st.sampled_from(kinds), st.integers(0, setup.steps - 1)),
            min_size=1,
            max_size=3,
            unique_by=lambda fault: fault[1],
        )
    )
    assert_no_trace(setup, *faults)


def test_the_comparison_would_see_a_trace() -> None:
    """Leaving the faulty step out instead of going back is not the same run."""
    skip = policies(policy("non_finite", [{"type": "skip_step"}]))
    outcome = train(FULL, skip, Faults(("gradient", 17)))
    assert {"/model/0.weight", "/ema/module.0.weight"} <= set(differences(outcome.state, unguarded(FULL)))
