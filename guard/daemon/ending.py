"""Ending a command: politely first, and surely in the end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Literal

from guard.daemon.child import Child
from guard.preemption import GRACE

Reason = Literal["interrupt", "terminate", "hang", "rest"]
_LAST = 10.0  # [s] after KILL


def _interrupt(child: Child) -> None:
    child.send(signal.SIGINT, group=True)  # as the terminal would have


def _leader(child: Child) -> None:
    """To the command alone: a loader's worker that ends on it would be a crash, in place of a checkpoint."""
    child.send(signal.SIGTERM, group=False)


def _group(child: Child) -> None:
    child.send(signal.SIGTERM, group=True)


def _wake(child: Child) -> None:
    """One that was stopped cannot hear."""
    child.send(signal.SIGTERM, group=False)
    child.send(signal.SIGCONT, group=True)


def _kill(child: Child) -> None:
    child.kill()


Rung = tuple[float, Callable[[Child], None]]  # seconds after the one before, and what is done
# The guard inside takes up to GRACE to write a checkpoint, and a little to say so.
_LADDERS: dict[Reason, tuple[Rung, ...]] = {
    "interrupt": ((0.0, _interrupt), (10.0, _leader), (GRACE + 5, _kill)),
    "terminate": ((0.0, _leader), (GRACE + 2, _group), (5.0, _kill)),
    "hang": ((1.0, _wake), (GRACE, _kill)),  # a process that was asked for its stacks gets a moment to write them
    "rest": ((0.0, _group), (GRACE + 5, _kill)),
}


class Ending:
    """On its way.

    Attributes:
        failed: not even KILL has ended it.
    """

    def __init__(self, reason: Reason, now: float) -> None:
        self._rungs, self._since, self._hurried = list(_LADDERS[reason]), now, False
        self.failed = False

    def hurry(self) -> None:
        """The next rung is due at once."""
        self._hurried = True

    def go_on(self, child: Child, now: float) -> None:
        """Does what is due."""
        if not self._rungs:
            self.failed = now - self._since > _LAST
        elif self._hurried or now - self._since >= self._rungs[0][0]:
            self._hurried, self._since = False, now
            self._rungs.pop(0)[1](child)
