"""A thread that does what was heard, one after the other, while others go on listening."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from guard.daemon.deeds import Deeds
from guard.daemon.hearing import Refused, Wish
from guard.daemon.once import Once
from guard.notify.words import clean

Todo = Wish | Refused | dict[str, Any]  # the last: forwarded by the listener on another host
_MOST = 100
_LOOK = 1.0  # [s] between looks at how requests were answered


class Doing:
    """Takes at most a hundred things at a time.

    Args:
        counted: hears of each wish whether it was done.
        say: for the log; hears each kind of failure once.
    """

    def __init__(self, deeds: Deeds, counted: Callable[[bool], None], say: Callable[[str], None]) -> None:
        self._deeds, self._counted, self._say, self._said = deeds, counted, say, Once(100)
        self._todo: queue.Queue[Todo | None] = queue.Queue(_MOST)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="guard-deeds", daemon=True)

    @property
    def full(self) -> bool:
        return self._todo.full()

    def start(self) -> None:
        self._thread.start()

    def put(self, todo: Todo, patience: float = 5.0) -> None:
        """Raises queue.Full if there is no room for that long [s]."""
        self._todo.put(todo, timeout=patience)

    def stop(self, timeout: float) -> None:
        """Does what is there, then ends; waits at most `timeout` [s]."""
        self._ending.set()
        with contextlib.suppress(queue.Full):  # then it looks by itself whether it shall end
            self._todo.put_nowait(None)
        self._thread.join(timeout)

    def _work(self) -> None:
        while True:
            todo = None
            try:
                todo = self._todo.get(timeout=_LOOK)
            except queue.Empty:
                if self._ending.is_set():
                    return
            else:
                if todo is None:
                    return
            try:
                self._do(todo)
                self._deeds.tick()
            except Exception as error:  # noqa: BLE001 - the next one is done all the same
                if self._said.first(type(error).__name__):
                    self._say(f"what came from Slack could not be done: {type(error).__name__}: {clean(error, 200)}")

    def _do(self, todo: Todo | None) -> None:
        if isinstance(todo, Wish):
            self._counted(self._deeds.do(todo))
        elif isinstance(todo, Refused):
            self._deeds.refuse(todo)
            self._counted(False)
        elif todo is not None:
            self._counted(self._deeds.do_forwarded(todo))
