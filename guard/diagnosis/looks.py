"""One tensor in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from guard.checkpoints.state import local
from guard.incidents.diagnose import Look, Role

_DEEP = 6  # levels of containers in a batch


def numbers(tensor: Tensor) -> Tensor | None:
    """Its elements as floating-point numbers that can be compared; None: it has none, or they are whole."""
    x = local(tensor).detach()
    if x.is_sparse:
        x = x.coalesce().values()
    x = torch.view_as_real(x) if x.is_complex() else x
    return x if x.is_floating_point() and x.numel() and x.layout is torch.strided else None


@torch.no_grad()
def span(tensor: Tensor) -> tuple[float, float] | None:
    """Smallest and largest element, NaN if one is NaN; None: nothing to look at."""
    x = numbers(tensor)
    if x is None:
        return None
    low, high = torch.stack(torch.aminmax(x)).tolist()
    return low, high


def sound(tensor: Tensor) -> bool:
    """No element is NaN or Inf."""
    found = span(tensor)
    return found is None or (math.isfinite(found[0]) and math.isfinite(found[1]))


def look(role: Role, name: str, tensor: Tensor, op: str = "", found: tuple[float, float] | None = None) -> Look:
    """A tensor's shape, dtype and range.

    Args:
        found: its `span`, if that is known; finite.
    """
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if found is not None:
        return Look(role, name, op, shape, dtype, found[0], found[1])
    x = numbers(tensor)
    if x is None:
        return Look(role, name, op, shape, dtype)
    with torch.no_grad():
        finite = torch.isfinite(x)
        low = float(torch.where(finite, x, torch.inf).amin())
        high = float(torch.where(finite, x, -torch.inf).amax())
        share = 1.0 - float(finite.float().mean())
    none = share == 1.0
    return Look(role, name, op, shape, dtype, math.nan if none else low, math.nan if none else high, share)


def tensors(value: Any, name: str = "", deep: int = _DEEP) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a batch, in arguments or in an output, with their place: ``[0]``, ``['x']``."""
    if isinstance(value, Tensor):
        yield name, value
    elif deep and isinstance(value, dict):
        for key, part in value.items():
            yield from tensors(part, f"{name}[{key!r}]", deep - 1)
    elif deep and isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from tensors(part, f"{name}[{i}]", deep - 1)
    elif deep and hasattr(value, "__dataclass_fields__"):
        for key in value.__dataclass_fields__:
            yield from tensors(getattr(value, key), f"{name}.{key}", deep - 1)
    elif deep and hasattr(value, "items") and hasattr(value, "keys"):
        for key in value:
            yield from tensors(value[key], f"{name}[{key!r}]", deep - 1)
