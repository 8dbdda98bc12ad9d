"""What one pass of the courier knows, and how long it may take."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from guard.clock import Clock
from guard.incidents import IncidentLog
from guard.notify.failure import OutOfTime
from guard.notify.outbox import Outbox

Plot = Callable[[Path, str], Path | None]
_BACKOFF, BACKOFF_CAP = 2.0, 300.0


class Pace:
    """At most one message per second and channel, over all receivers; and nothing after the deadline.

    Attributes:
        deadline: monotonic time at which to stop; None while the run goes on.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock, self.deadline = clock, None  # type: Clock, float | None
        self._last: dict[str, float] = {}
        self._never = threading.Event()
        self._random = random.Random()

    def wait(self, channel: str) -> None:
        """Waits for the channel's turn; raises `OutOfTime` if that would be too late."""
        self.left()
        delay = self._last.get(channel, -1.0) + 1.0 - self.clock.monotonic()
        if delay > 0 and channel in self._last:
            if self.deadline is not None and self.clock.monotonic() + delay >= self.deadline:
                raise OutOfTime
            self.clock.wait(self._never, delay)
        self._last[channel] = self.clock.monotonic()

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
    told: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def now(self) -> float:
        return self.pace.clock.time()
