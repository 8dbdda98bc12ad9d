"""Where the batches come from, and how to get the same ones again.

A callable is asked for an index. A DataLoader is read again: iterate from the random state with which its pass began,
pass over what was read before, put the snapshot's random state back. Batches are never hoarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from guard.checkpoints import RngState
from guard.errors import UsageError


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the data.

    Args:
        position: micro-batches read so far, over all passes.
        pass_number, in_pass: the pass over the source, and micro-batches read of it.
        rng, generators: random states with which that pass began.
        fresh: it began by starting persistent workers, which draws a seed that going on with them does not.
    """

    position: int = 0
    pass_number: int = 0
    in_pass: int = 0
    rng: RngState | None = None
    generators: tuple[torch.Tensor, ...] = ()
    fresh: bool = False


@dataclass(slots=True)
class Feed:
    """Reads a source micro-batch by micro-batch, forwards and again.

    Args:
        source: a callable ``index -> batch``, or an iterable; one that can be iterated only once cannot go back.
        accumulate: micro-batches per step, the size of a window.
        skipped: indices of windows that are left out, for good.
        position: micro-batches read so far, over all passes.
        on_pass: told of each pass that begins within `read`.
        iterable, can_go_back: what the source can do.
        passes: end after that many passes over the source; None: begin another whenever one ends.

    Raises:
        UsageError: the source is neither, or `accumulate` is not positive.
    """

    source: Iterable[Any] | Callable[[int], Any]
    accumulate: int = 1
    passes: int | None = None
    skipped: set[int] = field(default_factory=set)
    position: int = 0
    on_pass: Callable[[int], None] = lambda _: None
    _in_pass: int = 0
    _pass: Place = field(default_factory=Place)  # where the present pass began
    _iterator: Iterator[Any] | None = None
    iterable: bool = field(init=False)
    can_go_back: bool = field(init=False)

    def __post_init__(self) -> None:
        by_index = hasattr(self.source, "__getitem__") and not callable(self.source)
        self.iterable = hasattr(self.source, "__iter__") or by_index
        self.can_go_back = not self.iterable or not hasattr(self.source, "__next__")
        if self.accumulate < 1:
            raise UsageError(f"accumulate must be at least 1, not {self.accumulate}")
        if not self.iterable and not callable(self.source):
            raise UsageError(
                f"batches wants a DataLoader, another iterable, or a callable index -> batch; "
                f"{type(self.source).__name__} is neither"
            )

    @property
    def window(self) -> int:
        """Index of the window that is read next, or is being read."""
        return self.position // self.accumulate

    @property
    def pass_number(self) -> int:
        """The pass over the source that is read, from 0."""
        return self._pass.pass_number

    @property
    def at_pass_start(self) -> bool:
        return self.iterable and self._in_pass == 0

    @property
    def window_read(self) -> int:
        """Index of the window whose micro-batch was read last."""
        return max(0, self.position - 1) // self.accumulate

    @property
    def at_window_start(self) -> bool:
        return self.position % self.accumulate == 0

    def mark(self) -> Place:
        """Where it stands, with all that `restore` needs."""
        place = replace(self._pass, position=self.position, in_pass=self._in_pass)
        if self.iterable and self._in_pass == 0:
            fresh = getattr(self.source, "persistent_workers", False) and self.source._iterator is None  # type: ignore[union-attr]
            return replace(place, generators=tuple(g.get_state() for g in _generators(self.source)), fresh=fresh)
        return place

    def restore(self, place: Place) -> None:
        """Goes to `place`; the source is read again at the next `read`."""
        self.position, self._in_pass, self._pass, self._iterator = place.position, place.in_pass, place, None

    def aside(self, place: Place) -> Feed:
        """Another reader of the same source, which stands at `place`. Once it has read, `release` this one."""
        other = Feed(self.source, self.accumulate, skipped=set(self.skipped))
        other.restore(place)
        return other

    @property
    def pass_start(self) -> Place:
        """Where the present pass began."""
        return self._pass

    def release(self) -> None:
        """Lets go of the iterator, and with it of its worker processes; the next `read` takes up where it was."""
        if self._iterator is not None:
            self.restore(self.mark())

    def pass_over(self) -> int:
        """Passes over windows that are to be left out; returns how many.

        Raises:
            StopIteration: the data ended meanwhile.
        """
        count = 0
        while self.window in self.skipped:
            for _ in range(self.accumulate):
                if self.iterable:
                    self.read()
                else:
                    self.position += 1
            count += 1
        return count

    def read(self) -> Any:
        """The next micro-batch.

        Raises:
            StopIteration: the last pass is over.
        """
        if not self.iterable:
            batch = self.source(self.position)  # type: ignore[operator]
            self.position += 1
            return batch
        if self._iterator is None:
            self._iterator = self._resume()
        try:
            batch = next(self._iterator)
        except StopIteration:
            if self._in_pass == 0 and self.passes is None:
                raise UsageError("the source of g.batches is empty") from None
            if not self.can_go_back:
                raise
            self.restore(Place(self.position, self.pass_number + 1))
            if self.passes is not None and self.pass_number >= self.passes:
                raise
            self.on_pass(self.pass_number)
            return self.read()
        self.position += 1
        self._in_pass += 1
        return batch

    def _resume(self) -> Iterator[Any]:
        """An iterator that stands where `mark` says."""
        p = self._pass
        _set_epoch(self.source, p.pass_number)
        for generator, state in zip(_generators(self.source), p.generators, strict=False):
            generator.set_state(state)
        if p.fresh:
            self.source._iterator = None  # type: ignore[union-attr] # a DataLoader's persistent workers: start them again
        if self._in_pass == 0:
            self._pass = replace(self.mark(), rng=RngState.capture())
            return iter(self.source)  # type: ignore[arg-type]
        now = RngState.capture()
        assert p.rng is not None, "a pass that has begun knows the random state it began with"
        p.rng.restore()
        iterator = iter(self.source)  # type: ignore[arg-type]
        for _ in range(self._in_pass):
            next(iterator)
        now.restore()
        return iterator


def _samplers(source: Any) -> list[Any]:
    found: list[Any] = []
    for owner in (source, getattr(source, "batch_sampler", None)):
        sampler = getattr(owner, "sampler", None)
        found += [s for s in (owner, sampler) if s is not None and not any(s is f for f in found)]
    return found


def _generators(source: Any) -> list[torch.Generator]:
    """The generators of a DataLoader and its samplers; they are part of where it stands."""
    generators = [getattr(s, "generator", None) for s in _samplers(source)]
    return list({id(g): g for g in generators if isinstance(g, torch.Generator)}.values())


def _set_epoch(source: Any, number: int) -> None:
    for sampler in _samplers(source):
        if callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(number)
