"""What one pass of the courier knows, and how long it may take."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from guard.clock import Clock
from guard.incidents import IncidentLog
from guard.notify.failure import OutOfTime
from guard.notify.outbox import Outbox

Plot = Callable[[Path, str], Path | None]
_BACKOFF, BACKOFF_CAP = 2.0, 300.0


@dataclass(slots=True)
class _Storm:
    id: str
    run: str
    latest: float
    elsewhere: dict[str, int] = field(default_factory=dict)


class Limiter:
    """What all couriers of a process share, so that many runs are no more to read than one: at most one message per
    second and channel, and one storm per channel. Safe to use from several threads.

    A storm's rolling message belongs to the run that began it; other runs add their numbers to it.

    Attributes:
        joined: how often a run has added something to another's storm.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._turns: dict[str, float] = {}
        self._roots: dict[str, deque[float]] = {}
        self._storms: dict[str, _Storm] = {}
        self.joined = 0

    def take_turn(self, channel: str, before: float | None = None) -> float | None:
        """Seconds until the channel's next free turn, which is taken thereby; None if that is not `before` [monotonic
        s]."""
        with self._lock:
            now = self._clock.monotonic()
            at = max(now, self._turns.get(channel, now - 1.0) + 1.0)
            if before is not None and at >= before and at > now:
                return None
            self._turns[channel] = at
            return at - now

    def rooted(self, channel: str, now: float) -> None:
        """An incident got a message of its own there."""
        with self._lock:
            self._roots.setdefault(channel, deque(maxlen=1000)).append(now)

    def roots(self, channel: str, since: float) -> int:
        """How many did since then, over all runs."""
        with self._lock:
            return sum(at > since for at in self._roots.get(channel, ()))

    def storm(self, channel: str, run: str, begun: str, now: float, lasts: float) -> str:
        """Id of the storm that something more belongs to.

        Args:
            begun: id of the storm that begins, or goes on, in `run` if there is none in another run.
            lasts: seconds after which a storm that nothing was added to is over.
        """
        with self._lock:
            found = self._storms.get(channel)
            if found is None or found.run == run or found.latest <= now - lasts:
                elsewhere = found.elsewhere if found and found.id == begun else {}
                found = self._storms[channel] = _Storm(begun, run, now, elsewhere)
            found.latest = now
            return found.id

    def join(self, channel: str, storm: str, run: str, number: int) -> None:
        """So many incidents of `run` are counted in another run's storm."""
        with self._lock:
            found = self._storms.get(channel)
            if found is not None and found.id == storm and found.elsewhere.get(run) != number:
                found.elsewhere[run] = number
                self.joined += 1

    def elsewhere(self, channel: str, storm: str) -> list[int]:
        """What each of the other runs has added."""
        with self._lock:
            found = self._storms.get(channel)
            return list(found.elsewhere.values()) if found is not None and found.id == storm else []

    def leave(self, run: str) -> None:
        """Nobody keeps this run's rolling messages any more."""
        with self._lock:
            self._storms = {channel: s for channel, s in self._storms.items() if s.run != run}


class Pace:
    """How fast one courier may go, and nothing after its deadline.

    Attributes:
        deadline: monotonic time at which to stop; None while the run goes on.
    """

    def __init__(self, clock: Clock, limiter: Limiter | None = None) -> None:
        self.clock, self.deadline = clock, None  # type: Clock, float | None
        self.limiter = limiter or Limiter(clock)
        self._never = threading.Event()
        self._random = random.Random()

    def wait(self, channel: str) -> None:
        """Waits for the channel's turn; raises `OutOfTime` if that would be too late."""
        self.left()
        delay = self.limiter.take_turn(channel, self.deadline)
        if delay is None:
            raise OutOfTime
        if delay > 0:
            self.clock.wait(self._never, delay)

    def left(self, limit: float = 600.0) -> float:
        """Seconds a call may take, at most `limit`; raises `OutOfTime` if there are none left."""
        if self.deadline is None:
            return limit
        left = self.deadline - self.clock.monotonic()
        if left <= 0:
            raise OutOfTime
        return min(limit, max(0.05, left))

    def backoff(self, failures: int) -> float:
        """Seconds until the next try after so many failures in a row; random, lest all runs come back at once."""
        return min(BACKOFF_CAP, _BACKOFF * 2.0 ** min(failures - 1, 20)) * self._random.uniform(0.5, 1.0)


@dataclass(slots=True)
class Turn:
    """One pass over all receivers.

    Args:
        run_key: names this run in message metadata, the same for every process that delivers it.
        versions: by incident, how many journal lines have concerned it.
        suspects: incidents that may have been told by an outbox that was lost; looked up before they are told.
        eager: waiting after failures is over (a person asked, or the run is closing).
        listening: somebody hears buttons.
    """

    log: IncidentLog
    box: Outbox
    pace: Pace
    run_dir: Path
    run_key: str
    versions: dict[str, int]
    suspects: set[str]
    plot: Plot | None
    say: Callable[[str], None]
    eager: bool = False
    listening: bool = False
    told: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def now(self) -> float:
        return self.pace.clock.time()
