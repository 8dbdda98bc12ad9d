"""A batch, looked at sample by sample: what is odd about it, and the same batch without the odd samples."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from guard.diagnosis.looks import numbers, span, tensors

_FAR = 10.0  # times the median of the samples: such a sample is suspicious
_LARGER = 8.0  # times another batch: such a batch is
_FEW = 0.25  # more samples than that are no outliers
_NAMED = 4


def size_of(batches: Sequence[Any]) -> int:
    """Samples in each micro-batch: what most of its tensors have as their first dimension; 0: not known."""
    first = Counter(int(t.shape[0]) for batch in batches for _, t in tensors(batch) if t.dim())
    return first.most_common(1)[0][0] if first else 0


@torch.no_grad()
def flaws(batches: Sequence[Any], another: Sequence[Any] = ()) -> tuple[list[str], set[int]]:
    """What is odd to look at, in words, and the samples that are (none: the batch as a whole, or nothing).

    Args:
        batches: the micro-batches of the failing step.
        another: those of a step that was in order, to compare with.
    """
    words: list[str] = []
    found: set[int] = set()
    size = size_of(batches)
    usual = {name: s for batch in another for name, t in tensors(batch, "batch") if (s := span(t)) is not None}
    for batch in batches:
        for name, t in tensors(batch, "batch"):
            odd, rows = _of_tensor(t, size)
            words += [f"{name}: {what}" for what in odd]
            found |= rows
            here, there = span(t), usual.get(name)
            if here is not None and there is not None and not odd:
                peak, theirs = (max(abs(s[0]), abs(s[1])) for s in (here, there))
                if peak > _LARGER * theirs > 0.0:
                    words.append(f"{name}: the largest element is {peak:.4g}, in another batch {theirs:.4g}")
    return list(dict.fromkeys(words)), found if len(found) < size else set()


def _of_tensor(t: Tensor, size: int) -> tuple[list[str], set[int]]:
    if not t.dtype.is_floating_point:
        labels = t.dtype in (torch.int64, torch.int32, torch.int16) and t.numel()
        return (["no valid label, all are negative"], set()) if labels and int(t.max()) < 0 else ([], set())
    x = numbers(t)
    if x is None:
        return [], set()
    per_sample = x.dim() > 0 and size > 1 and x.shape[0] == size
    peaks = x.reshape(x.shape[0], -1).abs().amax(1) if per_sample else x.abs().amax().reshape(1)
    bad = ~torch.isfinite(peaks)
    if bool(bad.any()):
        rows = _rows(bad)
        return [f"NaN or Inf in {_samples(rows) if per_sample else 'it'}"], set(rows) if per_sample else set()
    if float(peaks.max()) == 0.0:
        return (["all elements are 0"], set()) if x.dim() > 1 else ([], set())
    if not per_sample or x.dim() < 2:
        return [], set()
    median = float(peaks.median())
    for odd, what in ((peaks == 0.0, "all 0"), (peaks > _FAR * median, f"more than {_FAR:g} times the usual")):
        if 0 < int(odd.sum()) <= _FEW * size and median > 0.0:
            rows = _rows(odd)
            return [f"{_samples(rows)} is {what}"], set(rows)
    return [], set()


def _rows(mask: Tensor) -> list[int]:
    return [int(i) for i in mask.nonzero().flatten().tolist()]


def _samples(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:_NAMED])) + (", …" if len(rows) > _NAMED else "")
    return f"sample {shown}"


def without(batch: Any, rows: Sequence[int], size: int) -> Any:
    """A copy in which a clean sample stands in place of each of `rows`, so that all shapes stay what they are."""
    clean = [i for i in range(size) if i not in set(rows)]
    chosen = [i if i not in set(rows) else clean[i % len(clean)] for i in range(size)]

    def pick(t: Tensor) -> Tensor:
        return t[torch.tensor(chosen, device=t.device)] if t.dim() and t.shape[0] == size else t.clone()

    return mapped(batch, pick)


def fresh(batch: Any) -> Any:
    """A copy, so that what a step does to its batch is not seen by the next."""
    return mapped(batch, lambda t: t.detach().clone().requires_grad_(t.requires_grad and t.is_leaf))


def mapped(batch: Any, do: Any) -> Any:
    """The batch with `do` applied to its tensors; what is of an unknown kind is handed on as it is."""
    if isinstance(batch, Tensor):
        return do(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(v, do) for v in batch))
    if type(batch) in (list, tuple):
        return type(batch)(mapped(v, do) for v in batch)
    if isinstance(batch, dict) or hasattr(batch, "__dataclass_fields__") or hasattr(batch, "data"):
        twin = copy.copy(batch)
        if isinstance(batch, dict):
            for key in batch:
                twin[key] = mapped(batch[key], do)
        elif hasattr(batch, "__dataclass_fields__"):
            for key in batch.__dataclass_fields__:
                object.__setattr__(twin, key, mapped(getattr(batch, key), do))
        elif isinstance(batch.data, dict):  # as transformers' BatchEncoding
            twin.data = {key: mapped(v, do) for key, v in batch.data.items()}
        return twin
    return batch


def distinct(batches: Sequence[Any], most: int = 6) -> tuple[float, ...]:
    """The distinct values of the last small tensor of a batch, which is where targets are; empty: there are many."""
    named = [t for batch in batches for _, t in tensors(batch)]
    targets = [t for t in named[1:] if t.numel() <= 1_000_000 and t.dim() <= 2 and not t.is_complex()]
    if not targets:
        return ()
    values = torch.unique(targets[-1].detach().float())
    return tuple(values.tolist()) if len(values) <= most else ()
