"""Buffers are no weights: what may be infinite there, and what may not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from guard import doctor


@pytest.mark.parametrize(
    ("value", "verdicts"),
    [
        (torch.full((8, 8), -math.inf).triu(1), []),  # a causal mask, whatever it is called
        (torch.full((8,), math.inf), []),  # a minimum that has seen nothing yet
        (torch.full((8,), math.nan), ["FAIL"]),
    ],
)
def test_what_a_buffer_may_hold(value: torch.Tensor, verdicts: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    model.register_buffer("b", value)
    batches = [(torch.randn(16, 8), torch.randint(0, 3, (16,))) for _ in range(4)]
    report = doctor.examine(model, batches, nn.CrossEntropyLoss(), only=["weights"], quick=True)
    assert [f.verdict for f in report.findings if f.bad] == verdicts
