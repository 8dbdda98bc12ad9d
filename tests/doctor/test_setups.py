"""Every fault is told where it is and nowhere else; healthy set-ups are not accused."""

from __future__ import annotations

import pytest
from doctor.setups import BROKEN, HEALTHY

from guard import doctor
from guard.doctor import ORDER, Report, Setup
from guard.doctor.effort import Effort

EFFORT = Effort.quick(clock=lambda: 0.0)  # steps are bounded, time is not: the same result on every machine
MEANT = {"imbalanced": {"data"}, "fine_tuning": {"gradients"}}  # true, and worth a warning
QUICK_HEALTHY = ("digits", "regression", "two_inputs", "fine_tuning")
QUICK_BROKEN = ("unshuffled_sorted", "labels_from_one", "double_softmax", "dead_relu", "batch_leakage", "nan_in_data")


def speaking(report: Report) -> set[str]:
    return {c for c in ORDER if report.verdict_of(c) in ("WARN", "FAIL")}


def examine(factory, seed: int) -> Report:
    return doctor.examine(Setup.of(factory(seed)), effort=EFFORT, seed=seed)


def told(report: Report) -> str:
    return "\n".join(f"{f.check} {f.verdict} {f.sentence}" for f in report.findings)


def healthy(name: str, seed: int) -> None:
    report = examine(HEALTHY[name], seed)
    assert speaking(report) == MEANT.get(name, set()), told(report)
    assert report.verdict != "FAIL"


def broken(name: str, seed: int) -> None:
    factory, right = BROKEN[name]
    report = examine(factory, seed)
    assert speaking(report), told(report)
    assert speaking(report) <= right, told(report)


@pytest.mark.parametrize("name", QUICK_HEALTHY)
def test_a_healthy_setup(name):
    healthy(name, 0)


@pytest.mark.parametrize("name", QUICK_BROKEN)
def test_a_fault(name):
    broken(name, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_setups_over_seeds(name, seed):
    healthy(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", BROKEN)
def test_faults_over_seeds(name, seed):
    broken(name, seed)
