"""The exit code of a run that was stopped on purpose, so that nobody who restarts processes restarts it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from guard.errors import TrainingStopped

STOPPED = 76

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


class _Hook:
    """`sys.excepthook`: what was there before does the telling; only the exit code is another."""

    def __init__(self, before: Hook) -> None:
        self.before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.before(kind, error, trace)
        if issubclass(kind, TrainingStopped):
            raise SystemExit(STOPPED)  # the interpreter takes it from here: atexit, then this code in place of 1


def install() -> None:
    """An uncaught `TrainingStopped` ends the process with 76 from now on. It stays when the guard is closed: the
    exception is still on its way then.
    """
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)
