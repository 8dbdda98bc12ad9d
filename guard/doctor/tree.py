"""Batches are tensors in any nesting of tuples, lists, mappings and small objects; here they are walked through."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def change(value: Any, f: Callable[[Tensor], Tensor]) -> Any:
    """The same nesting, with `f` applied to every tensor."""
    if isinstance(value, Tensor):
        return f(value)
    if isinstance(value, Mapping):
        changed = {k: change(v, f) for k, v in value.items()}
        if type(value) is dict:
            return changed
        try:
            return type(value)(changed)  # type: ignore[call-arg]
        except Exception:  # noqa: BLE001 - a mapping that is not made from a dict
            return changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(change(v, f) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(change(v, f) for v in value)
    if is_object(value):
        other = copy.copy(value)
        for name, v in _attributes(value):
            object.__setattr__(other, name, change(v, f))
        return other
    return value


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its place, e.g. ``[0]`` or ``input_ids``."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for k, v in value.items():
            yield from tensors(v, f"{name}.{k}" if name else str(k))
    elif isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            yield from tensors(v, f"{name}[{i}]")
    elif is_object(value):
        for k, v in _attributes(value):
            yield from tensors(v, f"{name}.{k}" if name else k)


def is_object(value: Any) -> bool:
    """A small object that holds tensors as attributes, such as a dataclass or a graph batch."""
    if isinstance(value, (str, bytes, int, float, torch.nn.Module, type)) or value is None or callable(value):
        return False
    return any(isinstance(v, Tensor) for _, v in _attributes(value))


def _attributes(value: Any) -> list[tuple[str, Any]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return list(getattr(value, "__dict__", {}).items())


def first(value: Any) -> Tensor | None:
    """The first tensor, if there is one."""
    return next((t for _, t in tensors(value)), None)


def take(value: Any, rows: Tensor | slice, size: int, dim: int = 0) -> Any:
    """Some samples of a batch: every tensor and list with `size` samples along `dim` is cut or reordered.

    Args:
        rows: a slice, or [k] int64 indices.
        size: samples in the batch.
        dim: which dimension of the tensors counts samples.
    """
    if isinstance(value, Tensor):
        if value.dim() <= dim or value.shape[dim] != size:
            return value
        return (
            value[(slice(None),) * dim + (rows,)]
            if isinstance(rows, slice)
            else value.index_select(dim, rows.to(value.device))
        )
    if isinstance(value, list) and len(value) == size and not any(isinstance(v, Tensor) for v in value):
        return value[rows] if isinstance(rows, slice) else [value[int(i)] for i in rows]
    if isinstance(value, Mapping):
        changed = {k: take(v, rows, size, dim) for k, v in value.items()}
        return changed if type(value) is dict else _rebuilt(value, changed)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(take(v, rows, size, dim) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(take(v, rows, size, dim) for v in value)
    if is_object(value):
        other = copy.copy(value)
        for name, v in _attributes(value):
            object.__setattr__(other, name, take(v, rows, size, dim))
        return other
    return value


def _rebuilt(like: Any, changed: dict[Any, Any]) -> Any:
    try:
        return type(like)(changed)
    except Exception:  # noqa: BLE001 - a mapping that is not made from a dict
        return changed


def equal(a: Any, b: Any) -> bool:
    """The same tensors, bit for bit (NaN equals NaN), in the same places."""
    one, two = list(tensors(a)), list(tensors(b))
    return len(one) == len(two) and all(
        n == m and x.shape == y.shape and x.dtype == y.dtype and _same(x, y)
        for (n, x), (m, y) in zip(one, two, strict=True)
    )


def _same(x: Tensor, y: Tensor) -> bool:
    return bool(((x == y) | (torch.isnan(x) & torch.isnan(y))).all())
