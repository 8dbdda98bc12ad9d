"""What the ranks tell each other in a tick: one vector, to be summed over them.

First sums of masked numbers, then a slot per rank with its flags, then a slot per rank with the largest input it saw. A
slot is zero on all other ranks, so that its sum is exact. NaN and Inf are never sent, only flags that stand for them.
Everything is computed from the summed vector alone, and so is the same, bit for bit, on all ranks.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from guard.types import Signals

# Sums over ranks. The rates and the loss scale are rank 0's.
_LOSS, _SQUARES, _PARAMS, _GUESS, _SECONDS, _LR, _LR_EFFECTIVE, _SCALE = range(8)
_SUMS = 8

# Flags of one rank.
_KNOWN = 1  # it knows a loss; this one is counted by adding, so it must be 1
_LOSS_NAN, _LOSS_INF, _LOSS_MINUS_INF = 2, 4, 8
_GRAD_NAN, _GRAD_INF = 16, 32
_OVERFLOW = 64
_LEAVING = 128
_MORE = 256
_GUESSED = 1024
_TIMED = 2048
_RATES_BAD = 4096
_FED, _NOT_FINITE, _ALL_ZERO, _ALL_IGNORED = 1 << 13, 1 << 14, 1 << 15, 1 << 16  # of the inputs

_LOSS_BAD = _LOSS_NAN | _LOSS_INF | _LOSS_MINUS_INF
_GRAD_BAD = _GRAD_NAN | _GRAD_INF


class Agreed(NamedTuple):
    """What all ranks know after a tick's agreement, besides the signals.

    Args:
        more: some rank has more to say than the vector holds; all ranks are to `Ranks.gather` now.
        leaving: ranks whose guard lets go of the run; all others must do the same now.
        bad_ranks, bad_loss_ranks: whose gradient, whose loss is not finite.
        overflow_ranks: whose loss scaler leaves this step out.
    """

    more: bool = False
    leaving: tuple[int, ...] = ()
    bad_ranks: tuple[int, ...] = ()
    bad_loss_ranks: tuple[int, ...] = ()
    overflow_ranks: tuple[int, ...] = ()


CALM = Agreed()


class Packer:
    """Writes one rank's part of the vector, and reads the sum.

    Args:
        rank, world: which of how many.

    Attributes:
        vector: float64, ``8 + 2 * world`` numbers; to be summed over ranks in place between `write` and `read`.
    """

    __slots__ = ("_empty", "_limit", "_rank", "_world", "vector")

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._empty = array("d", bytes(8 * (_SUMS + 2 * world)))
        self._limit = 1e308 / world  # of a number, so that the sum is finite too
        self.vector = array("d", self._empty)

    def write(self, s: Signals, norm_squared: float, *, leaving: bool, more: bool) -> None:
        """This rank's part.

        Args:
            s: as measured on this rank.
            norm_squared: its share in the global squared gradient norm, unscaled; larger ones than 1e308 / world count
                as that.
        """
        v, limit, rank = self.vector, self._limit, self._rank
        v[:] = self._empty
        flags = _LEAVING * leaving | _MORE * more
        if leaving:
            v[_SUMS + rank] = flags
            return
        if s.loss_known:
            loss = s.loss
            if -limit < loss < limit:
                v[_LOSS] = loss
                flags |= _KNOWN
            else:
                flags |= self._write_odd_loss(loss)
        if s.grad_norm < math.inf and norm_squared < limit:
            v[_SQUARES] = norm_squared
        elif s.grad_norm < math.inf:
            v[_SQUARES] = limit
        else:
            flags |= _GRAD_INF if s.grad_norm == math.inf else _GRAD_NAN
        if s.overflow:
            flags |= _OVERFLOW
        v[_PARAMS] = s.params
        if -limit < s.guess < limit:
            v[_GUESS] = s.guess
            flags |= _GUESSED
        if not rank:
            if s.lr - s.lr == s.lr_effective - s.lr_effective == s.loss_scale - s.loss_scale == 0.0:
                v[_LR], v[_LR_EFFECTIVE], v[_SCALE] = s.lr, s.lr_effective, s.loss_scale
            else:
                flags |= _RATES_BAD
        if s.deep is not None:
            flags |= self._write_look(s.deep)
        v[_SUMS + rank] = flags

    def _write_odd_loss(self, loss: float) -> int:
        if math.isnan(loss):
            return _KNOWN | _LOSS_NAN
        if loss - loss == 0.0:
            self.vector[_LOSS] = math.copysign(self._limit, loss)
            return _KNOWN
        return _KNOWN | (_LOSS_INF if loss > 0 else _LOSS_MINUS_INF)

    def _write_look(self, deep: dict[str, object]) -> int:
        """Those parts of a look that come in every tick: time and inputs."""
        flags = 0
        seconds, inputs = deep.get("seconds"), deep.get("inputs")
        if isinstance(seconds, float) and -self._limit < seconds < self._limit:
            self.vector[_SECONDS] = seconds
            flags |= _TIMED
        if isinstance(inputs, dict):
            flags |= _FED | _NOT_FINITE * (not inputs["finite"])
            flags |= _ALL_ZERO * inputs["zero"] | _ALL_IGNORED * inputs["ignored"]
            peak = inputs["peak"]
            self.vector[_SUMS + self._world + self._rank] = peak if peak < self._limit else self._limit
        return flags

    def read(self, total: Sequence[float], s: Signals) -> Agreed:
        """Overwrites `s` with what is agreed.

        Args:
            total: the summed vector.
            s: this rank's signals of the tick. While a rank is leaving, rates and loss scale stay this rank's own.
        """
        world = self._world
        slots = total[_SUMS : _SUMS + world]
        alike = slots.count(slots[0]) == world
        flags = [int(slots[0])] if alike else [int(f) for f in slots]
        times, seen = (world, flags[0]) if alike else (1, reduce(or_, flags))

        def count(bit: int) -> int:
            return times * sum(1 for f in flags if f & bit)

        known = count(_KNOWN)
        s.loss_known = known > 0
        s.loss = total[_LOSS] / known if known else math.nan
        s.grad_norm = math.sqrt(total[_SQUARES])
        s.overflow = bool(seen & _OVERFLOW)
        s.params = -(-int(total[_PARAMS]) // world)
        s.guess = total[_GUESS] / count(_GUESSED) if seen & _GUESSED else math.nan
        if seen & _RATES_BAD:
            s.lr = s.lr_effective = s.loss_scale = math.nan
        elif not seen & _LEAVING:
            s.lr, s.lr_effective, s.loss_scale = total[_LR], total[_LR_EFFECTIVE], total[_SCALE]
        if seen & (_TIMED | _FED):
            s.deep = self._look(s.deep, total, seen, count(_TIMED))
        if not seen & (_LOSS_BAD | _GRAD_BAD | _OVERFLOW | _LEAVING | _MORE):
            return CALM
        if seen & _LOSS_BAD:
            s.loss = _sum_of_odd(seen)
        if seen & _GRAD_BAD:
            s.grad_norm = math.nan if seen & _GRAD_NAN else math.inf
        every = flags * times

        def who(bits: int) -> tuple[int, ...]:
            return tuple(rank for rank, f in enumerate(every) if f & bits)

        return Agreed(bool(seen & _MORE), who(_LEAVING), who(_GRAD_BAD), who(_LOSS_BAD), who(_OVERFLOW))

    def _look(self, deep: dict[str, object] | None, total: Sequence[float], seen: int, timed: int) -> dict[str, object]:
        agreed = {part: value for part, value in (deep or {}).items() if part not in ("seconds", "inputs")}
        if timed:
            agreed["seconds"] = total[_SECONDS] / timed
        if seen & _FED:
            agreed["inputs"] = {
                "finite": not seen & _NOT_FINITE,
                "peak": max(total[_SUMS + self._world :]),
                "zero": bool(seen & _ALL_ZERO),
                "ignored": bool(seen & _ALL_IGNORED),
            }
        return agreed


def _sum_of_odd(seen: int) -> float:
    """As adding the losses would have it."""
    if seen & _LOSS_NAN or (seen & _LOSS_INF and seen & _LOSS_MINUS_INF):
        return math.nan
    return math.inf if seen & _LOSS_INF else -math.inf
