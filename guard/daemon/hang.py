"""When silence is a hang. A pure judge: heartbeats and the time go in.

The limit of a phase is ten times the longest pause ever seen in it, and never below a floor. Time is the judge's own,
at the last *change* of (tick, step, phase): a clock on another machine, or a file that is only touched, proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from guard.daemon.beats import Beat

FACTOR = 10.0  # times the longest pause seen
_FLOOR = 60.0  # [s]
# [s] floor of what may well take long: start, eval, checkpoint, the first step (compilation), and the second as long as
# nothing shows how long a step takes in this run.
_LONG = 600.0
_OFTEN = frozenset({"step", "data"})
_UNLIMITED = frozenset({"paused", "end"})  # a person is waited for; what comes after the run is the script's own
_FIRST = "first step"


@dataclass(frozen=True, slots=True)
class Hang:
    """No rank makes progress.

    Args:
        rank: the one that the others wait for, as far as can be seen.
        phase: what it was doing.
        seconds: since its last heartbeat changed.
        limit: after how many it is called hung.
        others: how many other ranks are silent with it.
    """

    rank: int
    tick: int
    step: int
    phase: str
    seconds: float
    limit: float
    others: int


@dataclass(slots=True)
class _Rank:
    beat: Beat
    since: float
    stepped: bool = False  # it has completed a step in this life


class HangJudge:
    """Learns what is usual over all lives of a run, and says when a life has stopped.

    Args:
        fixed: limit of every phase [s], in place of learned ones; infinite: nothing is ever called hung.
        longest: what an earlier judge of this run has learned.
        floor: of the limit of steps and their data [s].
        long: of the others' [s].
    """

    def __init__(
        self,
        fixed: float | None = None,
        longest: Mapping[str, float] | None = None,
        *,
        floor: float = _FLOOR,
        long: float = _LONG,
    ) -> None:
        self._fixed, self._floor, self._long = fixed, floor, long
        self._longest = dict(longest or {})
        self._ranks: dict[int, _Rank] = {}

    def begin(self) -> None:
        """A new life: nothing of the old one's ranks is known any more."""
        self._ranks.clear()

    def forgive(self, now: float) -> None:
        """The judge itself was stopped, or the machine asleep: nobody could be seen making progress."""
        for rank in self._ranks.values():
            rank.since = now

    def look(self, beats: Mapping[int, Beat], now: float) -> Hang | None:
        """Takes the heartbeats of now. A hang is only what no rank is within its limit of: one that evaluates keeps
        the others waiting, and that is no fault of theirs.
        """
        for number in [n for n in self._ranks if n not in beats]:
            del self._ranks[number]
        for number, beat in beats.items():
            self._hear(number, beat, now)
        alive = [r for r in self._ranks.values() if r.beat.phase != "end"]
        if not alive or any(now - r.since <= self.limit(r.beat.phase, stepped=r.stepped) for r in alive):
            return None
        worst = min(alive, key=lambda r: (r.beat.tick, r.since, r.beat.rank))
        b, limit = worst.beat, self.limit(worst.beat.phase, stepped=worst.stepped)
        return Hang(b.rank, b.tick, b.step, b.phase, now - worst.since, limit, len(alive) - 1)

    def silence(self, now: float) -> float:
        """How long the rank that was heard of last has been silent, as a share of its limit."""
        alive = [r for r in self._ranks.values() if r.beat.phase != "end"]
        return min(((now - r.since) / self.limit(r.beat.phase, stepped=r.stepped) for r in alive), default=0.0)

    @property
    def longest(self) -> dict[str, float]:
        """The longest pauses seen, by phase [s]: what it has learned."""
        return dict(self._longest)

    def limit(self, phase: str, *, stepped: bool = True) -> float:
        """How long a rank may be silent in `phase` [s].

        Args:
            stepped: it has completed a step since it was started.
        """
        if phase in _UNLIMITED:
            return math.inf
        if self._fixed is not None:
            return self._fixed
        key = _key(phase, stepped=stepped)
        usual = key in _OFTEN and any(phase in self._longest for phase in _OFTEN)
        return max(self._floor if usual else self._long, FACTOR * self._longest.get(key, 0.0))

    def _hear(self, number: int, beat: Beat, now: float) -> None:
        rank = self._ranks.get(number)
        if rank is None:
            self._ranks[number] = _Rank(beat, now)
        elif rank.beat != beat:
            key = _key(rank.beat.phase, stepped=rank.stepped)
            self._longest[key] = max(self._longest.get(key, 0.0), now - rank.since)
            ticks = 0 if rank.beat.phase == "start" else beat.tick - rank.beat.tick
            if ticks > 1:  # heartbeats are a second apart: no single step takes long
                self._longest.setdefault("step", 0.0)
            rank.stepped |= ticks != 0
            rank.beat, rank.since = beat, now


def _key(phase: str, *, stepped: bool) -> str:
    return _FIRST if not stepped and phase in _OFTEN else phase
