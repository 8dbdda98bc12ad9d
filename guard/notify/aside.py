"""``deliver: auto | process | daemon``: when the courier in the training process leaves the telling to a daemon."""

from __future__ import annotations

import math
import socket
from typing import Literal

from guard.clock import Clock
from guard.home import Home

Deliver = Literal["auto", "process", "daemon"]
PATIENCE = 60.0  # [s] something may stay untold before a process with ``auto`` tells it itself
LOOK = 10.0  # [s] between looks into the home


class Aside:
    """Whether to stand aside for a daemon. For the courier in a training process; all others always tell.

    Args:
        deliver: as the policy says.
        home: where daemons announce themselves; None: there is none.
        host: on which a daemon can reach the outbox.

    Attributes:
        closing: the process ends, so that ``daemon`` without a daemon would mean that nobody tells.
    """

    def __init__(self, deliver: Deliver, home: Home | None, clock: Clock, host: str | None = None) -> None:
        self._deliver, self._home, self._clock = deliver, home, clock
        self._host = host or socket.gethostname()
        self._waiting_since: float | None = None
        self._looked, self._lives = -math.inf, False
        self.fallen_back, self.closing = False, False

    def now(self) -> bool:
        """A daemon is to tell what there is to tell now."""
        match self._deliver:
            case "process":
                return False
            case "daemon":
                return self._daemon_lives() if self.closing else True
            case "auto":
                return not self.fallen_back and self._daemon_lives()

    def waits(self, something: bool) -> bool:
        """Notes whether anything is left untold; True where that has now lasted too long, from which on this process
        tells for good."""
        now = self._clock.monotonic()
        if not something:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        elif self._deliver == "auto" and now - self._waiting_since >= PATIENCE:
            self.fallen_back = True
        return self.fallen_back

    def _daemon_lives(self) -> bool:
        now = self._clock.monotonic()
        if now - self._looked >= LOOK or self.closing:
            self._looked, self._lives = now, self._home is not None and self._home.delivers(self._host)
        return self._lives
