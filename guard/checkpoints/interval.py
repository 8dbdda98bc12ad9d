"""When the next snapshot is due, and how many fit."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

from guard.checkpoints.state import Snapshot
from guard.clock import Clock

_SHARE = 0.005  # of the run's time that `auto` spends on snapshots, and as much on checkpoints on disk
_FIRST = 60.0  # [s] after which `auto` writes the first one, which shows what one costs


class Interval:
    """Every so many steps, or as often as a small share of the run's time allows.

    Args:
        every: steps, or ``auto``.
        clock: for `auto`.
    """

    def __init__(self, every: int | Literal["auto"], clock: Clock) -> None:
        self._every, self._clock = every, clock
        self._next_step, self._next_time = 0, 0.0
        self._cost = 0.0

    @property
    def by_clock(self) -> bool:
        """Only this process's clock knows when one is due."""
        return self._every == "auto"

    def due(self, step: int) -> bool:
        if self._every == "auto":
            return self._clock.monotonic() >= self._next_time
        return step >= self._next_step

    def measure(self, capture: Callable[[], Snapshot]) -> Snapshot:
        """Takes a snapshot and remembers what it cost."""
        start = self._clock.monotonic()
        snapshot = capture()
        self._cost = self._clock.monotonic() - start
        return snapshot

    def taken(self, step: int) -> None:
        """A snapshot was taken, or the run went back to one, at `step`."""
        if self._every == "auto":
            self._next_time = self._clock.monotonic() + self._cost / _SHARE
        else:
            self._next_step = step + self._every

    def now(self) -> None:
        """Makes one due at the next boundary."""
        self._next_step, self._next_time = 0, 0.0


class DiskInterval:
    """Every so many steps, every so many seconds, or as often as a small share of the run's time allows.

    Args:
        every: an int is steps, a float is seconds; ``auto``: what a write takes is at most 0.5 % of the time until the
            next, as measured at the last one.
        clock: for seconds and `auto`.
    """

    def __init__(self, every: int | float | Literal["auto"], clock: Clock) -> None:
        self._every, self._clock = every, clock
        self._next_step = every if isinstance(every, int) else 0
        self._cost = _FIRST * _SHARE
        self._next_time = 0.0
        self._wait()

    def due(self, step: int) -> bool:
        if isinstance(self._every, int):
            return step >= self._next_step
        return self._clock.monotonic() >= self._next_time

    def began(self, step: int) -> None:
        """A save began at `step`, or the run went back to it."""
        if isinstance(self._every, int):
            self._next_step = step + self._every
        self._wait()

    def took(self, seconds: float) -> None:
        """The save is over, after `seconds`; failed or not."""
        self._cost = seconds
        if self._every == "auto":
            self._wait()

    def now(self) -> None:
        """Makes one due at once."""
        self._next_step, self._next_time = 0, 0.0

    def _wait(self) -> None:
        if not isinstance(self._every, int):
            seconds = self._cost / _SHARE if self._every == "auto" else self._every
            self._next_time = self._clock.monotonic() + seconds


def keep_that_fits(size: int, keep: int, share: float) -> int:
    """How many good snapshots of `size` [bytes] fit into `share` of the free memory, besides start and candidate;
    >= 1.
    """
    return max(1, min(keep, int(free_memory() * share // max(1, size)) - 2))


def free_memory() -> int:
    """Memory [bytes] that could be used without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - a kernel file
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
