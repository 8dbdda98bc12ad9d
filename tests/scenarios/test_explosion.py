"""One batch in the wrong unit: its gradient is thousands of times the usual one, and costs the run one short step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from .conftest import Night

BAD, STEPS = 180, 260


class Sines(nn.Module):
    """Its output is bounded whatever comes in; its gradient is as large as the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 32), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.sin(3 * self.first(x)))


def batch(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(64, 1, generator=torch.Generator().manual_seed(index)) * 2 - 1
    y = torch.sin(4 * x)
    return (x * 1000 if index == BAD else x), y  # millimetres in place of metres


def train(model: nn.Module, optimizer: torch.optim.Optimizer, source: object, steps: int = STEPS) -> None:
    for x, y in source:  # type: ignore[attr-defined]
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def test_an_exploding_gradient_is_clipped_to_its_usual_norm(night: Callable[..., Night]) -> None:
    torch.manual_seed(0)
    model = Sines()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    friday = night(model, optimizer)
    g = friday.guard
    train(model, optimizer, g.batches(batch, steps=STEPS))
    g.close()

    # Detection, in its own tick and before the weights took it.
    (explosion,) = g.incidents
    detection = explosion.evidence["detection"]
    assert (explosion.policy, explosion.detector, explosion.opened_tick) == ("clip-on-explosion", "grad_explosion", BAD)
    assert detection["value"] > 100 * detection["threshold"] > 100 * detection["baseline"]

    # Decision and action: this step is made as long as a usual one.
    (attempt,) = explosion.attempts
    (clip,) = attempt.results
    usual = sorted(row[3] for row in g.signals if BAD - 128 <= row[0] < BAD)[64]
    assert clip.type == "clip"
    assert 0.9 * usual < clip.changes["max_norm"] < 1.1 * usual
    assert abs(clip.changes["factor"] * detection["value"] / clip.changes["max_norm"] - 1) < 1e-3

    # Verification: no step is lost, and the loss goes on as if nothing had been.
    assert (explosion.status, explosion.count, explosion.closed_tick) == ("resolved", 1, BAD + 20)
    assert (g.step, g.tick) == (STEPS, STEPS)
    assert friday.loss(BAD + 1) < 2 * max(friday.loss(t) for t in range(BAD - 20, BAD))
    assert explosion.evidence["outcome"]["loss_after"] < 1.5 * explosion.evidence["outcome"]["loss_before"]

    # In the morning the channel says:
    text = friday.message(explosion)
    assert text.startswith("No action needed: repaired, no steps lost\nWarning · exploding gradients")
    assert "Step 180: clipped the gradient to norm" in text
    assert len(friday.thread(explosion)) == 2
    assert friday.kinds == ["run_started", "incident_opened", "attempt", "incident_closed", "run_finished"]


def test_without_a_guard_that_batch_costs_the_run_what_it_had_learnt() -> None:
    """Why it matters: the story above, unguarded."""
    torch.manual_seed(0)
    model = Sines()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    train(model, optimizer, map(batch, range(BAD)))
    with torch.no_grad():
        before = float(F.mse_loss(model(batch(0)[0]), batch(0)[1]))
    train(model, optimizer, map(batch, range(BAD, BAD + 1)))
    with torch.no_grad():
        after = float(F.mse_loss(model(batch(0)[0]), batch(0)[1]))
    assert after > 20 * before
