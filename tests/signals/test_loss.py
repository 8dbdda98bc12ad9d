"""The loss of a step, from whatever the loop shows of it."""

from __future__ import annotations

import math

import pytest
import torch

from guard.signals import LossMeter


def tensor(x: float) -> torch.Tensor:
    return torch.tensor(x, requires_grad=True) * 1.0


def test_no_loss_is_nan_and_not_known() -> None:
    meter = LossMeter()
    assert not meter.known
    assert math.isnan(meter.take(1.0))


def test_a_stated_loss() -> None:
    meter = LossMeter()
    meter.state(tensor(2.5))
    assert meter.known
    assert meter.take(1.0) == 2.5
    assert not meter.known


@pytest.mark.parametrize("as_what", [float, tensor])
def test_stated_losses_are_averaged_and_never_scaled(as_what: type) -> None:
    meter = LossMeter()
    for x in (1.0, 2.0, 6.0):
        meter.state(as_what(x))
    assert meter.take(65536.0) == 3.0


def test_heard_losses_are_added_and_the_scale_taken_out() -> None:
    meter = LossMeter()
    for x in (1.0, 2.0):
        meter.hear(tensor(x * 1024.0 / 2))  # what a loop that divides by 2 and scales by 1024 shows
    assert meter.take(1024.0) == 1.5


def test_a_stated_loss_wins_whatever_was_heard_before_or_after() -> None:
    meter = LossMeter()
    meter.hear(tensor(7.0))
    meter.state(tensor(2.0))
    meter.hear(tensor(9.0))
    assert meter.take(1.0) == 2.0
    meter.hear(tensor(7.0))
    assert meter.take(1.0) == 7.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_told_and_forgotten(bad: float) -> None:
    meter = LossMeter()
    meter.state(tensor(1.0))
    meter.state(tensor(bad))
    assert not math.isfinite(meter.take(1.0))
    meter.state(tensor(1.0))
    assert meter.take(1.0) == 1.0


def test_a_scale_of_zero_hides_no_loss() -> None:
    meter = LossMeter()
    meter.hear(tensor(0.0))
    assert math.isnan(meter.take(0.0))


def test_it_keeps_no_graph_alive() -> None:
    meter = LossMeter()
    loss = tensor(1.0)
    meter.state(loss)
    loss.backward()
    meter.state(loss)
    assert meter.take(1.0) == 1.0
