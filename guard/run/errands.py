"""Work for actions that the step does not wait for. What came of it is journaled by a later tick."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guard.clock import Clock
from guard.types import Entry

_AT_ONCE = 8  # errands under way


class Errands:
    """Background threads, few and bounded.

    Args:
        run_dir: of the run.
        clock: injected.
        facts: what is known of an incident, by id.

    Attributes:
        done: ``(incident, name, outcome)`` of those that are over; filled by their threads, taken by the step.
    """

    def __init__(self, run_dir: Path, clock: Clock, facts: Callable[[str], Entry]) -> None:
        self.run_dir, self.clock, self.facts = run_dir, clock, facts
        self.done: deque[tuple[str, str, Any]] = deque()
        self._enough = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def busy(self) -> bool:
        """No further errand can start now."""
        self._threads = [t for t in self._threads if t.is_alive()]
        return len(self._threads) >= _AT_ONCE

    def start(self, incident: str, name: str, work: Callable[[threading.Event], Any]) -> None:
        """Lets `work` run in the background; its argument is set when it should come to an end."""

        def errand() -> None:
            try:
                outcome = work(self._enough)
            except Exception as error:  # noqa: BLE001 - told, and no more: training has gone on long since
                outcome = {"failed": f"{type(error).__name__}: {error}"[:500]}
            self.done.append((incident, name, outcome))

        self._threads = [t for t in self._threads if t.is_alive()]
        self._threads.append(threading.Thread(target=errand, name=f"guard-{name}", daemon=True))
        self._threads[-1].start()

    def wait(self, work: Callable[[threading.Event], Entry], timeout: float) -> Entry:
        """Does `work`, which keeps to its own time, while the step waits."""
        self.start("", "", work)
        thread = self._threads[-1]
        thread.join(timeout + 1.0)
        for outcome in [d for d in self.done if d[:2] == ("", "")]:
            self.done.remove(outcome)
            return dict(outcome[2])
        return {"failed": "it did not come to an end"}

    def close(self, timeout: float) -> None:
        """Gives what is under way `timeout` [s] all together, then a moment to come to an end."""
        end = self.clock.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - self.clock.monotonic()))
        self._enough.set()
        for thread in self._threads:
            thread.join(1.0)
