"""After a fault that happens once and a rollback with replay, the run ends as if the fault had never happened."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from _runs import (
    BACK_AND_REPLAY,
    FEATURES,
    OPTIMIZERS,
    Faults,
    Parts,
    Setup,
    differences,
    flatten,
    guarded,
    make_model,
    make_source,
    mse_loss,
    policies,
    policy,
    rng_state,
    seed_everything,
    train,
    unguarded,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

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
        Setup(scheduler="sequential"),
        Setup(scheduler="cyclic"),
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


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("bad", [[0], [13], [29], [4, 5, 17]], ids=str)
def test_windows_left_out_leave_nothing_but_their_absence(bad: list[int], accumulate: int) -> None:
    """A batch that is NaN whenever it is read: the run ends as if the data had never held its window."""
    setup = Setup(batch_norm=True, ema="module", accumulate=accumulate)

    def parts_of(source: Callable[[int], Any], steps: int, chosen: Any) -> dict[str, Any]:
        parts = Parts(setup)
        with parts.attached(chosen) as g:
            for number, batch in enumerate(g.batches(source, steps, accumulate), 1):
                loss = parts.forward(batch)
                g.backward(loss)
                if number % accumulate == 0:
                    parts.update(loss)
        return parts.state()

    data = make_source("callable")

    def faulty(index: int) -> Any:
        x, y = data(index)
        return (x * math.nan if index // accumulate in bad else x), y

    good = [i for i in range(setup.steps * accumulate) if i // accumulate not in bad]
    clean = parts_of(lambda index: data(good[index]), setup.steps - len(bad), BACK_AND_REPLAY)
    offending = {"type": "rollback", "data": "skip_offending"}
    assert differences(parts_of(faulty, setup.steps, policies(policy("non_finite", [offending]))), clean) == []


# ---- loops of other shapes

Loop = Callable[[set[int]], tuple[dict[str, Any], list[int]]]  # steps with a NaN -> (end state, attempts per incident)


def assert_loop_leaves_no_trace(loop: Loop, at: int) -> None:
    clean, _ = loop(set())
    faulty, attempts = loop({at})
    assert attempts == [1]
    assert differences(faulty, clean) == []


def closure_loop(name: str) -> Loop:
    def loop(nan_at: set[int]) -> tuple[dict[str, Any], list[int]]:
        seed_everything()
        model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer: Any = (
            torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
            if name == "lbfgs"
            else torch.optim.Adam(model.parameters())
        )
        with guarded(model, optimizer, policy=BACK_AND_REPLAY) as g:
            for x, y in g.batches(make_source("callable"), 20):

                def closure(x: Any = x, y: Any = y) -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = mse_loss(model(x), y)
                    if g.step in nan_at:
                        nan_at.discard(g.step)
                        loss = loss * math.nan
                    loss.backward()
                    return loss

                optimizer.step(closure)
            return flatten([model.state_dict(), optimizer.state_dict()]), [len(i.attempts) for i in g.incidents]

    return loop


@pytest.mark.parametrize("name", ["lbfgs", "adam"])
@pytest.mark.parametrize("at", [0, 9, 19])
def test_closures(name: str, at: int) -> None:
    assert_loop_leaves_no_trace(closure_loop(name), at)


def sparse_loop(nan_at: set[int]) -> tuple[dict[str, Any], list[int]]:
    """Two optimizers, one of them for a sparse embedding."""
    seed_everything()
    model = nn.Sequential(nn.Embedding(20, 3, sparse=True), nn.Flatten(), nn.Linear(6, 1))
    optimizers = [torch.optim.SparseAdam(model[0].parameters(), 1e-2), torch.optim.SGD(model[2].parameters(), lr=0.1)]
    with guarded(model, optimizers, policy=BACK_AND_REPLAY) as g:
        for _ in g.batches(lambda index: index, 20):
            loss = mse_loss(model(torch.randint(0, 20, (4, 2))), torch.randn(4, 1))
            if g.step in nan_at:
                nan_at.discard(g.step)
                loss = loss * math.nan
            g.backward(loss)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        state = [model.state_dict(), *(o.state_dict() for o in optimizers), rng_state()]
        return flatten(state), [len(i.attempts) for i in g.incidents]


@pytest.mark.parametrize("at", [0, 9, 19])
def test_several_optimizers_and_sparse_gradients(at: int) -> None:
    assert_loop_leaves_no_trace(sparse_loop, at)


def epoch_loop(nan_at: set[int]) -> tuple[dict[str, Any], list[int]]:
    """10 steps an epoch; the scheduler steps between two epochs."""
    seed_everything()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    loader = make_source("shuffled")
    with guarded(model, optimizer, policy=BACK_AND_REPLAY, scheduler=scheduler) as g:
        for _ in range(3):
            for x, y in g.batches(loader):
                optimizer.zero_grad()
                loss = mse_loss(model(x), y)
                if g.step in nan_at:
                    nan_at.discard(g.step)
                    loss = loss * math.nan
                g.backward(loss)
                optimizer.step()
            scheduler.step()
        state = [model.state_dict(), optimizer.state_dict(), scheduler.state_dict(), rng_state()]
        return flatten(state), [len(i.attempts) for i in g.incidents]


@pytest.mark.parametrize("at", [0, 9, 15, 29])
def test_rollback_within_an_epoch(at: int) -> None:
    assert_loop_leaves_no_trace(epoch_loop, at)


@pytest.mark.parametrize("at", [10, 11])
def test_code_between_two_epochs_is_not_lost(at: int) -> None:
    """The rollback goes back into the epoch before: what the loop did between the two is in force again afterwards."""
    assert_loop_leaves_no_trace(epoch_loop, at)
