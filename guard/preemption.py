"""SIGTERM: a scheduler takes the machine away. The run's state is written at the next iteration boundary, and it ends.
A signal of the user's choice asks for a checkpoint, and the run goes on.

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
        checkpoint: called when `signal_name` comes.
        signal_name: e.g. ``SIGUSR1``; None: no signal asks for a checkpoint.

    Attributes:
        preempted: the signal has come.
    """

    def __init__(
        self,
        late: Callable[[], object],
        checkpoint: Callable[[], object] = lambda: None,
        signal_name: str | None = None,
    ) -> None:
        self.preempted = False
        self._late, self._checkpoint, self._pid = late, checkpoint, os.getpid()
        self._timer: threading.Timer | None = None
        self._before: dict[int, Any] = {}
        self._listen(signal.SIGTERM, self._end)
        if signal_name is not None:
            self._listen(signal.Signals[signal_name], self._ask)

    def _listen(self, number: int, handler: Callable[..., None]) -> None:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(number)
            if before not in (None, signal.SIG_IGN):  # None: not from Python, so that it could not be put back
                self._before[number] = before
                signal.signal(number, handler)

    def release(self) -> None:
        """Puts the handlers back that were there; not where somebody has put another on top since."""
        self.in_time()
        if threading.current_thread() is threading.main_thread():
            for number, handler in ((signal.SIGTERM, self._end), *((n, self._ask) for n in self._before)):
                if number in self._before and signal.getsignal(number) == handler:
                    signal.signal(number, self._before[number])

    def in_time(self) -> None:
        """The boundary has come: nobody need save anything late any more."""
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """All is safe: the handler of before has its turn, then the process ends.

        Raises:
            SystemExit: with `EXIT`.
        """
        before = self._before.get(signal.SIGTERM)
        if callable(before):
            before(signal.SIGTERM, None)
        raise SystemExit(EXIT)

    def _ask(self, number: int, frame: Any) -> None:
        if os.getpid() == self._pid:
            self._checkpoint()
        if callable(self._before[number]):
            self._before[number](number, frame)

    def _end(self, *_: Any) -> None:
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
