"""What has been told to whom: a small SQLite file, so that a restart neither repeats nor forgets.

A row is written *before* a message is sent ("sending") and again when the receiver has acknowledged it ("told"). What
is left as "sending" by a crash or a lost reply is looked up at the receiver before it is sent again. There is no
journal offset here: what is due is the difference between the folded journal and these rows, so the two
cannot drift apart.
"""

from __future__ import annotations

import os
import secrets
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

LEASE = 30.0  # seconds; longer than any one network call
_LOCK_WAIT = 2.0
_SYNCHRONOUS = "FULL"  # what is acknowledged survives a power cut

_SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
  receiver TEXT NOT NULL, incident TEXT NOT NULL, key TEXT NOT NULL, state TEXT NOT NULL, digest TEXT NOT NULL,
  channel TEXT NOT NULL, ts TEXT NOT NULL, generation INTEGER NOT NULL, attempts INTEGER NOT NULL,
  next_try REAL NOT NULL, error TEXT NOT NULL, since REAL NOT NULL, until REAL NOT NULL, told_at REAL NOT NULL,
  PRIMARY KEY (receiver, incident, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS receivers (
  name TEXT PRIMARY KEY, fails INTEGER NOT NULL, next_try REAL NOT NULL, error TEXT NOT NULL, off INTEGER NOT NULL,
  asked INTEGER NOT NULL, channel TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lease (id INTEGER PRIMARY KEY CHECK (id = 1), holder TEXT NOT NULL, expires REAL NOT NULL);
"""


@dataclass(slots=True)
class Item:
    """One thing to tell one receiver.

    Args:
        key: ``root``, a reply's key, or ``plot:…``.
        state: due, sending (perhaps told), told, gone (a person deleted it), dropped (not to be told), stormed (counted
            in a rolling message instead).
        digest: of what was told; for stormed ones the rolling message.
        channel, ts: where it is (for plots, `ts` is the file's ID).
        generation: how many of its predecessors were deleted.
        since, until: first and latest time at which it was sent without a certain answer.
    """

    receiver: str
    incident: str
    key: str
    state: str = "due"
    digest: str = ""
    channel: str = ""
    ts: str = ""
    generation: int = 0
    attempts: int = 0
    next_try: float = 0.0
    error: str = ""
    since: float = 0.0
    until: float = 0.0
    told_at: float = 0.0


@dataclass(slots=True)
class Standing:
    """How one receiver fares.

    Args:
        fails: failures in a row.
        next_try: not before this time [s since the epoch].
        off: it cannot be told until a person changes something.
        asked: it said itself when to come back.
        channel: the channel's ID, once known.
    """

    name: str
    fails: int = 0
    next_try: float = 0.0
    error: str = ""
    off: bool = False
    asked: bool = False
    channel: str = ""


class LeaseLost(Exception):  # noqa: N818
    """Another process delivers now."""


class Outbox:
    """The file, or a stand-in in memory. Safe to use from several threads.

    Attributes:
        fresh: nothing was in it when it was opened, so what the journal already held may have been told before.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._db = sqlite3.connect(
            str(path) if path else ":memory:", timeout=_LOCK_WAIT, isolation_level=None, check_same_thread=False
        )
        self._lock = threading.RLock()
        self.path = path
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={_SYNCHRONOUS}")
        with self._write():
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
        self.fresh = self._db.execute("SELECT 1 FROM items LIMIT 1").fetchone() is None

    @contextmanager
    def _write(self) -> Iterator[None]:
        with self._lock:
            # IMMEDIATE: a transaction that starts as a reader and then writes fails at once if another writes too.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    # ---- the lease: one process delivers

    def take_lease(self, now: float) -> bool:
        """True if this process delivers, for the next `LEASE` seconds."""
        with self._write():
            return self._renew(now)

    def _renew(self, now: float) -> bool:
        row = self._db.execute("SELECT holder, expires FROM lease").fetchone()
        # An expiry far ahead was written by a clock that has been set back since.
        if row and row[0] != self.holder and now < row[1] <= now + 2 * LEASE:
            return False
        self._db.execute("INSERT OR REPLACE INTO lease VALUES (1, ?, ?)", (self.holder, now + LEASE))
        return True

    def release(self) -> None:
        with self._write():
            self._db.execute("DELETE FROM lease WHERE holder = ?", (self.holder,))

    # ---- items

    def item(self, receiver: str, incident: str, key: str) -> Item:
        """The row, or a new one that is not saved yet."""
        with self._lock:
            row = self._db.execute(
                "SELECT * FROM items WHERE receiver = ? AND incident = ? AND key = ?", (receiver, incident, key)
            ).fetchone()
        return Item(*row) if row else Item(receiver, incident, key)

    def items(self, receiver: str, where: str = "1", *args: object) -> list[Item]:
        with self._lock:
            return [
                Item(*row)
                for row in self._db.execute(f"SELECT * FROM items WHERE receiver = ? AND {where}", (receiver, *args))
            ]

    def save(self, item: Item) -> None:
        with self._write():
            self._put("items", Item, item)

    def sending(self, item: Item, now: float) -> None:
        """Written before it is sent; raises `LeaseLost` if another process has taken over meanwhile."""
        with self._write():
            if not self._renew(now):
                raise LeaseLost
            item.state, item.since, item.until = "sending", item.since or now, now
            self._put("items", Item, item)

    def told(self, item: Item, now: float, digest: str) -> None:
        item.state, item.digest, item.told_at = "told", digest, item.told_at or now
        item.attempts, item.next_try, item.error, item.since, item.until = 0, 0.0, "", 0.0, 0.0
        self.save(item)

    # ---- receivers

    def standing(self, name: str) -> Standing:
        with self._lock:
            row = self._db.execute("SELECT * FROM receivers WHERE name = ?", (name,)).fetchone()
        return Standing(row[0], row[1], row[2], row[3], bool(row[4]), bool(row[5]), row[6]) if row else Standing(name)

    def save_standing(self, standing: Standing) -> None:
        with self._write():
            self._put("receivers", Standing, standing)

    def _put(self, table: str, kind: type, row: object) -> None:
        names = [f.name for f in fields(kind)]
        marks = ", ".join("?" * len(names))
        self._db.execute(
            f"INSERT OR REPLACE INTO {table} ({', '.join(names)}) VALUES ({marks})", [getattr(row, n) for n in names]
        )

    def close(self) -> None:
        with self._lock:
            self._db.close()


def open_outbox(path: Path) -> tuple[Outbox, str]:
    """The outbox at `path`; if that cannot be, one in memory and the reason. Raises if it is only locked by another."""
    try:
        return Outbox(path), ""
    except (sqlite3.Error, OSError) as error:
        if "locked" in str(error):
            raise
        reason = str(error) if isinstance(error, sqlite3.Error) else error.strerror or type(error).__name__
        return Outbox(None), reason
