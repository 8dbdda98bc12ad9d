"""What those outside the training process have to say of a run: the daemon (it hangs, it is gone) and people
(acknowledged, silenced).

The journal belongs to the process inside, which may not answer any more. So there is a second file, one for each host
that writes, with lines of the same format: ``outside.<host>.jsonl``. It is only ever appended to, a line by one
`write`, so several processes of a host may. A reader that wants the whole story reads both.
"""

from __future__ import annotations

import heapq
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guard.clock import Clock
from guard.errors import UsageError
from guard.incidents import journal
from guard.types import Entry

_COARSE = 3_000_000_000  # [ns] the coarsest step of a file system's times, and some
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")


def append(run_dir: Path, clock: Clock, kind: str, *, moment: tuple[int, int] = (0, 0), **keys: Any) -> Entry:
    """Adds one line; it is on the disk when this returns.

    Args:
        run_dir: of the run; or a folder that stands for it where the run's own cannot be written.
        moment: ``(tick, step)``, as far as it is known from outside.

    Raises:
        UsageError: the directory cannot be written.
    """
    tick, step = moment
    entry = {"v": journal.VERSION, "time": clock.time(), "kind": kind, "tick": tick, "step": step, **keys}
    path = run_dir / f"outside.{_UNSAFE.sub('-', socket.gethostname())[:100] or 'host'}.jsonl"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # A line of before that was cut short must not swallow this one.
            torn = os.fstat(fd).st_size and not _ends_whole(path)
            os.write(fd, b"\n" * torn + journal.encode(entry))
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return entry


class StoryFollower:
    """Reads a run's journal and what those outside added, as both grow.

    Args:
        run_dir: of the run.
        beside: a further folder in which such additions may be.
    """

    def __init__(self, run_dir: Path, beside: Path | None = None) -> None:
        self.journal = journal.Follower(run_dir / journal.NAME)
        self._folders: dict[Path, int] = dict.fromkeys([run_dir, *([beside] if beside else [])], -1)
        self._outside: dict[Path, journal.Follower] = {}

    @property
    def damaged(self) -> int:
        """Lines that could not be understood so far."""
        return self.journal.damaged + sum(f.damaged for f in self._outside.values())

    def grown(self) -> bool:
        """There may be something new. Costs one `stat` a file and one a folder."""
        return any(_size(f.path) != f.offset for f in self._followers())

    def shrunk(self) -> bool:
        """The journal is another one than it was: the run directory was made anew."""
        return _size(self.journal.path) < self.journal.offset

    def read(self, *, sync: bool = False) -> Iterator[Entry]:
        """What is new since the last call: each file in its own order, and between them in the order of time.

        Args:
            sync: it is on the disk before it is given out.
        """
        return heapq.merge(*(f.read(sync=sync) for f in self._followers()), key=lambda entry: float(entry["time"]))

    def _followers(self) -> list[journal.Follower]:
        for folder, seen in self._folders.items():
            if (changed := _changed(folder)) != seen:
                for path in sorted(folder.glob("outside.*.jsonl")):
                    self._outside.setdefault(path, journal.Follower(path))
                # A file made just after the look may leave the folder's time as it is: then it is looked at again.
                self._folders[folder] = changed if time.time_ns() - changed > _COARSE else -1
        return [self.journal, *self._outside.values()]


def read_story(run_dir: Path) -> list[Entry]:
    """All that is known of a run, oldest first: its journal, and what those outside added."""
    return list(StoryFollower(run_dir).read())


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - asked very often, and `Path.stat` takes twice as long
    except OSError:
        return 0


def _changed(folder: Path) -> int:
    """When something was last made or removed there [ns]."""
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116
    except OSError:
        return -1
