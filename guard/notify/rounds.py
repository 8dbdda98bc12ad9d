"""One pass over all receivers, again and again: what is new in the story is folded (after it is safely on the disk),
the lease is taken, and each receiver's desk tells what its rows in the outbox say is not told yet.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from guard.clock import Clock
from guard.home import Home, local_state, on_shared_disk
from guard.incidents import IncidentLog
from guard.notify import attention, lifecycle, story
from guard.notify.aside import Aside
from guard.notify.buttons import Listeners
from guard.notify.desk import Desk
from guard.notify.failure import OutOfTime
from guard.notify.lines import LineDesk
from guard.notify.outbox import LeaseLost, Outbox, open_outbox
from guard.notify.spec import Escalation, ReceiverSpec
from guard.notify.subject import Subject
from guard.notify.tale import DAMAGED, Tale
from guard.notify.threads import ThreadDesk
from guard.notify.turn import Limiter, Pace, Plot, Turn
from guard.types import SEVERITIES

POLL = 10.0  # seconds between passes when nobody wakes the courier
SOON = 1.0
_LOCKED_PASSES = 3


@dataclass(frozen=True, slots=True)
class Progress:
    """What one pass achieved.

    Args:
        told: messages sent or edited.
        waiting: incidents, over all receivers, of which something is still to be told.
        next_try: seconds until another pass can achieve something although nothing new happens; None if none can.
        leader: False if another process holds the lease and delivers.
        failures: ``receiver: reason`` of this pass.
    """

    told: int = 0
    waiting: int = 0
    next_try: float | None = None
    leader: bool = True
    failures: tuple[str, ...] = ()


_NOTHING = Progress()


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


class Rounds:
    """What a courier knows of its run and its receivers. The arguments are the courier's own."""

    def __init__(
        self,
        run_dir: Path,
        receivers: Sequence[ReceiverSpec],
        *,
        clock: Clock,
        state: Path | None,
        beside: Path | None,
        aside: Aside | None,
        limiter: Limiter | None,
        home: Home | None,
        escalate: Mapping[str, Escalation] | None,
        plot: Plot | None,
        say: Callable[[str], None],
    ) -> None:
        self.specs = _in_use(receivers, escalate or {}, say)
        self.pace = Pace(clock, limiter)
        self._run_dir, self._clock, self._plot, self._beside, self._say = run_dir, clock, plot, beside, say
        self._desks: list[Desk] = [ThreadDesk(s) if s.threaded else LineDesk(s) for s in self.specs]
        self._path = outbox_path(run_dir, state)
        self._box: Outbox | None = None
        self._aside, self._listeners = aside, Listeners(home, clock)
        self._tale = Tale(run_dir, beside, self.trouble)
        self._suspects: set[str] = set()
        self._quiet_until, self._joined = -math.inf, 0
        self._locked, self.troubles = 0, set()  # type: int, set[str]
        self._passing = threading.Lock()

    def deliver_once(self, *, eager: bool = False) -> Progress:
        """One pass, now and here. With `eager` waiting times after failures are not kept (a person asked). Where there
        is no news it costs a few `stat`."""
        if self._quiet() and not eager:
            return self._rest()
        with self._passing:
            try:
                return self._pass(eager)
            except (sqlite3.Error, OSError) as error:
                self._box_failed(error)
                return Progress(waiting=1, next_try=SOON, failures=(f"outbox: {error}",))

    def pending(self) -> list[Pending]:
        """What is not told yet, and why; silences left aside. Reads the story anew, so it can be asked at any time."""
        tale = Tale(self._run_dir, self._beside, self.trouble)
        tale.catch_up()
        try:
            box = self._box or open_outbox(self._path)[0]
            self._call(tale.log, box)
            found = [p for desk in self._desks for p in _pending(tale.log, box, desk, self._clock.time())]
            if box is not self._box:
                box.close()
        except sqlite3.Error as error:
            return [Pending(s.name, "", "", f"outbox: {error}") for s in self.specs]
        return found

    def release(self) -> None:
        """Lets go of the lease and closes the outbox."""
        self.pace.limiter.leave(self._tale.run_key)
        try:
            if self._box is not None:
                self._box.release()
                if self._box.path is not None:
                    self._box.close()
                    self._box = None
        except sqlite3.Error:
            pass  # it expires by itself

    def trouble(self, error: Exception) -> None:
        """Something of the courier's own went wrong; said once for each kind."""
        # Only the type: an exception's text may hold anything.
        if (name := type(error).__name__) not in self.troubles:
            self.troubles.add(name)
            self._say(f"telling failed ({name}); training goes on, and it is tried again")

    # ---- one pass

    def _quiet(self) -> bool:
        """All was told in an earlier pass, and since then nothing has happened, not even time enough."""
        return (
            self._clock.time() < self._quiet_until
            and self._joined == self.pace.limiter.joined
            and not self._tale.grown()
        )

    def _pass(self, eager: bool) -> Progress:
        self.pace.left()
        self._quiet_until = -math.inf
        first = self._box is None
        if self._box is None:
            self._box, trouble = open_outbox(self._path)
            if trouble:
                self._say_memory(trouble)
        if self._tale.catch_up(sync=True):
            for desk in self._desks:
                desk.forget()
        if first and self._box.fresh:
            self._suspects = {lifecycle.ID, *self._tale.log.incidents}
        escalation = self._call(self._tale.log, self._box)
        joined, self._joined = self._joined, self.pace.limiter.joined
        work = self._unsettled()
        storms = any(desk.keeps_storm for desk in self._desks) and joined != self._joined
        if not any(work) and not storms:
            if self._aside is not None:
                self._aside.waits(False)
            return self._at_rest(escalation)  # a quiet run writes nothing
        if (left := self._left_to_daemon(self._box, work)) is not None:
            return Progress(waiting=left, leader=False, next_try=POLL) if left else self._at_rest(escalation)
        if not self._box.take_lease(self._clock.time()):
            return Progress(leader=False, next_try=POLL)
        self._locked = 0
        turn = Turn(
            self._tale.log,
            self._box,
            self.pace,
            self._run_dir,
            self._tale.run_key,
            self._tale.versions,
            self._suspects,
            self._plot,
            self._say,
            eager,
            self._listeners.listening(),
        )
        for desk, subjects in zip(self._desks, work, strict=True):
            try:
                desk.deliver(turn, subjects)
            except LeaseLost:
                return Progress(turn.told, leader=False, next_try=POLL)
            except (OutOfTime, sqlite3.Error, OSError):
                raise
            except Exception as error:  # noqa: BLE001 - one receiver must not silence the others
                self.trouble(error)
                turn.failures.append(f"{desk.spec.name}: {type(error).__name__}")
        return self._progress(turn, escalation)

    def _unsettled(self) -> list[list[Subject]]:
        """By desk, what may have something to tell."""
        now = self._clock.time()
        return [desk.unsettled(self._tale.log, self._tale.versions, now) for desk in self._desks]

    def _left_to_daemon(self, box: Outbox, work: list[list[Subject]]) -> int | None:
        """How much of it a daemon has still to tell; None if it is to be told here, also because that took too long.
        What the daemon has told is settled here too."""
        if self._aside is None or not self._aside.now():
            return None
        untold, now = 0, self._clock.time()
        for desk, subjects in zip(self._desks, work, strict=True):
            for subject in subjects:
                rows = {row.key: row for row in box.items(desk.spec.name, "incident = ?", subject.id)}
                if subject.muted_until(now) or not desk.untold(subject, rows):
                    desk.settle(box, self._tale.versions, subject, now)
                else:
                    untold += 1
        if not self._aside.waits(untold > 0):
            return untold
        self._say("the daemon has not told this run's messages for a minute; from now on the run tells them itself")
        for desk in self._desks:
            desk.forget()
        work[:] = self._unsettled()
        return None

    def _progress(self, turn: Turn, escalation: float) -> Progress:
        waiting, soonest = 0, None
        for desk, unsettled in zip(self._desks, self._unsettled(), strict=True):
            if not unsettled:
                continue
            waiting += len(unsettled)
            times = [item.next_try for item in turn.box.items(desk.spec.name, "next_try > ?", turn.now)]
            standing = turn.box.standing(desk.spec.name)
            blocked = standing.next_try if standing.off or standing.asked or not turn.eager else 0.0
            at = blocked if blocked > turn.now else min(times, default=turn.now + SOON)
            soonest = min(at, soonest) if soonest is not None else at
        if soonest is None and not turn.failures:
            rest = self._at_rest(escalation)
            return Progress(turn.told, 0, rest.next_try, True)
        next_try = None if soonest is None else max(0.0, soonest - turn.now)
        return Progress(turn.told, waiting, next_try, True, tuple(turn.failures))

    def _at_rest(self, escalation: float) -> Progress:
        """All is told. Until when, if nothing happens?"""
        times = [at for desk in self._desks for at in desk.times(self._clock.time())]
        self._quiet_until = min([escalation, *times])
        return self._rest()

    def _rest(self) -> Progress:
        left = self._quiet_until - self._clock.time()
        return _NOTHING if math.isinf(left) else Progress(next_try=max(0.0, left))

    def _call(self, log: IncidentLog, box: Outbox) -> float:
        """Tells the desks which incidents they are told because nobody has answered elsewhere; when there may be
        more."""
        now, until, called = self._clock.time(), math.inf, {desk.spec.name: set[str]() for desk in self._desks}
        for escalate in [s.escalate for s in self.specs if s.escalate]:
            rows = box.items(escalate.to, "key = 'root' AND incident NOT LIKE '@%'")
            called[escalate.to] |= {row.incident for row in rows}
            for key, together in story.groups(log).items():
                at = attention.escalates_at(log, together.again[0], escalate.after, now)
                if at <= now:
                    called[escalate.to].add(key)
                else:
                    until = min(until, at)
        for desk in self._desks:
            desk.called = called[desk.spec.name]
        return until

    # ---- an outbox that cannot be used

    def _box_failed(self, error: sqlite3.Error | OSError) -> None:
        """A lock is waited for, a few times; anything else means going on in memory."""
        if "locked" in str(error):
            self._locked += 1
            if self._locked < _LOCKED_PASSES:
                return
        if isinstance(error, OSError) or (self._box is not None and self._box.path is None):
            self.trouble(error)
            return
        self._box = Outbox(None)
        # What was told of them is not known any more: look before posting.
        self._suspects = {lifecycle.ID, *self._tale.log.incidents}
        for desk in self._desks:
            desk.looked.clear()
        self._say_memory(str(error))

    def _say_memory(self, reason: str) -> None:
        self._say(
            f"the outbox {self._path} cannot be used ({reason}): what was told is remembered in memory only, so "
            "after a restart something may be told twice"
        )


def outbox_path(run_dir: Path, state: Path | None = None) -> Path:
    """Where a run's outbox is: in its directory, or under a name of its own in `state` or on this host's own disk."""
    if state is None and not on_shared_disk(run_dir):
        return run_dir / "outbox.db"
    digest = hashlib.sha256(str(run_dir.absolute()).encode("utf-8", "replace")).hexdigest()[:12]
    return (state or local_state()) / f"{run_dir.name}-{digest}.outbox.db"


def _in_use(
    receivers: Sequence[ReceiverSpec], escalate: Mapping[str, Escalation], say: Callable[[str], None]
) -> list[ReceiverSpec]:
    off = [r for r in receivers if r.off_reason]
    for receiver in off:
        say(f"receiver {receiver.name} is off: {receiver.off_reason}")
    used = [replace(r, escalate=escalate.get(r.name, r.escalate)) for r in receivers if not r.off_reason]
    if off and not used:
        least = min((r.min_severity for r in off), key=SEVERITIES.index)
        say("incidents are told here instead")
        used = [ReceiverSpec("console", "console", least)]
    names = {r.name for r in used}
    for i, r in enumerate(used):
        if r.escalate and r.escalate.to not in names:
            say(f"receiver {r.name} cannot call {r.escalate.to}, which is off or not there")
            used[i] = replace(r, escalate=None)
    on_call = {r.escalate.to for r in used if r.escalate}
    return [replace(r, on_call=r.name in on_call) for r in used]


def _pending(log: IncidentLog, box: Outbox, desk: Desk, now: float) -> list[Pending]:
    standing = box.standing(desk.spec.name)
    found = []
    for subject in desk.due(log):
        rows = {row.key: row for row in box.items(desk.spec.name, "incident = ?", subject.id)}
        try:
            muted = subject.muted_until(now) > 0
            left, first_line = [] if muted else desk.untold(subject, rows), subject.message().first_line
        except DAMAGED as error:
            found.append(Pending(desk.spec.name, subject.id, "", f"journal lines damaged ({type(error).__name__})"))
            continue
        if not left:
            continue
        row = rows.get(left[0])
        why = (row.error if row else "") or standing.error
        found.append(
            Pending(
                desk.spec.name,
                subject.id,
                first_line,
                why,
                row.attempts if row else 0,
                max(row.next_try if row else 0.0, standing.next_try),
            )
        )
    return found
