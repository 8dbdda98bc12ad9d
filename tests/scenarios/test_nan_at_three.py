"""Three o'clock: the loss is NaN. Twice, with two different causes, and what the guard makes of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from .conftest import Night

BAD = 180  # the batch that does it
STEPS = 260


def features(index: int) -> torch.Tensor:
    return torch.randn(32, 8, generator=torch.Generator().manual_seed(index))


def test_fp16_overflows_and_the_same_batch_is_done_again_in_bf16(night: Callable[..., Night]) -> None:
    """A feature of 60,000 times its usual size is a number in FP16; multiplied by a weight and added up it is none."""

    def batch(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = features(index)
        y = x[:, :1].clamp(-2, 2)
        if index == BAD:
            x[3] *= 60_000
        return x, y

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    friday = night(model, optimizer)
    g, used, dtypes = friday.guard, [], []
    for x, y in g.batches(lambda i: (used.append(i), batch(i))[1], steps=STEPS):
        optimizer.zero_grad()
        with g.autocast("cpu", dtype=torch.float16):
            out = model(x)
        dtypes.append(out.dtype)
        g.backward(F.smooth_l1_loss(out.float(), y))
        optimizer.step()
    g.close()

    # 03:00 the loss of batch 180 is NaN, in its own tick.
    nan = g.incidents[0]
    assert (nan.policy, nan.detector, nan.opened_tick) == ("nan-rollback-retry-bf16", "non_finite", BAD)
    assert math.isnan(friday.loss(BAD))
    assert nan.evidence["detection"]["since"] == BAD
    assert "0.weight" in nan.evidence["nonfinite_gradients"]

    # Decision and action: back to the last good checkpoint, the same data again, but in BF16.
    (attempt,) = nan.attempts
    rollback, precision = attempt.results
    assert (attempt.rung, rollback.type, rollback.changes["data"]) == (0, "rollback", "replay")
    assert (rollback.changes["from_step"], rollback.changes["to_step"]) == (BAD, 150)
    assert (precision.type, precision.summary) == ("precision", "switched to BF16")
    assert used[: BAD + 1] == list(range(BAD + 1))
    assert used[BAD + 1 :] == list(range(150, STEPS))
    assert dtypes[BAD] is torch.float16
    assert set(dtypes[BAD + 1 :]) == {torch.bfloat16}

    # Verification: batch 180 is an ordinary number now; 20 clean ticks later it is over.
    again = BAD + 1 + (BAD - 150)
    assert math.isfinite(friday.loss(again))
    assert (nan.status, nan.closed_tick, nan.count) == ("resolved", again + 20, 1)
    outcome = nan.evidence["outcome"]
    assert outcome["steps_lost"] == 30
    assert outcome["loss_after"] < 2 * outcome["loss_expected"]
    assert (g.step, g.tick) == (STEPS, STEPS + 31)
    assert all(bool(p.isfinite().all()) for p in model.parameters())

    # The same batch's gradient is as large as its feature: that was clipped, and is an incident of its own.
    explosion = g.incidents[1]
    assert (explosion.detector, explosion.opened_tick, explosion.status) == ("grad_explosion", again, "resolved")

    # In the morning the channel says:
    text = friday.message(nan)
    assert text.startswith("No action needed: repaired, 30 steps lost\nCritical")
    assert "went back from step 180 to step 150 to replay the same batches; switched to BF16" in text
    assert "Still in force\n  • switched to BF16" in text
    assert [line.split(".")[0] for line in friday.thread(nan)] == [
        "Step 180: went back from step 180 to step 150 to replay the same batches; switched to BF16",
        "No action needed: repaired, 30 steps lost",
    ]
    assert friday.kinds == [
        "run_started",
        "incident_opened",
        "incident_evidence",
        "attempt",  # NaN: back, BF16
        "incident_opened",
        "attempt",  # explosion: clipped
        "incident_closed",
        "incident_closed",
        "run_finished",
    ]


def test_a_batch_that_is_nan_by_itself_is_left_out(night: Callable[..., Night]) -> None:
    """A sample of zeros, normalised: 0 / 0. No precision helps; after one replay it is known that the data is it."""

    def batch(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = features(index)
        y = x[:, :1].sign()
        if index == BAD:
            x[5] = 0.0
        return x / x.norm(dim=1, keepdim=True), y

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    friday = night(model, optimizer)
    g = friday.guard
    for x, y in g.batches(batch, steps=STEPS):
        optimizer.zero_grad()
        g.backward(F.mse_loss(model(x), y))
        optimizer.step()
    g.close()

    # Detection, and the first remedy: the run is in FP32, so that only the rollback remains of it.
    (nan,) = g.incidents
    first, second = nan.attempts
    assert (nan.opened_tick, first.rung, [r.type for r in first.results]) == (BAD, 0, ["rollback"])
    assert first.unavailable == [("precision", "the run computes in FP32: there is no autocast to change")]

    # The same batch is NaN again with sound weights: nothing need go back any more, it is left out where it stands.
    assert (second.rung, second.step, [r.type for r in second.results]) == (1, BAD, ["skip_step"])
    assert second.tick == BAD + 31

    # Verification.
    assert (nan.status, nan.count, nan.closed_tick) == ("resolved", 2, second.tick + 20)
    assert nan.evidence["outcome"]["steps_lost"] == 31
    assert (g.step, g.tick) == (STEPS, STEPS + 31)
    assert all(bool(p.isfinite().all()) for p in model.parameters())

    # In the morning the channel says:
    text = friday.message(nan)
    assert text.startswith("No action needed: repaired, 31 steps lost\nCritical")
    assert "Not possible: precision (the run computes in FP32: there is no autocast to change)." in text
    back, left_out, over = friday.thread(nan)
    assert back.startswith("Step 180: went back from step 180 to step 150")
    assert left_out == "That did not hold. Next: Step 180: left this step out."
    assert over.startswith("No action needed: repaired, 31 steps lost.")
    assert friday.kinds == [
        "run_started",
        "incident_opened",
        "incident_evidence",
        "attempt",
        "incident_fired",
        "attempt",
        "incident_closed",
        "run_finished",
    ]
    assert [e["escalated"] for e in friday.journal if e["kind"] == "attempt"] == [False, True]


def test_a_nan_that_does_not_come_back_leaves_no_trace(night: Callable[..., Night]) -> None:
    """Bits flip once, in a gradient's exponent. The replay is clean, and the end is that of a calm night."""

    def train(fault: int | None) -> tuple[Night | None, list[torch.Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        friday = night(model, optimizer) if fault is not None else None
        source: Any = friday.guard.batches(features, steps=STEPS) if friday else map(features, range(STEPS))
        for tick, x in enumerate(source):
            optimizer.zero_grad()
            F.mse_loss(model(x), x[:, :1].sign()).backward()
            if tick == fault:
                bits = model[0].weight.grad.view(torch.int32)
                bits[0, 0] |= 0x7F800000  # all exponent bits set: Inf or NaN
            optimizer.step()
        return friday, [p.detach().clone() for p in model.parameters()]

    _, calm = train(None)
    friday, weights = train(BAD)
    assert friday is not None
    friday.guard.close()
    (nan,) = friday.guard.incidents
    assert (nan.opened_tick, nan.status, nan.count, len(nan.attempts)) == (BAD, "resolved", 1, 1)
    assert nan.evidence["detection"]["signal"] == "grad_norm"
    assert all(torch.equal(a, b) for a, b in zip(weights, calm, strict=True))
    assert friday.message(nan).startswith("No action needed: repaired, 30 steps lost")
