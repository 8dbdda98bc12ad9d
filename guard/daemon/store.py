"""What the daemon itself must not forget: one small SQLite file on this host's own disk. What concerns a run is in the
run's own directory; this could be lost without losing an incident."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pauses (
  run TEXT NOT NULL, phase TEXT NOT NULL, seconds REAL NOT NULL, PRIMARY KEY (run, phase)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS digest (id INTEGER PRIMARY KEY CHECK (id = 1), due REAL NOT NULL, told INTEGER NOT NULL);
"""


class Store:
    """Safe to use from several threads.

    Args:
        path: made if it is not there.

    Raises:
        sqlite3.Error, OSError: it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(_SCHEMA)

    def longest(self, run: str) -> dict[str, float]:
        """The longest pauses that a run has been seen to make, by phase [s]."""
        with self._lock:
            return dict(self._db.execute("SELECT phase, seconds FROM pauses WHERE run = ?", (run,)))

    def learned(self, runs: Mapping[str, Mapping[str, float]]) -> None:
        """Keeps what was learned of each run."""
        rows = [(run, phase, seconds) for run, longest in runs.items() for phase, seconds in longest.items()]
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO pauses VALUES (?, ?, ?)", rows)
            self._db.execute("COMMIT")

    def last_digest(self, now: float) -> tuple[float, bool]:
        """When the last summary that was told was due [s since the epoch]; before the first one, when that question was
        first asked. And whether there was one."""
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO digest VALUES (1, ?, 0)", (now,))
            due, told = self._db.execute("SELECT due, told FROM digest").fetchone()
        return due, bool(told)

    def digest_told(self, due: float) -> None:
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO digest VALUES (1, ?, 1)", (due,))

    def forget(self, run: str) -> None:
        with self._lock:
            self._db.execute("DELETE FROM pauses WHERE run = ?", (run,))

    def close(self) -> None:
        with self._lock:
            self._db.close()
