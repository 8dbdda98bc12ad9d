"""SIGTERM: a scheduler takes the machine away. The run's state is written at the next iteration boundary, and it ends.

The exit code is 143 (128 + SIGTERM), as of a process that the signal has ended. A handler that was there before is
called last, and may end the process as it likes. A second SIGTERM ends the process at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

EXIT = 128 + signal.SIGTERM
GRACE = 20.0  # [s] of the 30 that Slurm and Kubernetes give


class Preemption:
    """Listens for SIGTERM, in the main thread only; elsewhere nothing is ever asked.

    Args:
        late: called in a thread of its own if no boundary came within two thirds of the grace; then the process ends.

    Attributes:
        preempted: the signal has come.
    """

    def __init__(self, late: Callable[[], object]) -> None:
        self.preempted = False
        self._late, self._pid = late, os.getpid()
        self._timer: threading.Timer | None = None
        self._before: Any = None
        self._installed = False
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGTERM)
            if before not in (None, signal.SIG_IGN):  # None: not from Python, so that it could not be put back
                self._before, self._installed = before, True
                signal.signal(signal.SIGTERM, self._handle)

    def release(self) -> None:
        """Puts the handler back that was there; not if somebody has put another on top since."""
        if self._timer is not None:
            self._timer.cancel()
        if self._installed and threading.current_thread() is threading.main_thread():
            self._installed = False
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, self._before)

    def end(self) -> None:
        """All is safe: the handler of before has its turn, then the process ends.

        Raises:
            SystemExit: with `EXIT`.
        """
        if callable(self._before):
            self._before(signal.SIGTERM, None)
        raise SystemExit(EXIT)

    def _handle(self, *_: Any) -> None:
        if os.getpid() != self._pid:  # a forked child, such as a loader's worker: not its business
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.preempted:
            raise SystemExit(EXIT)
        else:
            self.preempted = True
            self._timer = threading.Timer(GRACE * 2 / 3, self._give_up_waiting)
            self._timer.daemon = True
            self._timer.start()

    def _give_up_waiting(self) -> None:
        try:
            self._late()
        finally:
            os._exit(EXIT)
