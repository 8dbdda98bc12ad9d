"""A restart of the schedule goes too high: the loss swings above what had been reached, until the rate is halved."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from .conftest import Night

RESTART, STEPS = 300, 700
LOW, HIGH = 0.05, 0.45  # SGD on 16 samples of 16 features begins to diverge a little above that


def batch(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(index)
    x = torch.randn(16, 16, generator=generator)
    weights = torch.randn(16, 1, generator=torch.Generator().manual_seed(9))
    return x, x @ weights + 0.3 * torch.randn(16, 1, generator=generator)


def test_a_rate_that_makes_the_loss_swing_is_halved(night: Callable[..., Night]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=LOW)
    friday = night(model, optimizer)
    g = friday.guard
    for x, y in g.batches(batch, steps=STEPS):
        optimizer.param_groups[0]["lr"] = LOW if g.step < RESTART else HIGH  # the loop sets it anew at every step
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] in (LOW, HIGH)  # the loop's own number is left as it set it
    g.close()

    def level(first: int, last: int) -> float:
        return statistics.fmean(friday.loss(t) for t in range(first, last))

    # Detection, within half a window of the restart, and dated back to before it was seen.
    (swings,) = g.incidents
    assert (swings.policy, swings.detector) == ("halve-lr-on-oscillation", "oscillation")
    assert RESTART < swings.opened_tick <= RESTART + 96
    assert swings.evidence["detection"]["since"] < swings.opened_tick
    assert "oscillation: loss swings by" in swings.evidence["detection"]["message"]

    # Decision and action: half the rate, from the next step on and for good.
    (attempt,) = swings.attempts
    (halved,) = attempt.results
    assert (halved.type, halved.changes["lr_multiplier"], halved.standing) == ("scale_lr", [1.0, 0.5], True)
    assert g.lr_multiplier == 0.5
    effective = {row[0]: row[5] for row in g.signals}
    assert effective[swings.opened_tick - 1] == HIGH
    assert effective[swings.opened_tick + 1] == HIGH / 2
    assert effective[STEPS - 1] == HIGH / 2

    # Verification: the window is filled anew before there is a verdict; the loss comes down and stays there.
    assert swings.status == "resolved"
    assert swings.closed_tick is not None
    assert swings.opened_tick + 96 <= swings.closed_tick <= swings.opened_tick + 96 + 20
    reached, swung, after = level(250, RESTART), level(RESTART, swings.opened_tick), level(400, STEPS)
    assert swung > 3 * reached
    assert after < 1.6 * reached

    # In the morning the channel says:
    text = friday.message(swings)
    assert text.startswith("No action needed: repaired, no steps lost\nWarning")
    assert "Still in force" in text
    assert friday.kinds == ["run_started", "incident_opened", "attempt", "incident_closed", "run_finished"]
    assert g.summary()["last_loss"] == pytest.approx(friday.loss(STEPS - 1))
