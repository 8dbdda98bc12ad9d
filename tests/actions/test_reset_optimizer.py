"""reset_optimizer: the next step is that of a fresh optimizer, bit for bit, for every optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ._small import Run, batch, call, equal
from .conftest import Start

RESET = {"type": "reset_optimizer"}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, initial_accumulator_value=0.3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
}


@pytest.mark.parametrize("what", ["moments", "all"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_step_is_that_of_a_fresh_optimizer(start: Start, name: str, what: str) -> None:
    run = start(call({**RESET, "what": what}), optimizer=OPTIMIZERS[name])
    run.go(6)
    before = run.weights
    run.go(7, calls=[6])

    twin = start()
    twin.model.load_state_dict(before)
    fresh = OPTIMIZERS[name](twin.model.parameters())
    x, y = batch(6)
    torch.nn.functional.mse_loss(twin.model(x), y).backward()
    fresh.step()
    assert equal(run.weights, twin.weights)
    (result,) = run.results
    assert result.summary == "cleared the optimizer's state of 6 parameters"
    assert result.changes == {"reset": what, "parameters": 6}


def test_settings_stay(start: Start) -> None:
    run = start(call(RESET))
    run.optimizer.param_groups[0]["lr"] = 3e-3
    run.go(8, calls=[4])
    assert run.optimizer.param_groups[0]["lr"] == 3e-3


def test_nothing_to_reset_before_the_first_step(start: Start) -> None:
    run = start(call(RESET, {"type": "checkpoint"})).go(3, calls=[0])
    assert run.left_out == [("reset_optimizer", "the optimizer has no state yet")]


def test_after_a_rollback_it_holds_for_what_was_restored(start: Start) -> None:
    run = start(call({"type": "rollback", "data": "replay"}, RESET))
    seen: list[int] = []

    def look(step: int) -> None:
        seen.append(len(run.optimizer.state) if (run.guard.tick, step) == (10, 4) else -1)

    run.go(12, calls=[9], each=look)
    assert [r.type for r in run.results] == ["rollback", "reset_optimizer"]
    assert 0 in seen


def test_a_later_rollback_brings_the_moments_of_its_checkpoint_back(start: Start) -> None:
    def train(*calls: int) -> Run:
        back = {
            "name": "back",
            "trigger": {"type": "threshold", "signal": "back", "above": 0.5},
            "actions": [{"type": "rollback", "data": "replay"}],
        }
        run = start(call(RESET), back)
        asked: list[int] = []

        def each(step: int) -> None:
            if calls and step == 9 and not asked:
                asked.append(step)
                run.guard.log(back=1.0)

        return run.go(14, calls, each=each)

    assert equal(train(7).weights, train().weights)  # back to step 4, before the reset at 7, which is not asked again


class Own(torch.optim.SGD):
    """Makes its state when it is made."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=1e-2)
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"scale": torch.ones(())}

    def step(self, closure: Any = None) -> Any:
        assert all("scale" in self.state[p] for p in self.param_groups[0]["params"])
        return super().step(closure)


def test_an_optimizer_that_makes_its_state_only_once_is_left_alone(start: Start) -> None:
    run = start(call(RESET, {"type": "checkpoint"}), optimizer=Own).go(8, calls=[4])
    assert run.guard.step == 8
    ((action, why),) = run.left_out
    assert action == "reset_optimizer"
    assert "Own may make its state only when it is made" in why
