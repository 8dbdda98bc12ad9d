"""Batches are read once, copied, and kept; the loader's own random numbers are put back."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from guard.checkpoints.rng import RngState
from guard.doctor import tree

_MEMORY = 512e6  # bytes of batches kept
_ITEMS = 400  # samples read in the data set's own order
_ITEM_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Supply:
    """What a loader gave.

    Args:
        batches: the first of one pass, in order; copies.
        complete: the pass ended with them.
        length: batches a pass has, if the loader says so.
        order: ``shuffled``, ``fixed`` (the same in each pass) or ``unknown``.
        streamed: the loader has no access by index.
        one_shot: an iterator; what was read from it is gone.
        neighbours: samples 0, 1, 2, ... of the data set as one batch; None if it has no access by index.
        spread: samples from everywhere in the data set as one batch, only for a loader that reads in its order.
        error: why reading stopped, if something was raised.
    """

    batches: tuple[Any, ...]
    complete: bool = False
    length: int | None = None
    order: str = "unknown"
    streamed: bool = False
    one_shot: bool = False
    neighbours: Any = None
    spread: Any = None
    error: str = ""


def read(loader: Any, limit: int, *, deeply: bool = True, clock: Callable[[], float] | None = None) -> Supply:
    """Reads up to `limit` batches.

    Args:
        deeply: also look at the order and at single samples.
        clock: monotonic [s], bounds how long single samples are read.
    """
    if not isinstance(loader, DataLoader) and not hasattr(loader, "__iter__"):
        loader = _Indexed(loader)
    length, dataset = _length(loader), getattr(loader, "dataset", None)
    streamed = isinstance(dataset, IterableDataset) or (dataset is None and not hasattr(loader, "__getitem__"))
    one_shot = not isinstance(loader, DataLoader) and iter(loader) is loader if hasattr(loader, "__next__") else False
    with _untouched(loader):
        source = loader if one_shot else _in_process(loader)
        batches, complete, error = _first(source, limit)
        if not deeply or not batches or one_shot or error:
            return Supply(batches, complete, length, streamed=streamed, one_shot=one_shot, error=error)
        order = _order(loader, source, batches)
        neighbours = spread = None
        if not streamed and isinstance(loader, DataLoader) and loader.batch_size is not None and clock is not None:
            n = _length(dataset) or 0
            neighbours = _items(loader, range(min(n, _ITEMS)), clock)
            if isinstance(loader.sampler, SequentialSampler) and n > _ITEMS:
                spread = _items(loader, [i * n // _ITEMS for i in range(_ITEMS)], clock)
            elif isinstance(loader.sampler, SequentialSampler):
                spread = neighbours
    return Supply(batches, complete, length, order, streamed, one_shot, neighbours, spread, error)


class _Indexed:
    """Iterates over what only has ``__getitem__``."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        index = 0
        with contextlib.suppress(IndexError):
            while True:
                yield self._source[index]
                index += 1


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:  # noqa: BLE001 - a stream has none, and says so in its own way
        return None


def _in_process(loader: Any) -> Any:
    """The same loader without worker processes, so that a live iterator of the user's stays as it is."""
    if not isinstance(loader, DataLoader) or loader.num_workers == 0 or loader.worker_init_fn is not None:
        return loader
    how: dict[str, Any] = {"collate_fn": loader.collate_fn, "generator": loader.generator}
    if isinstance(loader.dataset, IterableDataset):
        return DataLoader(loader.dataset, batch_size=loader.batch_size, drop_last=loader.drop_last, **how)
    if loader.batch_sampler is not None:
        return DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, **how)
    return DataLoader(loader.dataset, batch_size=None, sampler=loader.sampler, **how)


def _first(loader: Any, limit: int) -> tuple[tuple[Any, ...], bool, str]:
    """The batches, whether the pass ended, and what was raised."""
    batches: list[Any] = []
    size = 0
    try:
        iterator = iter(loader)
        while len(batches) < limit and size < _MEMORY:
            try:
                batch = next(iterator)
            except StopIteration:
                return tuple(batches), True, ""
            batches.append(tree.change(batch, lambda t: t.detach().clone()))
            size += sum(t.numel() * t.element_size() for _, t in tree.tensors(batch))
    except Exception as error:  # noqa: BLE001 - whatever a user's data set raises is a finding
        return tuple(batches), False, f"{type(error).__name__}: {error}"
    return tuple(batches), False, ""


def _order(loader: Any, source: Any, batches: tuple[Any, ...]) -> str:
    """A second pass begins with other random numbers: with the same batch?"""
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, SequentialSampler) and isinstance(
        getattr(loader, "batch_sampler", None), torch.utils.data.BatchSampler
    ):
        return "fixed"
    if getattr(sampler, "shuffle", None) is True:  # DistributedSampler: its order changes with `set_epoch`
        return "shuffled"
    if len(batches) == 1:
        return "unknown"
    torch.manual_seed(torch.initial_seed() % 2**31 + 7919)
    random.seed(7919)
    np.random.seed(7919)
    again, _, error = _first(source, 1)
    if error or not again:
        return "unknown"
    return "fixed" if tree.equal(again[0], batches[0]) else "shuffled"


def _items(loader: DataLoader[Any], indices: Any, clock: Callable[[], float]) -> Any:
    """Single samples as one batch; None if the data set does not give them alone."""
    collate: Any = loader.collate_fn
    end = clock() + _ITEM_SECONDS
    items = []
    try:
        for i in indices:
            items.append(loader.dataset[i])
            if clock() > end:
                break
        return collate(items) if items else None
    except Exception:  # noqa: BLE001 - it is only a closer look: the batches themselves have been read
        return None


@contextlib.contextmanager
def _untouched(loader: Any) -> Iterator[None]:
    """Puts back every random number generator that reading could have drawn from."""
    everything, kept = RngState.capture(), _generators(loader)
    try:
        yield
    finally:
        for put_back in kept:
            put_back()
        everything.restore()


def _generators(loader: Any) -> list[Callable[[], object]]:
    """Generators that belong to the loader, its samplers, its data set, each with its state."""
    kept: list[Callable[[], object]] = []
    batch_sampler = getattr(loader, "batch_sampler", None)
    for owner in (
        loader,
        getattr(loader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
        getattr(loader, "dataset", None),
        getattr(getattr(loader, "dataset", None), "dataset", None),
    ):
        for value in list(getattr(owner, "__dict__", {}).values()):
            if put_back := _kept(value):
                kept.append(put_back)
    return kept


def _kept(g: Any) -> Callable[[], object] | None:
    """Puts a generator back to its state now; None if it is no generator."""
    if isinstance(g, torch.Generator):
        return partial(g.set_state, g.get_state())
    if isinstance(g, np.random.RandomState):
        return partial(g.set_state, g.get_state())
    if isinstance(g, np.random.Generator):
        return partial(setattr, g.bit_generator, "state", g.bit_generator.state)
    return partial(g.setstate, g.getstate()) if isinstance(g, random.Random) else None
