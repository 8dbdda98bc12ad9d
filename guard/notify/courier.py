"""The courier: follows the journal and tells the receivers, in a thread of its own that survives anything.

One pass: what is new in the journal is folded (after it is safely on the disk), the lease is taken, and each receiver's
desk tells what its rows in the outbox say is not told yet. Nothing here runs inside a training step.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from guard.clock import Clock
from guard.incidents import Follower, IncidentLog
from guard.incidents.journal import NAME
from guard.notify import check, story
from guard.notify.desk import DAMAGED, Desk, due
from guard.notify.failure import OutOfTime
from guard.notify.lines import LineDesk
from guard.notify.outbox import LeaseLost, Outbox, open_outbox
from guard.notify.spec import ReceiverSpec
from guard.notify.threads import ThreadDesk
from guard.notify.turn import Pace, Plot, Turn
from guard.types import SEVERITIES, Entry

_POLL = 10.0  # seconds between looks at the journal when nobody wakes the courier
_SOON = 1.0
_LOCKED_PASSES = 3


@dataclass(frozen=True, slots=True)
class Progress:
    """What one pass achieved.

    Args:
        told: messages sent or edited.
        waiting: incidents, over all receivers, of which something is still to be told.
        next_try: seconds until another pass can achieve something; None if nothing waits.
        leader: False if another process holds the lease and delivers.
        failures: ``receiver: reason`` of this pass.
    """

    told: int = 0
    waiting: int = 0
    next_try: float | None = None
    leader: bool = True
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pending:
    """An incident that a receiver has not been told, or not all of it.

    Args:
        error: why the latest try failed, "" before the first.
        next_try: seconds since the epoch; 0 as soon as possible.
    """

    receiver: str
    incident: str
    first_line: str
    error: str = ""
    attempts: int = 0
    next_try: float = 0.0


class Courier:
    """Delivers one run's incidents.

    Args:
        run_dir: of the run; the journal is there.
        receivers: whom to tell. If all of them are switched off, the console is told instead.
        clock: injected.
        home: host-local folder for the outbox if `run_dir` is on a network disk.
        plot: draws an incident's evidence; may be slow; if it fails the message has no picture.
        say: where the courier speaks about itself; stderr by default.
    """

    def __init__(
        self,
        run_dir: Path,
        receivers: Sequence[ReceiverSpec],
        *,
        clock: Clock,
        home: Path | None = None,
        plot: Plot | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.run_dir, self._clock, self._plot = Path(run_dir), clock, plot
        self._say = say or say_on_stderr
        self._specs = _in_use(receivers, self._say)
        self._desks: list[Desk] = [ThreadDesk(s) if s.threaded else LineDesk(s) for s in self._specs]
        self._path = outbox_path(self.run_dir, home)
        self._box: Outbox | None = None
        self._pace = Pace(clock)
        self._log, self._follower = IncidentLog(), Follower(self.run_dir / NAME)
        self._run_key = ""
        self._versions: dict[str, int] = {}
        self._suspects: set[str] = set()
        self._locked, self._troubles = 0, set()  # type: int, set[str]
        self._passing = threading.Lock()
        self._wake, self._stop, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    # ---- for the guard

    def start(self) -> None:
        """Starts the background thread. Validates the receivers there, so that their faults show on Friday evening."""
        if self._thread is None and self._desks:
            self._thread = threading.Thread(target=self._run, name="guard-courier", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """The journal has something new. Costs nothing and never waits."""
        self._wake.set()

    def close(self, timeout: float) -> bool:
        """Delivers what it can within `timeout` seconds and no longer. True if nothing is left to tell.

        What is left stays in the outbox, for the daemon, a resumed run or `guard notify`.
        """
        if not self._desks:
            return True
        self._pace.deadline = self._clock.monotonic() + timeout
        self._stop.set()
        self._wake.set()
        if self._thread is None:
            # In a thread even so: a name server that hangs must not hold the caller.
            self._thread = threading.Thread(target=self._finish, name="guard-courier", daemon=True)
            self._thread.start()
        self._ended.wait(timeout)
        return self._ended.is_set() and not self.pending()

    # ---- for `guard notify` and status

    def deliver_once(self, *, eager: bool = False) -> Progress:
        """One pass, now and here. With `eager` waiting times after failures are not kept (a person asked)."""
        with self._passing:
            try:
                return self._pass(eager)
            except (sqlite3.Error, OSError) as error:
                self._box_failed(error)
                return Progress(waiting=1, next_try=_SOON, failures=(f"outbox: {error}",))

    def pending(self) -> list[Pending]:
        """What is not told yet, and why. Reads the journal anew, so it can be asked at any time."""
        log = IncidentLog()
        for entry in Follower(self.run_dir / NAME).read():
            self._apply(log, entry)
        try:
            box = self._box or open_outbox(self._path)[0]
            found = [p for desk in self._desks for p in _pending(log, box, desk)]
            if box is not self._box:
                box.close()
        except sqlite3.Error as error:
            return [Pending(s.name, "", "", f"outbox: {error}") for s in self._specs]
        return found

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
                left = self._pace.left()
                if not progress.waiting or not progress.leader or (progress.next_try or 0.0) >= left:
                    break
                self._clock.wait(threading.Event(), min(_SOON, left))
        except OutOfTime:
            pass
        except Exception as error:  # noqa: BLE001 - the run's end must not fail because of a message
            self._trouble(error)
        finally:
            try:
                if self._box is not None:
                    self._box.release()
                    if self._box.path is not None:
                        self._box.close()
                        self._box = None
            except sqlite3.Error:
                pass  # it expires by itself
            self._ended.set()

    def _guarded_pass(self) -> float:
        """One pass; whatever goes wrong in it, the thread lives on."""
        try:
            progress = self.deliver_once()
        except OutOfTime:
            return 0.0
        except Exception as error:  # noqa: BLE001 - the thread must survive anything
            self._trouble(error)
            return _POLL
        return _POLL if progress.next_try is None else max(0.05, min(_POLL, progress.next_try))

    def _check(self) -> None:
        try:
            check.check_receivers(self._specs, say=self._say)
        except Exception as error:  # noqa: BLE001
            self._trouble(error)

    def _trouble(self, error: Exception) -> None:
        # Only the type: an exception's text may hold anything.
        if (name := type(error).__name__) not in self._troubles:
            self._troubles.add(name)
            self._say(f"telling failed ({name}); training goes on, and it is tried again")

    # ---- one pass

    def _pass(self, eager: bool) -> Progress:
        self._pace.left()
        first = self._box is None
        if self._box is None:
            self._box, trouble = open_outbox(self._path)
            if trouble:
                self._say_memory(trouble)
        self._fold()
        if first and self._box.fresh:
            self._suspects = set(self._log.incidents)
        if not any(desk.unsettled(self._log, self._versions) for desk in self._desks):
            return Progress()  # a quiet run writes nothing
        if not self._box.take_lease(self._clock.time()):
            return Progress(leader=False, next_try=_POLL)
        self._locked = 0
        turn = Turn(
            self._log,
            self._box,
            self._pace,
            self.run_dir,
            self._run_key,
            self._versions,
            self._suspects,
            self._plot,
            self._say,
            eager,
        )
        for desk in self._desks:
            try:
                desk.deliver(turn)
            except LeaseLost:
                return Progress(turn.told, leader=False, next_try=_POLL)
            except (OutOfTime, sqlite3.Error, OSError):
                raise
            except Exception as error:  # noqa: BLE001 - one receiver must not silence the others
                self._trouble(error)
                turn.failures.append(f"{desk.spec.name}: {type(error).__name__}")
        return self._progress(turn)

    def _progress(self, turn: Turn) -> Progress:
        waiting, soonest = 0, None
        for desk in self._desks:
            if not (unsettled := desk.unsettled(self._log, self._versions)):
                continue
            waiting += len(unsettled)
            times = [item.next_try for item in turn.box.items(desk.spec.name, "next_try > ?", turn.now)]
            standing = turn.box.standing(desk.spec.name)
            blocked = standing.next_try if standing.off or standing.asked or not turn.eager else 0.0
            at = blocked if blocked > turn.now else min(times, default=turn.now + _SOON)
            soonest = min(at, soonest) if soonest is not None else at
        return Progress(
            turn.told, waiting, None if soonest is None else max(0.0, soonest - turn.now), True, tuple(turn.failures)
        )

    def _fold(self) -> None:
        """Takes in what is new in the journal, once it is on the disk."""
        path = self._follower.path
        size = path.stat().st_size if path.exists() else 0
        if size < self._follower.offset:  # another journal: the run directory was made anew
            self._log, self._follower, self._versions, self._run_key = IncidentLog(), Follower(path), {}, ""
            for desk in self._desks:
                desk.settled.clear()
        if size == self._follower.offset:
            return
        for entry in self._follower.read(sync=True):
            if not self._run_key and entry["kind"] == "run_started":
                self._run_key = _run_key(entry)
            self._apply(self._log, entry)
            self._changed(entry)
        self._run_key = self._run_key or _run_key({"run_dir": str(self.run_dir)})

    def _apply(self, log: IncidentLog, entry: Entry) -> None:
        try:
            log.apply(entry)
        except DAMAGED as error:  # a damaged line must not silence the others
            self._trouble(error)

    def _changed(self, entry: Entry) -> None:
        """Which messages may have to change because of this line."""
        log = self._log
        if entry["kind"] in ("run_started", "run_finished"):
            changed = [i.id for i in log.incidents.values()]
        else:
            changed = [str(entry.get("incident", ""))]
            if (incident := log.incidents.get(changed[0])) is not None:
                changed.append(story.owner(log, incident).id)
        for key in changed:
            self._versions[key] = self._versions.get(key, 0) + 1

    # ---- an outbox that cannot be used

    def _box_failed(self, error: sqlite3.Error | OSError) -> None:
        """A lock is waited for, a few times; anything else means going on in memory."""
        if "locked" in str(error):
            self._locked += 1
            if self._locked < _LOCKED_PASSES:
                return
        if isinstance(error, OSError) or (self._box is not None and self._box.path is None):
            self._trouble(error)
            return
        self._box = Outbox(None)
        # What was told of them is not known any more: look before posting.
        self._suspects = set(self._log.incidents)
        for desk in self._desks:
            desk.looked.clear()
        self._say_memory(str(error))

    def _say_memory(self, reason: str) -> None:
        self._say(
            f"the outbox {self._path} cannot be used ({reason}): what was told is remembered in memory only, so "
            "after a restart something may be told twice"
        )


def outbox_path(run_dir: Path, home: Path | None = None) -> Path:
    """Where a run's outbox is: in its directory, or on this host under a name of its own."""
    if home is None:
        return run_dir / "outbox.db"
    digest = hashlib.sha256(str(run_dir.absolute()).encode()).hexdigest()[:12]
    return home / f"{run_dir.name}-{digest}.outbox.db"


def say_on_stderr(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr is closed
        sys.stderr.write(f"guard: {text}\n")


def _in_use(receivers: Sequence[ReceiverSpec], say: Callable[[str], None]) -> list[ReceiverSpec]:
    off = [r for r in receivers if r.off_reason]
    for receiver in off:
        say(f"receiver {receiver.name} is off: {receiver.off_reason}")
    used = [r for r in receivers if not r.off_reason]
    if off and not used:
        least = min((r.min_severity for r in off), key=SEVERITIES.index)
        say("incidents are told here instead")
        used = [ReceiverSpec("console", "console", least)]
    return used


def _run_key(started: Entry) -> str:
    facts = "|".join(str(started.get(k)) for k in ("host", "run_dir", "pid", "time"))
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _pending(log: IncidentLog, box: Outbox, desk: Desk) -> list[Pending]:
    standing = box.standing(desk.spec.name)
    found = []
    for incident in due(log, desk.spec):
        rows = {row.key: row for row in box.items(desk.spec.name, "incident = ?", incident.id)}
        try:
            left, first_line = desk.untold(log, incident, rows), story.first_line(log, incident)
        except DAMAGED as error:
            found.append(Pending(desk.spec.name, incident.id, "", f"journal lines damaged ({type(error).__name__})"))
            continue
        if not left:
            continue
        row = rows.get(left[0])
        why = (row.error if row else "") or standing.error
        found.append(
            Pending(
                desk.spec.name,
                incident.id,
                first_line,
                why,
                row.attempts if row else 0,
                max(row.next_try if row else 0.0, standing.next_try),
            )
        )
    return found
