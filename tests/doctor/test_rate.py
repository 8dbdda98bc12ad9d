"""Learning rate: what is read off curves, and what can be said without a step."""

from __future__ import annotations

import pytest
import torch
from doctor.setups import base

from guard import doctor
from guard.doctor import Setup
from guard.doctor.checks.rate import _read
from guard.doctor.effort import Effort

SHORT = Effort(batches=6, overfit_steps=5, range_steps=12, rate_steps=3, curve_steps=6, sample=4, clock=lambda: 0.0)
STEPS = 300


def test_steepest_descent_and_divergence():
    rates = [10 ** (-5 + i / 4) for i in range(24)]
    losses = [2.3] * 10 + [2.2, 1.9, 1.3, 1.0, 0.9, 0.85] + [1.0, 1.5, 2.5, 4.0, 9.0, 20.0, 50.0, 90.0]
    steepest, diverges = _read(rates, losses)
    assert rates[11] <= steepest <= rates[12]
    assert rates[17] <= diverges <= rates[19]


def test_noise_has_no_steepest_point():
    assert _read([10.0**-i for i in range(20, 0, -1)], [2.3 + 0.001 * (i % 3) for i in range(20)])[0] is None


def rate(**parts):
    parts = base(0) | parts
    return doctor.examine(Setup.of(parts), effort=SHORT, only=["rate"]).of("rate")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS), ""),
        (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS // 3), "rises again"),
        (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10 * STEPS), "longer than the run"),
        (lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1e-2, total_steps=STEPS), ""),
        (lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1e-2, total_steps=100), "raises after"),
        (lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, total_iters=100), "is over at"),
        (lambda o: torch.optim.lr_scheduler.StepLR(o, 30), ""),
        (lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda s: min(1.0, s / 250)), "warms up for"),
    ],
)
def test_schedules(make, said):
    parts = base(0)
    scheduler = make(parts["optimizer"])
    found = [f for f in rate(**parts, scheduler=scheduler, steps=STEPS) if f.measure == "schedule"]
    assert bool(found) == bool(said), found
    assert not said or said in found[0].sentence


def test_a_schedule_stepped_once_an_epoch_is_as_good():
    parts = base(0)
    epochs = 20
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(parts["optimizer"], epochs)
    found = rate(**parts, scheduler=scheduler, steps=epochs * len(parts["train"]))
    assert [f for f in found if f.measure == "schedule"] == []


@pytest.mark.parametrize(("eps", "verdict"), [(1e-8, None), (1e-2, "WARN"), (0.0, "FAIL")])
def test_eps(eps, verdict):
    parts = base(0)
    optimizer = torch.optim.Adam(parts["model"].parameters(), lr=1e-3, eps=eps)
    found = [f.verdict for f in rate(**parts | {"optimizer": optimizer}) if f.measure == "eps"]
    assert found == ([verdict] if verdict else [])


def test_a_warm_up_that_begins_at_zero_is_judged_by_its_peak():
    parts = base(0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(parts["optimizer"], lambda s: min(1.0, s / 10))
    assert parts["optimizer"].param_groups[0]["lr"] == 0.0
    assert "nothing will move" not in " ".join(f.sentence for f in rate(**parts, scheduler=scheduler))


def test_zero_is_told():
    parts = base(0, lr=0.0)
    assert rate(**parts)[0].verdict == "FAIL"


def test_the_planned_steps_make_a_slow_rate_right():
    parts = base(0, lr=1e-4)
    effort = Effort.quick(clock=lambda: 0.0)
    alone = doctor.examine(Setup.of(parts), effort=effort, only=["rate"])
    planned = doctor.examine(Setup.of(parts | {"steps": 10**6}), effort=effort, only=["rate"])
    assert (alone.verdict, planned.verdict) == ("WARN", "PASS")
