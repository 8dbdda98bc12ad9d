"""Scalars on any device, read together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def read(scalars: Sequence[Tensor]) -> list[float]:
    """Values of scalar tensors as FP32, in one transfer for each device."""
    result = [0.0] * len(scalars)
    for device in {t.device for t in scalars}:
        where = [i for i, t in enumerate(scalars) if t.device == device]
        for i, x in zip(where, torch.stack([scalars[i].float() for i in where]).tolist(), strict=True):
            result[i] = x
    return result
