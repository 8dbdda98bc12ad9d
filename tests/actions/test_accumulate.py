"""accumulate: one update of several windows is, bit for bit, that of a loop which accumulates them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from guard.incidents.control import Request, submit

from ._small import Run, batch, call, equal
from .conftest import Start

TWICE = {"type": "accumulate", "factor": 2}


def by_hand(run: Run, *windows: range) -> dict[str, torch.Tensor]:
    """The weights after one update for each of `windows` of micro-batches."""
    run.guard.detach()
    for window in windows:
        run.optimizer.zero_grad()
        for index in window:
            x, y = batch(index)
            (mse_loss(run.model(x), y) / len(window)).backward()
        run.optimizer.step()
    return run.weights


def test_two_windows_make_one_update(start: Start) -> None:
    run = start(call(TWICE)).go(12, calls=[5])
    one_by_one = [range(i, i + 1) for i in range(6)]
    assert equal(run.weights, by_hand(start(), *one_by_one, range(6, 8), range(8, 10), range(10, 12)))
    assert (run.guard.step, run.guard.tick) == (12, 12)
    (result,) = run.results
    assert result.summary == "made one update of 2 windows from the next step on"
    assert result.changes == {"windows_per_update": [1, 2]}
    assert result.standing


def test_a_loop_that_accumulates_itself_goes_on_doing_so(start: Start) -> None:
    run = start(call(TWICE)).go(6, calls=[1], accumulate=2)
    weights = by_hand(start(), range(2), range(2, 4), range(4, 8), range(8, 12))  # which adds in another order
    torch.testing.assert_close(run.weights, weights, rtol=1e-5, atol=1e-6)


def test_what_is_held_goes_back_with_a_rollback(start: Start) -> None:
    """The checkpoint of step 8 lies between the two windows of an update."""

    def train(*asked: int) -> Run:
        back = {
            "name": "back",
            "trigger": {"type": "threshold", "signal": "back", "above": 0.5},
            "actions": [{"type": "rollback", "data": "replay"}],
        }
        run, left = start(call(TWICE), back), set(asked)

        def each(step: int) -> None:
            if step in left:
                left.remove(step)
                run.guard.log(back=1.0)

        return run.go(16, calls=[4], each=each)

    plain = train()
    for step in (10, 11):
        run = train(step)
        (went,) = [r for r in run.results if r.type == "rollback"]
        assert went.changes["to_step"] == 8
        assert went.changes["not_restored"] == ["2 windows per update"]
        assert equal(run.weights, plain.weights)


def test_a_step_left_out_holds_nothing(start: Start) -> None:
    skip = {
        "name": "skip",
        "trigger": {"type": "threshold", "signal": "skip", "above": 0.5},
        "actions": [{"type": "skip_step"}],
    }
    run = start(call(TWICE), skip)
    run.go(7, calls=[2], each=lambda step: run.guard.log(skip=1.0) if step == 4 else None)
    assert equal_parameters(run, by_hand(start(), range(1), range(1, 2), range(2, 3), [3, 5]))  # type: ignore[arg-type]


def equal_parameters(run: Run, weights: dict[str, torch.Tensor]) -> bool:
    """Batch statistics have seen one window more, which was not used for an update."""
    return all(torch.equal(p, weights[name]) for name, p in run.model.named_parameters())


@pytest.mark.parametrize("fused", [False, True])
def test_under_a_grad_scaler(start: Start, fused: bool) -> None:
    def adam(p: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(p, lr=1e-2, fused=fused)

    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    run = start(call(TWICE, {"type": "checkpoint"}), optimizer=adam, scaler=scaler).go(8, calls=[3])
    if fused:
        ((action, why),) = run.left_out
        assert action == "accumulate"
        assert why == "a fused optimizer gets its gradients still scaled, each by another scale; use a larger batch"
    else:
        twin = start(optimizer=adam)
        assert equal(run.weights, by_hand(twin, *(range(i, i + 1) for i in range(4)), range(4, 6), range(6, 8)))


def test_undo_in_the_middle_uses_what_is_held(start: Start) -> None:
    run = start(call(TWICE)).go(6, calls=[2])
    run.go(6)
    submit(run.run_dir, Request("undo", "ada", incident="i0001"))
    run.go(8)
    assert run.guard.live.accumulation.factor == 1
    assert not run.guard.live.accumulation.on
    (undone,) = [e for e in run.journal if e["kind"] == "undone"]
    assert undone["changes"] == {"windows_per_update": 1}


def test_never_more_than_max(start: Start) -> None:
    run = start(call({**TWICE, "max": 4}, {"type": "checkpoint"})).go(20, calls=[2, 9, 16])
    assert run.guard.live.accumulation.factor == 4
    assert run.left_out == [("accumulate", "an update takes 4 windows already; use a larger batch")]


def test_lbfgs_is_advised_otherwise(start: Start) -> None:
    run = start(call(TWICE, {"type": "checkpoint"}), optimizer=torch.optim.LBFGS)
    g = run.guard
    for x, y in g.batches(batch, 4):

        def closure(x: Any = x, y: Any = y) -> torch.Tensor:
            run.optimizer.zero_grad()
            loss = mse_loss(run.model(x), y)
            loss.backward()
            return loss

        if g.step == 1:
            g.log(called=1.0)
        run.optimizer.step(closure)
    assert run.left_out == [("accumulate", "LBFGS computes its gradients anew within a step; use a larger batch")]


def test_a_closure_and_a_scheduler(start: Start) -> None:
    """As Lightning does it; a held step does not let the scheduler complain about its order."""
    run = start(call(TWICE))
    schedule = torch.optim.lr_scheduler.ConstantLR(run.optimizer, factor=1.0)
    g = run.guard
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, y in g.batches(batch, 6):

            def closure(x: Any = x, y: Any = y) -> torch.Tensor:
                run.optimizer.zero_grad()
                loss = mse_loss(run.model(x), y)
                loss.backward()
                return loss

            if g.step == 1:
                g.log(called=1.0)
            assert run.optimizer.step(closure) is not None
            schedule.step()
    assert equal(run.weights, by_hand(start(), range(1), range(1, 2), range(2, 4), range(4, 6)))
