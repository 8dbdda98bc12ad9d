"""What happens between two iterations: the second restore after a rollback, snapshots, and the check that they
are sound.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from guard.bank import Bank, Rules
from guard.checkpoints import Interval, Snapshot, Surroundings, keep_that_fits
from guard.clock import Clock
from guard.durable import Durable
from guard.policy.schema import Checkpoints
from guard.reporter import Reporter
from guard.responder import Responder
from guard.run.live import LiveRun
from guard.types import Detection

_BORDERS = 16  # passes back over whose beginning a rollback is still exact


class Wishes(NamedTuple):
    """What is due, by a clock that only one rank may follow."""

    snapshot: bool = False
    disk: bool = False


class Boundary:
    """Keeps the run's snapshots.

    Args:
        live: the run.
        responder: asked about a state that is not finite.
        report: the journal.
        rules: to find the detectors of non-finite numbers.
        banks: detectors per optimizer; their baselines belong to a snapshot.
        checkpoints: how often and how many.
        clock: injected.
        durable: writes snapshots to disk; None: memory only.

    Attributes:
        history_starts: the state is new to the guard (first boundary, weights were loaded): `start` is to be taken.
        pass_begins: the loop, not a replay, begins a pass over its data.
        wishes: with several ranks, what they have agreed is due; None: they have not, or this is the only one.
    """

    def __init__(
        self,
        live: LiveRun,
        responder: Responder,
        report: Reporter,
        rules: Rules,
        banks: Sequence[Bank],
        *,
        checkpoints: Checkpoints,
        clock: Clock,
        durable: Durable | None,
    ) -> None:
        self._live, self._responder, self._report, self._rules, self._banks = live, responder, report, rules, banks
        self._checkpoints, self.durable = checkpoints, durable
        self.wishes: Wishes | None = None
        self._interval = Interval(checkpoints.every, clock)
        self._borders: dict[int, Surroundings] = {}  # pass -> what the loop's code between the passes had left
        self._best = math.inf
        self.history_starts = True
        self.pass_begins = False

    @property
    def best(self) -> float:
        """Lowest validation loss so far; infinite if none was logged."""
        return self._best

    def cross(self) -> None:
        """Restores again after a rollback, takes a snapshot if one is due."""
        live = self._live
        if not self._responder.acting and live.went_back is None:
            return
        if live.boundary():
            self._interval.taken(live.step)
        if live.feed is not None and live.feed.at_pass_start:
            self.cross_border(live.feed.pass_number)
        if not self._responder.acting:
            return
        due, self.wishes = self._due(), None
        if self.history_starts or live.wants_snapshot or due.snapshot:
            self._take_snapshot()
        if self.durable is not None:
            self.durable.tend()
            if due.disk:
                self._make_durable(self.durable)

    @property
    def by_clock(self) -> bool:
        """Only a clock knows when the next snapshot is due."""
        return self._interval.by_clock

    @property
    def wish(self) -> Wishes:
        """What is due by this process's own clock and counters."""
        durable = self.durable
        return Wishes(self._interval.due(self._live.step), durable is not None and durable.due)

    def _due(self) -> Wishes:
        """What is to be done now; with several ranks the same on all of them.

        A snapshot on probation is waited for: a newer one in its place would never get through either.
        """
        if self._live.ranks.world == 1:
            wish = self.wish
            busy = self.durable is not None and self.durable.store.writing
        else:
            wish, busy = self.wishes or Wishes(), False
            if not self._interval.by_clock:
                wish = wish._replace(snapshot=self._interval.due(self._live.step))
        return Wishes(wish.snapshot and self._live.ring.candidate is None, wish.disk and not busy)

    def _make_durable(self, durable: Durable) -> None:
        """One on probation, or a new one, goes to the disk if that is due."""
        if self._live.ring.candidate is None and self._live.ring.newest_tick() != self._live.tick:
            self._take_snapshot()
        snapshot = self._live.ring.candidate or self._live.ring.newest()
        if snapshot is not None:
            durable.save(snapshot)

    def save_last(self, timeout: float) -> str | None:
        """Writes the state of now before the process ends; the checkpoint's name, or None: it could not be written in
        `timeout` [s].
        """
        if self.durable is None or not self._responder.acting:
            return None
        snapshot = self._capture()
        safe = snapshot.finite and self.durable.save_last(snapshot, timeout)
        return f"step-{snapshot.step}" if safe else None

    def take_up(self, snapshot: Snapshot) -> None:
        """The run goes on from `snapshot`, which another process has taken."""
        context = snapshot.context
        self._best = context["best"]
        new = {key: i for i, key in enumerate(self._rules.keys)}
        for bank, saved in zip(self._banks, context["baselines"], strict=False):
            kept = zip(context["detectors"], range(len(context["detectors"])), strict=True)
            bank.load({new[key]: saved[i] for key, i in kept if key in new and i in saved})
        snapshot.context = self._context(snapshot.context["place"], snapshot.context["held"])

    def cross_border(self, number: int) -> None:
        """A pass begins. In a replay the loop's code between two passes (an epoch's scheduler step) does not run
        again, so what it left the first time is put back."""
        feed = self._live.feed
        if feed is None or feed.passes is None or not self._responder.acting:
            return
        if self.pass_begins:
            self._borders[number] = self._live.state.surroundings()
            self._borders.pop(number - _BORDERS, None)
        elif number in self._borders:
            self._live.state.put_surroundings(self._borders[number])
        self.pass_begins = False

    def provisional_start(self) -> None:
        """The state of now, until the first boundary gives a better one: a loop may never show where it begins."""
        with contextlib.suppress(Exception):  # parameters that do not exist yet (lazy modules)
            snapshot = self._capture()
            if snapshot.finite:
                self._live.ring.restart(snapshot)

    def checkpoint_now(self) -> None:
        """A snapshot is taken at the next boundary, and written to disk if there is one for that."""
        self._live.wants_snapshot = True
        if self.durable is not None:
            self.durable.now()

    def keep_best(self, loss: float) -> None:
        """Keeps the state of now if `loss` is the lowest validation loss so far. Of several ranks, all call it."""
        if loss < self._best and self._responder.acting and self._live.went_back is None:
            snapshot = self._capture()
            if snapshot.finite:
                self._best = loss
                self._live.ring.set_best(snapshot)

    def verify(self) -> bool:
        """The loop is about to end: is the state that it leaves finite? False: it was rolled back, go on."""
        if not self._responder.acting or self._live.state_finite():
            return True
        return not self._poisoned()

    def _take_snapshot(self) -> None:
        """One that is not finite is a fault of its own, and is undone at once."""
        snapshot = self._interval.measure(self._capture)
        if not snapshot.finite:
            self._poisoned()
        elif self.history_starts:
            self._live.ring.restart(snapshot)
            self._fit_memory(snapshot)
        else:
            self._live.ring.add(snapshot)
        self.history_starts = self._live.wants_snapshot = False
        self._interval.taken(self._live.step)

    def _capture(self) -> Snapshot:
        snapshot = self._live.capture()
        snapshot.context = self._context(snapshot.context["place"], snapshot.context["held"])
        return snapshot

    def _context(self, place: Any, held: Any) -> dict[str, Any]:
        """What the guard itself must know again after going back, or in another process."""
        return {
            "place": place,
            "held": held,
            "baselines": [bank.state_dict() for bank in self._banks],
            "detectors": self._rules.keys,
            "best": self._best,
            "rows": list(self._responder.history.rows),
            "flagged": list(self._responder.history.flagged),
        }

    def _fit_memory(self, snapshot: Snapshot) -> None:
        """Keeps as many snapshots as the memory allowed for them holds."""
        keep = self._checkpoints.keep
        fits = -self._live.ranks.worst(-keep_that_fits(snapshot.bytes, keep, self._checkpoints.memory))
        if fits < keep:
            self._live.ring.keep = fits
            self._report.notice(
                "info",
                f"{fits} instead of {keep} good checkpoints are kept in memory: one takes "
                f"{snapshot.bytes / 2**20:.0f} MiB",
            )

    def _poisoned(self) -> bool:
        """Weights or buffers are not finite although losses and gradients were. True: a rollback undid it."""
        live = self._live
        since = live.ring.newest_tick() + 1
        detection = Detection(
            "non_finite",
            "state",
            math.nan,
            0.0,
            0.0,
            since,
            f"weights or buffers became NaN or Inf between tick {since - 1} and {live.tick}, "
            "although losses and gradients were finite",
        )
        self._responder.respond(dict.fromkeys(self._rules.indices("non_finite"), detection), {})
        if live.stopping:
            raise self._report.training_stopped()
        return live.boundary()
