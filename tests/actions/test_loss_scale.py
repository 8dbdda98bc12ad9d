"""loss_scale: the GradScaler's search within limits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from guard.errors import PolicyError
from guard.incidents.control import Request, submit
from guard.policy import load

from ._small import call
from .conftest import Start


def scaler(**options: float) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **{"init_scale": 256.0, "growth_interval": 1000, **options})  # type: ignore[arg-type]


def test_set_holds_from_the_next_iteration_on(start: Start) -> None:
    run = start(call({"type": "loss_scale", "set": 64}), scaler=scaler()).go(8, calls=[4])
    assert [row[6] for row in run.guard.signals] == [256.0] * 5 + [64.0] * 3
    (result,) = run.results
    assert result.summary == "set the loss scale to 64"
    assert result.changes == {"loss_scale": [256.0, 64.0]}
    assert not result.standing


def test_the_floor_holds_through_overflows_until_it_is_undone(start: Start) -> None:
    run = start(call({"type": "loss_scale", "floor": 100}), scaler=scaler(), mode="enforce")

    def overflow(step: int) -> None:
        if step >= 5:
            run.model[0].weight.register_hook(lambda g: g * torch.inf)

    run.go(10, calls=[4], each=overflow)
    assert [row[6] for row in run.guard.signals][4:] == [256.0, 256.0, 128.0, 100.0, 100.0, 100.0]
    submit(run.run_dir, Request("undo", "ada", incident="i0001"))
    run.go(12, each=overflow)
    assert run.scaler.get_scale() < 100.0


def test_growth_interval(start: Start) -> None:
    run = start(call({"type": "loss_scale", "growth_interval": 2}), scaler=scaler()).go(9, calls=[2])
    assert run.scaler.get_scale() > 256.0
    assert run.results[0].changes == {"growth_interval": [1000, 2]}
    submit(run.run_dir, Request("undo", "ada", incident="i0001"))
    run.go(10)
    assert run.scaler.get_growth_interval() == 1000


def test_it_outlives_a_rollback(start: Start) -> None:
    back = {"type": "rollback", "data": "replay"}
    run = start(call(back, {"type": "loss_scale", "set": 64, "growth_interval": 500}), scaler=scaler())
    run.go(12, calls=[9])
    assert run.results[0].changes["to_step"] < 9
    assert run.guard.signals[-1][6] == 64.0
    assert run.scaler.get_growth_interval() == 500


def test_without_a_scaler(start: Start) -> None:
    run = start(call({"type": "loss_scale", "floor": 1}, {"type": "checkpoint"})).go(6, calls=[3])
    assert run.left_out == [("loss_scale", "the run has no loss scaler")]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "at least one of 'set', 'floor', 'growth_interval'"),
        ({"set": 1, "floor": 2}, "below the floor of 2"),
        ({"set": 0}, "more than 0"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, given: dict[str, float], why: str) -> None:
    with pytest.raises(PolicyError, match=why):
        load({"version": 1, "policies": [call({"type": "loss_scale", **given})]})
