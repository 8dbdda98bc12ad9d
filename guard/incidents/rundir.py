"""The run directory as the live guard writes it.

All writing is done by one background thread, so that a full, read-only, stalled or vanished disk never stops training.
The step hands a journal line over and waits a moment for the `write`; if the disk does not answer, it goes on and says
so once. What could not be written is kept (bounded) and written when the disk answers again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guard.clock import Clock
from guard.errors import RunDirError
from guard.incidents import journal
from guard.process import boot_id, started
from guard.types import Entry

# The columns of signals.csv.
SIGNAL_COLUMNS = ("tick", "step", "loss", "grad_norm", "lr", "lr_effective", "loss_scale")
# What follows them there: how often the run had been resumed.
CSV_COLUMNS = (*SIGNAL_COLUMNS, "segment")
SignalRow = tuple[int, int, float, float, float, float, float]

_PATIENCE = 0.25  # [s] a step waits for a journal line to be written
_PATIENCE_DURABLE = 5.0  # [s] stop and rollback wait for the fsync
_BEAT = 1.0  # [s] between heartbeats
_LEASE = 60.0  # [s] a lease is good for that long without renewal
_MAX_PENDING = 10_000  # journal lines kept while the disk does not answer
_MAX_ROWS = 100_000  # rows of signals.csv likewise
_ALIVE = 3.0  # [s] after its last answer the disk is taken to be there
_ASK = 0.01  # [s] between looks into `control/`
_MAX_SIGNALS = 64 << 20  # [bytes] beyond which old rows of signals.csv are thinned


@dataclass(slots=True)
class _Job:
    line: bytes = b""
    durable: bool = False
    rows_only: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class RunDir:
    """Journal, signals and heartbeat of one run.

    Args:
        path: made with mode 0700 if it does not exist.
        clock: injected.
        beat: what the heartbeat says, ``(tick, step, phase)``; read from the writer's thread.
        rank: whose heartbeat this is. All but rank 0 write nothing else: the journal and the rest are rank 0's.

    Attributes:
        segment: how often the run had been resumed before; a column of signals.csv.
        lowest_loss: of the rows taken so far; infinite: none was finite.

    Raises:
        RunDirError: another live guard owns the directory.
    """

    def __init__(self, path: Path, clock: Clock, beat: Callable[[], tuple[int, int, str]], rank: int = 0) -> None:
        self.path, self.clock, self.rank = path, clock, rank
        self._beat, self._last_beat, self._last_lease = beat, (-1, -1, ""), clock.monotonic()
        self._said: set[str] = set()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pending: list[_Job] = []
        self._stalled = False
        self._file: Any = None
        self._pid = os.getpid()
        self._lease = Lease(path / "owner.json", clock)
        self.seq = 0
        self.segment = 0
        self.lowest_loss = math.inf
        self.rows: deque[SignalRow] = deque(maxlen=_MAX_ROWS)  # appended by the step, taken by the writer
        self._control = str(path / "control")
        self._control_seen = 0
        self._ask_at = 0.0
        self._alive_at = clock.monotonic()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not rank:
                self._lease.take()
                self.seq = self._open()
        except OSError as error:
            self.complain(
                "rundir", f"cannot write to {path} ({_reason(error)}); training goes on, incidents are kept in memory"
            )
        self._thread = threading.Thread(target=self._write_loop, name="guard-writer", daemon=True)
        self._thread.start()

    def journal(self, entry: Entry, *, durable: bool = False) -> Entry:
        """Numbers, dates and writes one entry; returns it complete.

        Args:
            entry: with `kind` and its keys.
            durable: wait for the fsync, not only for the write.
        """
        entry = {"v": journal.VERSION, "seq": self.seq, "time": self.clock.time(), **entry}
        self.seq += 1
        if self.rank:
            return entry
        job = _Job(journal.encode(entry), durable)
        self._jobs.put(job)
        if not self._stalled and not job.done.wait(_PATIENCE_DURABLE if durable else _PATIENCE):
            self._stalled = True
            self.complain("stalled", f"{self.path} does not answer; training goes on without waiting for it")
        return entry

    def requested(self) -> bool:
        """Something changed in `control/` since the last call; never, on other ranks than 0.

        Asks the disk only if it answered a moment ago, and at most every hundredth of a second: a system call is not
        free, and a person does not notice.
        """
        now = self.clock.monotonic()
        if now < self._ask_at or self.rank:
            return False
        self._ask_at = now + _ASK
        if not self.answers:
            return False
        try:
            changed = os.stat(self._control).st_mtime_ns  # noqa: PTH116 - every step; a Path costs five times as much
        except OSError:
            return False
        if changed == self._control_seen:
            return False
        self._control_seen = changed
        return True

    @property
    def answers(self) -> bool:
        """The disk answered a moment ago."""
        return not self._stalled and self.clock.monotonic() - self._alive_at <= _ALIVE

    def write_text(self, name: str, text: str) -> None:
        """Writes a small file whole (temporary name, then rename); a failure is said once."""
        if self.rank:
            return
        try:
            temporary = self.path / f".{name}.tmp"
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self.path / name)
        except OSError as error:
            self.complain(name, f"cannot write {self.path / name} ({_reason(error)})")

    def flush(self) -> None:
        """Writes the rows so far soon, rather than with the next heartbeat."""
        self._jobs.put(_Job(rows_only=True))

    def cut_signals(self, tick: int, rows: Sequence[SignalRow] = ()) -> None:
        """The run goes on from `tick`: rows from there on, and a torn one, are taken out. Before the first new row.

        Args:
            rows: the last ones before `tick`; those that had not been written when the process ended are added.
        """
        if self.rank:
            return
        path = self.path / "signals.csv"
        try:
            header, *lines = path.read_text(encoding="ascii", errors="replace").splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and _tick(line) < tick]
            last = _tick(kept[-1]) if kept else -1
            lost = [_line(row, self.segment - 1) for row in rows if last < row[0] < tick]
            temporary = path.with_suffix(".tmp")
            temporary.write_text("".join([header, *kept, *lost]), encoding="ascii", errors="replace")
            temporary.replace(path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            self.complain("signals.csv", f"cannot cut {path} back to tick {tick} ({error})")

    def close(self, timeout: float) -> None:
        """Flushes and gives the directory up; waits at most `timeout` [s]. In a forked child: nothing."""
        if os.getpid() != self._pid:
            return
        self._jobs.put(None)
        self._thread.join(timeout)

    def complain(self, key: str, message: str) -> None:
        """Says something on stderr, once per `key`."""
        if key not in self._said:
            self._said.add(key)
            print(f"guard: {message}", file=sys.stderr)  # noqa: T201 - the last resort when nothing can be written

    # ---- the writer's thread

    def _write_loop(self) -> None:
        while self._write_once():
            pass
        self._protected(lambda: self._tend(last=True))
        self._lease.release()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _write_once(self) -> bool:
        """Waits for one job, at most until the next heartbeat; False when there will be none any more."""
        try:
            job = self._jobs.get(timeout=_BEAT)
        except queue.Empty:
            self._protected(self._tend)
            return True
        if job is None:
            return False
        self._protected(self._tend if job.rows_only else lambda: self._do(job))
        job.done.set()
        self._stalled = False
        if self.clock.monotonic() - self._alive_at > _BEAT:
            self._protected(self._tend)
        return True

    def _protected(self, do: Callable[[], None]) -> None:
        """The thread must survive anything."""
        try:
            do()
        except Exception as error:  # noqa: BLE001 - it is the last thing that could say so
            self.complain(
                "writer", f"writing to {self.path} failed ({type(error).__name__}: {error}); training goes on"
            )

    def _do(self, job: _Job) -> None:
        self._pending.append(job)
        self._flush_pending()

    def _flush_pending(self) -> None:
        try:
            if self._file is None or os.fstat(self._file.fileno()).st_nlink == 0:
                self._open()
            while self._pending:
                job = self._pending[0]
                self._write_whole(job.line)
                if job.durable:
                    os.fsync(self._file.fileno())
                self._pending.pop(0)
        except OSError as error:
            del self._pending[:-_MAX_PENDING]
            self.complain(
                "journal",
                f"cannot write {self.path / journal.NAME} ({_reason(error)}); training goes on, "
                "incidents are kept in memory and written when the disk answers",
            )

    def _write_whole(self, line: bytes) -> None:
        """One line or nothing: what a full disk cut short is taken back."""
        size = os.fstat(self._file.fileno()).st_size
        if self._file.write(line) != len(line):
            os.ftruncate(self._file.fileno(), size)
            raise OSError(28, "no space left on device")

    def _open(self) -> int:
        """Opens the journal for appending, a torn last line cut off; returns the next sequence number."""
        if not self.path.is_dir():
            raise FileNotFoundError(2, "the directory is gone")
        path = self.path / journal.NAME
        seq = 0
        if path.exists():
            with path.open("rb+") as file:
                data = file.read()
                file.truncate(data.rfind(b"\n") + 1)
            seq = _last_seq(data[: data.rfind(b"\n") + 1].splitlines()) + 1
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb", buffering=0)
        return seq

    def _tend(self, *, last: bool = False) -> None:
        if self._pending:
            self._flush_pending()
        rows = [self.rows.popleft() for _ in range(len(self.rows))]
        self.lowest_loss = min([self.lowest_loss, *(row[2] for row in rows if math.isfinite(row[2]))])
        if rows and not self.rank:
            self._attempt("signals.csv", lambda: self._append_signals(rows))
        beat = self._beat()
        if beat != self._last_beat:
            self._last_beat = beat
            self._attempt("heartbeat", lambda: self._write_beat(beat))
        if not last and not self.rank and self.clock.monotonic() - self._last_lease > _LEASE / 3:
            self._last_lease = self.clock.monotonic()
            self._attempt("owner.json", self._lease.renew)
        self._alive_at = self.clock.monotonic()

    def _write_beat(self, beat: tuple[int, int, str]) -> None:
        tick, step, phase = beat
        text = f"{tick} {step} {phase} {self.clock.monotonic():.3f} {self.clock.time():.3f}".ljust(79) + "\n"
        fd = os.open(self.path / f"heartbeat.{self.rank}", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(fd, text.encode(), 0)
        finally:
            os.close(fd)

    def _append_signals(self, rows: Sequence[SignalRow]) -> None:
        path = self.path / "signals.csv"
        new = not path.exists()
        with path.open("a", encoding="ascii") as file:
            if new:
                file.write(",".join(CSV_COLUMNS) + "\n")
            file.write("".join(_line(row, self.segment) for row in rows))
            size = file.tell()
        if size > _MAX_SIGNALS:
            _thin(path)

    def _attempt(self, what: str, do: Callable[[], None]) -> None:
        try:
            do()
        except OSError as error:
            self.complain(what, f"cannot write {self.path / what} ({_reason(error)})")


def _last_seq(lines: list[bytes]) -> int:
    """The sequence number of the last line that is an entry; -1 if there is none."""
    for line in reversed(lines):
        try:
            return int(json.loads(line)["seq"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return -1


def _line(row: SignalRow, segment: int) -> str:
    tick, step, loss, grad_norm, lr, lr_effective, loss_scale = row
    return f"{tick},{step},{loss:.7g},{grad_norm:.7g},{lr:.7g},{lr_effective:.7g},{loss_scale:.7g},{segment}\n"


def _tick(row: str) -> int:
    """Of a row of signals.csv; what is none counts as never."""
    number = row.partition(",")[0]
    return int(number) if number.isdigit() else 1 << 62


def _thin(path: Path) -> None:
    """Keeps every second row of the older half."""
    with path.open(encoding="ascii") as file:
        header, *rows = file.readlines()
    half = len(rows) // 2
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join([header, *rows[:half:2], *rows[half:]]), encoding="ascii")
    temporary.replace(path)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


class Lease:
    """Who writes here: host, boot, pid and start time, with an expiry that is renewed.

    A process of this boot of this host is alive if it exists with that start time. Of another host (a shared disk) only
    the expiry is known, so a dead node never blocks a requeue for longer than the lease.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path, self.clock = path, clock
        self._me = {
            "host": socket.gethostname(),
            "boot": boot_id(),
            "pid": os.getpid(),
            "started": started(os.getpid()),
        }

    def take(self) -> None:
        """Raises `RunDirError` if a live guard holds it."""
        holder = self._read()
        if holder and self._alive(holder):
            raise RunDirError(
                f"{self.path.parent} belongs to a running guard (pid {holder.get('pid')} on {holder.get('host')}); "
                "give this run its own run_dir, or end that one first"
            )
        if holder is None:
            self._first()
        else:
            self.renew()

    def _first(self) -> None:
        """Takes a lease that nobody has; of two that start in the same moment one is refused."""
        temporary = self._written()
        try:
            os.link(temporary, self.path)
        except FileExistsError:
            other = self._read()
            if other is not None and self._alive(other):
                raise RunDirError(
                    f"{self.path.parent} was just taken by another guard (pid {other.get('pid')})"
                ) from None
            temporary.replace(self.path)
        except OSError:  # a file system without links
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def renew(self) -> None:
        self._written().replace(self.path)

    def _written(self) -> Path:
        """The lease as a file beside its place."""
        temporary = self.path.with_name(f".owner.{os.getpid()}.tmp")
        temporary.write_text(json.dumps({**self._me, "expires": self.clock.time() + _LEASE}), encoding="utf-8")
        return temporary

    def release(self) -> None:
        holder = self._read()
        if holder and all(holder.get(k) == v for k, v in self._me.items()):
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _read(self) -> dict[str, Any] | None:
        try:
            holder = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return holder if isinstance(holder, dict) else None

    def _alive(self, holder: dict[str, Any]) -> bool:
        if all(holder.get(k) == v for k, v in self._me.items()):
            return False  # this very process: a second attach takes over from the first
        try:
            if holder.get("host") == self._me["host"] and holder.get("boot") == self._me["boot"]:
                return started(int(holder.get("pid", 0))) == holder.get("started") is not None
            return float(holder.get("expires", 0)) > self.clock.time()
        except (TypeError, ValueError):
            return False  # it says nothing


def holder_alive(run_dir: Path, clock: Clock) -> bool:
    """A live guard owns the directory."""
    lease = Lease(run_dir / "owner.json", clock)
    holder = lease._read()
    return bool(holder) and lease._alive(holder or {})
