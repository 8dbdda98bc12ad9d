"""The names of curves, on curves drawn by hand and on runs that really behave so."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from doctor.setups import loader, mlp, rate_times, sgd_rate_times
from torch import nn

from guard import doctor
from guard.doctor import Setup
from guard.doctor.checks.curve import _name, _Run
from guard.doctor.effort import Effort

EFFORT = Effort.quick(clock=lambda: 0.0)
CASE = SimpleNamespace(notes={"guess": 2.3}, supply=SimpleNamespace(complete=True))


def run(same: list[float], held: list[float] | None = None, swapped: float = math.nan) -> _Run:
    at = [5 * i for i in range(len(same))]
    return _Run([2.3] * 100, at, same, held or [math.nan] * len(same), swapped, 1e-3, 4.0)


FALLING = [2.3 * 0.85**i for i in range(21)]


@pytest.mark.parametrize(
    ("name", "curve"),
    [
        ("falling", run(FALLING)),
        ("falling", run(FALLING, FALLING, 5.0)),
        ("flat", run([2.3 - 0.0005 * i for i in range(21)])),
        ("explosion", run([2.3, 2.0, 3.0, 9.0, 40.0])),
        ("explosion", run([2.3, 2.0, math.nan])),
        ("oscillation", run([2.3, 2.1, 3.4] * 7)),
        ("early saturation", run([2.6] + [2.28] * 20, [2.6] + [2.29] * 20, 2.29)),
        ("overfitting", run(FALLING, [2.3, 1.5, 1.0, 1.2, 1.6, 2.0, 2.4], 3.0)),
    ],
)
def test_curves_by_hand(name, curve):
    assert _name(CASE, curve)[0] == name


def named(parts) -> str:
    report = doctor.examine(Setup.of(parts), effort=EFFORT, only=["loss", "curve"])
    return report.plots("curve")["name"]


def test_runs_that_behave_so():
    assert named(rate_times(1e-3)(0)) == "flat"
    assert named(rate_times(1.0)(0)) == "falling"
    assert named(sgd_rate_times(100.0)(0)) in ("explosion", "oscillation", "flat")
    assert named(few_and_noisy()) == "overfitting"


def few_and_noisy() -> dict[str, object]:
    torch.manual_seed(0)
    x = torch.randn(96, 30)
    y = (x[:, 0] + 1.5 * torch.randn(96) > 0).long()
    model = mlp((30, 256, 2))
    return {
        "model": model,
        "train": loader(x[:48], y[:48], batch=8),
        "validation": loader(x[48:], y[48:], batch=48),
        "loss": nn.CrossEntropyLoss(),
        "optimizer": torch.optim.Adam(model.parameters(), lr=5e-3),
    }
