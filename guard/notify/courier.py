"""The courier: follows a run's story and tells the receivers, in a thread of its own that survives anything.

What one pass does is in `rounds`. Nothing here runs inside a training step.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from guard.clock import Clock
from guard.home import Home
from guard.notify import check
from guard.notify.aside import Aside
from guard.notify.failure import OutOfTime
from guard.notify.rounds import POLL, SOON, Pending, Progress, Rounds
from guard.notify.spec import Escalation, ReceiverSpec
from guard.notify.turn import Limiter, Plot


class Courier:
    """Delivers one run's incidents.

    Args:
        run_dir: of the run; the journal is there.
        receivers: whom to tell. If all of them are switched off, the console is told instead.
        clock: injected.
        state: folder for the outbox; default: the run directory, or this host's own disk if that is on a network disk.
        beside: a further folder in which there may be something to add to the journal.
        aside: when to leave the telling to a daemon; None: never.
        limiter: shared with other couriers of this process.
        home: where listeners announce themselves; None: nobody hears buttons.
        escalate: by receiver, whom to tell as well when nobody answers; in place of what the receiver itself says.
        plot: draws an incident's evidence; may be slow; if it fails the message has no picture.
        say: where the courier speaks about itself; stderr by default.
    """

    def __init__(
        self,
        run_dir: Path,
        receivers: Sequence[ReceiverSpec],
        *,
        clock: Clock,
        state: Path | None = None,
        beside: Path | None = None,
        aside: Aside | None = None,
        limiter: Limiter | None = None,
        home: Home | None = None,
        escalate: Mapping[str, Escalation] | None = None,
        plot: Plot | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.run_dir, self._clock, self._aside = Path(run_dir), clock, aside
        self._say = say or say_on_stderr
        self._rounds = Rounds(
            self.run_dir,
            receivers,
            clock=clock,
            state=state,
            beside=beside,
            aside=aside,
            limiter=limiter,
            home=home,
            escalate=escalate,
            plot=plot,
            say=self._say,
        )
        self._wake, self._stop, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    # ---- for the guard

    def start(self) -> None:
        """Starts the background thread. Validates the receivers there, so that their faults show on Friday evening."""
        if self._thread is None and self._rounds.specs:
            self._thread = threading.Thread(target=self._run, name="guard-courier", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """The journal has something new. Costs nothing and never waits."""
        self._wake.set()

    def close(self, timeout: float) -> bool:
        """Delivers what it can within `timeout` seconds and no longer. True if nothing is left to tell.

        What is left stays in the outbox, for the daemon, a resumed run or `guard notify`.
        """
        if not self._rounds.specs:
            return True
        if self._aside is not None:
            self._aside.closing = True
        self._rounds.pace.deadline = self._clock.monotonic() + timeout
        self._stop.set()
        self._wake.set()
        if self._thread is None:
            # In a thread even so: a name server that hangs must not hold the caller.
            self._thread = threading.Thread(target=self._finish, name="guard-courier", daemon=True)
            self._thread.start()
        self._ended.wait(timeout)
        return self._ended.is_set() and not self.pending()

    # ---- for the daemon, `guard notify` and status

    def deliver_once(self, *, eager: bool = False) -> Progress:
        """One pass, now and here. With `eager` waiting times after failures are not kept (a person asked). Where there
        is no news it costs a few `stat`."""
        return self._rounds.deliver_once(eager=eager)

    def pending(self) -> list[Pending]:
        """What is not told yet, and why; silences left aside. Reads the story anew, so it can be asked at any time."""
        return self._rounds.pending()

    # ---- the thread

    def _run(self) -> None:
        checked = False
        while not self._stop.is_set():
            delay = self._guarded_pass()
            if not checked:
                checked = True
                # Beside, lest a network that hangs holds the next message.
                threading.Thread(target=self._check, name="guard-courier-check", daemon=True).start()
            self._clock.wait(self._wake, delay)
            self._wake.clear()
        self._finish()

    def _finish(self) -> None:
        """The last passes, until all is told or the time is up."""
        try:
            while True:
                progress = self.deliver_once(eager=True)
                left = self._rounds.pace.left()
                if not progress.waiting or not progress.leader or (progress.next_try or 0.0) >= left:
                    break
                self._clock.wait(threading.Event(), min(SOON, left))
        except OutOfTime:
            pass
        except Exception as error:  # noqa: BLE001 - the run's end must not fail because of a message
            self._rounds.trouble(error)
        finally:
            self._rounds.release()
            self._ended.set()

    def _guarded_pass(self) -> float:
        """One pass; whatever goes wrong in it, the thread lives on."""
        try:
            progress = self.deliver_once()
        except OutOfTime:
            return 0.0
        except Exception as error:  # noqa: BLE001 - the thread must survive anything
            self._rounds.trouble(error)
            return POLL
        return POLL if progress.next_try is None else max(0.05, min(POLL, progress.next_try))

    def _check(self) -> None:
        try:
            check.check_receivers(self._rounds.specs, say=self._say)
        except Exception as error:  # noqa: BLE001
            self._rounds.trouble(error)


def say_on_stderr(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr is closed
        sys.stderr.write(f"guard: {text}\n")
