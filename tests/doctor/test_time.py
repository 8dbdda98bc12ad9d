"""A machine that is far too slow: nothing is accused for want of time."""

from __future__ import annotations

import itertools

import pytest
from doctor.setups import base, cnn

from guard import doctor
from guard.doctor import Setup
from guard.doctor.effort import Effort


@pytest.mark.parametrize("tick", [0.3, 3.0, 60.0])
@pytest.mark.parametrize("make", [base, cnn])
def test_want_of_time_is_no_fault(make, tick):
    seconds = itertools.count(0.0, tick)  # every look at the clock finds it so much later
    report = doctor.examine(Setup.of(make(0)), effort=Effort.quick(clock=lambda: next(seconds)))
    assert [(f.check, f.sentence) for f in report.findings if f.bad] == []


def test_slow_models_get_smaller_batches_and_the_same_steps_for_all_rates():
    from guard.doctor.case import opened
    from guard.doctor.training import paced

    seconds = itertools.count(0.0, 0.125)  # what a step takes
    with opened(Setup.of(base(0)), Effort.quick(clock=lambda: next(seconds))) as case:
        batches, steps = paced(case, case.batches, steps=60, seconds=5.625, least=20)
        assert (len(batches[0][0]), steps) == (64, 45)
        batches, steps = paced(case, case.batches, steps=60, seconds=1.25, least=20)
        assert (len(batches[0][0]), steps) == (32, 20)
