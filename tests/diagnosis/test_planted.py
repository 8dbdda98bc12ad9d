"""Every planted fault is found: cause, module, function, samples; and its remedy leaves a sound run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from diagnosis.planted import AT, FAULTS, Planted, right_place, run

from guard.incidents import advice


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, no disk to wait for."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    torch.set_num_threads(1)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_cause_and_place(fault: Planted) -> None:
    found = run(fault)
    assert found.diagnosis is not None
    assert found.diagnosis.cause == fault.cause, advice.sentences(found.diagnosis)
    assert right_place(fault, found.diagnosis), advice.sentences(found.diagnosis)
    if fault.samples is not None:
        assert found.diagnosis.evidence.samples == fault.samples
    assert found.finite
    assert found.actions or fault.loop == "one line"  # where no remedy is known, and there is no other


def test_the_looks_before_it_are_in_order() -> None:
    """Five of them, all finite, in the order of the forward pass."""
    fault = next(f for f in FAULTS if f.name == "fp16_overflows_in_a_block")
    diagnosis = run(fault).diagnosis
    assert diagnosis is not None
    assert diagnosis.evidence.origin is not None
    before = diagnosis.evidence.origin.before
    assert len(before) == 5
    assert all(look.nonfinite == 0.0 and look.low <= look.high for look in before)
    assert before[-1].name == "blocks.1.fc1"
    first = diagnosis.evidence.origin.first
    assert (first.dtype, first.shape) == ("float16", (16, 8))
    assert 0.0 < first.nonfinite <= 1.0


def test_there_are_enough_of_them() -> None:
    """In both kinds of loop, forward and backward, in wrapped models."""
    assert len(FAULTS) >= 20
    assert {f.loop for f in FAULTS} == {"batches", "one line"}
    assert {f.backward for f in FAULTS} == {True, False}
    assert {"compiled_with_eager", "compiled_with_aot", "in_ddp"} <= {f.name for f in FAULTS}
    assert AT < 30
