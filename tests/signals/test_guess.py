"""The loss of a guess that knows nothing, read off the autograd graph."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from guard.signals import GuessMeter


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def value(loss: Callable[[], Tensor], scale: float = 1.0, per_step: int = 1, steps: int = 8) -> float:
    meter = GuessMeter()
    for _ in range(steps):
        for _ in range(per_step):
            meter.look(loss())
        meter.end_step(scale)
    assert meter.done is (steps >= 8) or math.isnan(meter.value)
    return meter.value


def out(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def labels(n: int = 64, classes: int = 10) -> Tensor:
    return torch.randint(classes, (n,))


def binary() -> Tensor:
    return (torch.rand(64, 1) < 0.3).float()


ENTROPY = -0.3 * math.log(0.3) - 0.7 * math.log(0.7)
KNOWN = {
    "cross-entropy": (lambda: F.cross_entropy(out(64, 10), labels()), math.log(10)),
    "log-likelihood": (lambda: F.nll_loss(out(64, 10).log_softmax(1), labels()), math.log(10)),
    "without a mean of its own": (
        lambda: F.cross_entropy(out(64, 10), labels(), reduction="none").mean(),
        math.log(10),
    ),
    "per pixel": (lambda: F.cross_entropy(out(2, 10, 6, 6), torch.randint(10, (2, 6, 6))), math.log(10)),
    "rare class": (lambda: F.cross_entropy(out(64, 2), binary().long().flatten()), ENTROPY),
    "more classes than targets": (lambda: F.cross_entropy(out(8, 5000), labels(8, 5000)), math.log(5000)),
    "labels": (lambda: F.binary_cross_entropy_with_logits(out(64, 1), binary()), ENTROPY),
    "probabilities": (lambda: F.binary_cross_entropy(out(64, 1).sigmoid(), binary()), ENTROPY),
    "squared error": (lambda: F.mse_loss(out(64, 3), 5.0 + 2.0 * torch.randn(64, 3)), 4.0),
    "one column": (lambda: F.mse_loss(out(64), 2.0 * torch.randn(64)), 4.0),
}
UNKNOWN = {
    "own loss": lambda: out(8).abs().mean(),
    "two parts": lambda: F.cross_entropy(out(64, 10), labels()) + 0.1 * out(8).abs().mean(),
    "weighted": lambda: 3.0 * F.cross_entropy(out(64, 10), labels()),
    "classes with weights": lambda: F.cross_entropy(out(64, 10), labels(), weight=torch.rand(10)),
    "summed": lambda: F.cross_entropy(out(64, 10), labels(), reduction="sum"),
    "several numbers": lambda: F.cross_entropy(out(64, 10), labels(), reduction="none"),
    "no graph": lambda: torch.tensor(1.0),
}


@pytest.mark.parametrize(("loss", "level"), KNOWN.values(), ids=KNOWN)
def test_of_a_known_loss_function(loss: Callable[[], Tensor], level: float) -> None:
    assert value(loss) == pytest.approx(level, rel=0.1)


@pytest.mark.parametrize("loss", UNKNOWN.values(), ids=UNKNOWN)
def test_of_any_other_it_is_not_known(loss: Callable[[], Tensor]) -> None:
    assert math.isnan(value(loss))


def test_scaled_and_accumulated() -> None:
    loss = lambda: F.cross_entropy(out(64, 10), labels()) / 4 * torch.tensor(1024.0)  # noqa: E731 - as a loop does it
    assert value(loss, 1024.0, per_step=4) == pytest.approx(math.log(10), rel=0.01)


def test_not_before_it_has_seen_enough() -> None:
    assert math.isnan(value(KNOWN["cross-entropy"][0], steps=7))


def test_ignored_targets_do_not_count() -> None:
    def half() -> Tensor:
        y = labels()
        y[::2] = -100
        return F.cross_entropy(out(64, 10), y)

    assert value(half) == pytest.approx(math.log(10), rel=0.02)


def test_a_graph_that_was_freed_is_no_error() -> None:
    def freed() -> Tensor:
        loss = F.cross_entropy(out(64, 10), labels())
        loss.backward()
        return loss

    assert math.isnan(value(freed))
