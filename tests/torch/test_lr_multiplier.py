"""`scale_lr` keeps one multiplier around the real step: exact under schedulers and in loops that set the rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from _runs import (
    Setup,
    differences,
    flatten,
    guarded,
    make_model,
    make_scheduler,
    make_source,
    mse_loss,
    policies,
    policy,
    seed_everything,
)

STEPS, CUT_AT = 24, 6
SCHEDULES = ["none", "lambda", "cosine", "onecycle", "plateau"]

Rate = Callable[[float, int], float]  # (rate of the schedule, steps since the cut) -> rate to train with


def halved(lr: float, since: int) -> float:
    return lr * 0.5


def scale_lr(**params: Any) -> dict[str, Any]:
    """A policy that fires once, when the test says so."""
    trigger = {"type": "threshold", "signal": "cut", "above": 0.0}
    return policies({"name": "cut", "trigger": trigger, "actions": [{"type": "scale_lr", **params}]})


class Script:
    """SGD with momentum and weight decay, in two groups; `by_hand` and `guarded` must end bit for bit the same."""

    def __init__(
        self,
        scheduler: str = "none",
        *,
        tensor_lr: bool = False,
        adam: bool = False,
        loop_sets: Callable[[Any, int], None] = lambda optimizer, step: None,
    ) -> None:
        seed_everything()
        self.model = make_model(Setup(batch_norm=True))
        rates = [torch.tensor(1e-2), torch.tensor(3e-3)] if tensor_lr else [1e-2, 3e-3]
        groups = [
            {"params": list(m.parameters()), "lr": lr}
            for m, lr in zip((self.model[0], self.model[4]), rates, strict=True)
        ]
        self.optimizer = torch.optim.AdamW(groups) if adam else torch.optim.SGD(groups, momentum=0.9, weight_decay=0.01)
        self.scheduler = make_scheduler(scheduler, self.optimizer, STEPS)
        self.loop_sets = loop_sets
        self.source = make_source("callable")

    def iterations(self, step: Callable[[int], None]) -> dict[str, Any]:
        for number in range(STEPS):
            x, y = self.source(number)
            self.loop_sets(self.optimizer, number)
            self.optimizer.zero_grad()
            loss = mse_loss(self.model(x), y)
            loss.backward()
            step(number)
            if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                self.scheduler.step(loss.item())
            elif self.scheduler is not None:
                self.scheduler.step()
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self.scheduler is not None:
            state["scheduler"] = self.scheduler.state_dict()
        return flatten(state)

    def by_hand(self, rate: Rate = halved) -> dict[str, Any]:
        def step(number: int) -> None:
            if number < CUT_AT:
                self.optimizer.step()
                return
            groups = self.optimizer.param_groups
            kept = [float(g["lr"]) if isinstance(g["lr"], torch.Tensor) else g["lr"] for g in groups]
            for group, lr in zip(groups, kept, strict=True):
                put(group, rate(lr, number - CUT_AT))
            self.optimizer.step()
            for group, lr in zip(groups, kept, strict=True):
                put(group, lr)

        return self.iterations(step)

    def guarded(self, **params: Any) -> dict[str, Any]:
        with guarded(
            self.model, self.optimizer, scheduler=self.scheduler, policy=scale_lr(**{"factor": 0.5, **params})
        ) as g:

            def step(number: int) -> None:
                if number == CUT_AT:
                    g.log(cut=1.0)
                self.optimizer.step()

            state = self.iterations(step)
            self.rows, self.multiplier = g.signals, g.lr_multiplier
            assert [i.opened_tick for i in g.incidents] == [CUT_AT]
        return state


def put(group: dict[str, Any], lr: float) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


@pytest.mark.parametrize("scheduler", SCHEDULES)
@pytest.mark.parametrize("adam", [False, True])
def test_exact_under_schedulers(scheduler: str, adam: bool) -> None:
    script = Script(scheduler, adam=adam)
    assert differences(script.guarded(), Script(scheduler, adam=adam).by_hand()) == []
    assert script.multiplier == 0.5
    assert all(effective == lr * (0.5 if tick >= CUT_AT else 1.0) for tick, _, _, _, lr, effective, _ in script.rows)


@pytest.mark.parametrize("scheduler", ["none", "cosine"])
def test_exact_for_tensor_rates(scheduler: str) -> None:
    script = Script(scheduler, tensor_lr=True, adam=True)
    rates = [g["lr"] for g in script.optimizer.param_groups]
    assert differences(script.guarded(), Script(scheduler, tensor_lr=True, adam=True).by_hand()) == []
    assert all(g["lr"] is lr for g, lr in zip(script.optimizer.param_groups, rates, strict=True)), "the same tensors"


def inverse(optimizer: Any, step: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.05 / (step + 1)


def decay(optimizer: Any, step: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.97


@pytest.mark.parametrize("loop_sets", [inverse, decay])
def test_exact_for_a_loop_that_sets_the_rate_itself(loop_sets: Any) -> None:
    assert differences(Script(loop_sets=loop_sets).guarded(), Script(loop_sets=loop_sets).by_hand()) == []


def test_min_lr_holds_a_floor_but_never_raises_the_schedule() -> None:
    def rate(lr: float, since: int) -> float:
        return max(lr * 0.1, min(lr, 2e-3))

    script = Script("cosine")
    assert differences(script.guarded(factor=0.1, min_lr=2e-3), Script("cosine").by_hand(rate)) == []
    after = script.rows[CUT_AT:]
    assert any(effective == 2e-3 < lr for *_, lr, effective, _ in after)
    assert any(effective == lr < 2e-3 for *_, lr, effective, _ in after)


def test_recover_returns_to_the_schedule() -> None:
    def rate(lr: float, since: int) -> float:
        return lr * (0.5 + 0.5 * since / 10) if since < 10 else lr

    script = Script("cosine")
    assert differences(script.guarded(recover="10 steps"), Script("cosine").by_hand(rate)) == []
    assert script.multiplier == 1.0


def test_cuts_multiply() -> None:
    script = Script()
    with guarded(script.model, script.optimizer, policy=scale_lr(factor=0.5)) as g:

        def step(number: int) -> None:
            if number in (3, 9):
                g.log(cut=1.0)
            script.optimizer.step()

        script.iterations(step)
        assert g.lr_multiplier == 0.25
    assert [g["lr"] for g in script.optimizer.param_groups] == [1e-2, 3e-3]


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_exception_inside_the_step_puts_the_rate_back(tensor_lr: bool) -> None:
    script = Script(tensor_lr=tensor_lr, adam=True)
    trouble = RuntimeError("out of memory")
    during = []

    def fail(optimizer: Any, args: Any, kwargs: Any) -> None:
        during.append([float(g["lr"]) for g in optimizer.param_groups])
        raise trouble

    with guarded(script.model, script.optimizer, policy=scale_lr(factor=0.5)) as g:
        mse_loss(script.model(torch.ones(4, 6)), torch.ones(4, 2)).backward()
        g.log(cut=1.0)
        handle = script.optimizer.register_step_pre_hook(fail)
        with pytest.raises(RuntimeError) as raised:
            script.optimizer.step()
        assert raised.value is trouble
        handle.remove()
        assert during == [pytest.approx([5e-3, 1.5e-3])]
        assert [float(g["lr"]) for g in script.optimizer.param_groups] == pytest.approx([1e-2, 3e-3], rel=1e-7)


def test_a_rollback_keeps_the_multiplier() -> None:
    """It is a remedy, not a part of the state."""
    chosen = policies(
        policy(
            "non_finite",
            [{"type": "rollback", "data": "replay"}, {"type": "scale_lr", "factor": 0.5}],
            [{"type": "rollback", "data": "replay"}],
        )
    )
    script = Script("cosine")
    with guarded(script.model, script.optimizer, scheduler=script.scheduler, policy=chosen) as g:
        faults = {9}
        for x, y in g.batches(script.source, STEPS):
            script.optimizer.zero_grad()
            loss = mse_loss(script.model(x), y)
            g.backward(loss * math.nan if g.step in faults else loss)
            faults.discard(g.step)
            script.optimizer.step()
            script.scheduler.step()
        assert g.lr_multiplier == 0.5
    assert script.scheduler.last_epoch == STEPS


def test_a_multiplier_may_hold_from_a_step_on() -> None:
    """The rate jumped at some step: what a rollback repeats before it is trained as the schedule says."""
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = {"version": 1, "checkpoints": {"every": "4 steps", "probation": "1 steps"}, "policies": []}
    with guarded(model, optimizer, policy=rules) as g:
        for x in g.batches(lambda i: torch.full((2, 3), float(i % 3)), steps=16):
            optimizer.zero_grad()
            g.backward(model(x).square().mean())
            if g.tick == 12:
                g.live.rollback("last_good", "replay", g.tick)
                g.live.scale_lr(0.5, 0.0, None, since=10)
            optimizer.step()
        again = [row for row in g.signals if row[0] > 12]
    assert {row[5] for row in again if row[1] < 10} == {0.1}
    assert {row[5] for row in again if row[1] >= 10} == {0.05}
    assert min(row[1] for row in again) < 10
