"""Which snapshots are kept, and which one a rollback takes."""

from __future__ import annotations

from collections.abc import Callable

from guard.checkpoints.state import Snapshot


class Ring:
    """Snapshots in memory: the pinned start, the best, the good ones of different age, and one on probation.

    Args:
        keep: good snapshots, >= 1, besides start and best.
        probation: clean ticks before a snapshot counts as good.
        dropped: told of every snapshot that is no longer referenced, so that its memory can be used again.

    Attributes:
        promoted: told of every snapshot that counts as good from now on.
        rewound: told of the snapshot that the run went back to.
    """

    def __init__(self, keep: int, probation: int, dropped: Callable[[Snapshot], None] = lambda _: None) -> None:
        self.keep, self.probation, self.dropped = keep, probation, dropped
        self.promoted: Callable[[Snapshot], None] = lambda _: None
        self.rewound: Callable[[Snapshot], None] = lambda _: None
        self.start: Snapshot | None = None
        self.best: Snapshot | None = None
        self.good: list[Snapshot] = []
        self.candidate: Snapshot | None = None

    def restart(self, snapshot: Snapshot) -> None:
        """Another history begins (first boundary, or weights were loaded): what was kept belongs to the old one."""
        old = self._all()
        self.start, self.best, self.good, self.candidate = snapshot, None, [], None
        self._forget(old)

    def add(self, snapshot: Snapshot) -> None:
        """A new snapshot, on probation; one that still was gives way."""
        old, self.candidate = self.candidate, snapshot
        self._forget([old] if old else [])
        self._promote()

    def set_best(self, snapshot: Snapshot) -> None:
        old, self.best = self.best, snapshot
        self._forget([old] if old else [])

    def count_clean(self) -> None:
        """One more clean tick."""
        if self.candidate is not None:
            self.candidate.clean += 1
            self._promote()

    def count_unclean(self) -> None:
        """A tick that was not clean: probation starts anew."""
        if self.candidate is not None:
            self.candidate.clean = 0

    def pick(self, to: str, since: int, used: int | None) -> Snapshot | None:
        """The snapshot a rollback goes to, or None.

        Args:
            to: last_good, previous, start or best.
            since: tick at which the fault began; a good snapshot was taken no later.
            used: tick of the snapshot that this incident restored last, for `previous`.
        """
        if to == "start":
            return self.start
        if to == "best":
            return self.best or self.pick("last_good", since, used)
        limit = since if to == "last_good" or used is None else min(since, used - 1)
        older = [s for s in self.good if s.tick <= limit]
        return older[-1] if older else self.start

    def rewind(self, snapshot: Snapshot) -> None:
        """After a rollback: what was taken later belongs to a history that no longer happened."""
        old = self._all()
        self.good = [s for s in self.good if s.tick <= snapshot.tick]
        if self.candidate is not snapshot:
            self.candidate = None
        self._forget(old)
        self.rewound(snapshot)

    def newest(self) -> Snapshot | None:
        """The newest one that counts as good, the start included."""
        return self.good[-1] if self.good else self.start

    def newest_tick(self) -> int:
        """Tick of the newest snapshot, on probation or good; -1 if there is none."""
        return max((s.tick for s in (self.start, self.candidate, *self.good) if s), default=-1)

    def _promote(self) -> None:
        if self.candidate is None or self.candidate.clean < self.probation:
            return
        old = self._all()
        self.good.append(self.candidate)
        self.promoted(self.candidate)
        self.candidate = None
        if len(self.good) > self.keep:
            del self.good[self._crowded()]
        self._forget(old)

    def _crowded(self) -> int:
        """The good snapshot whose loss costs least: never the newest; where two are closest in age, the younger."""
        now = self.good[-1].step + 1
        ages = [now - s.step for s in ([self.start] if self.start else []) + self.good]
        first = len(ages) - len(self.good)
        return min(range(len(self.good) - 1), key=lambda i: ages[max(0, i + first - 1)] / ages[i + first])

    def _all(self) -> list[Snapshot]:
        return [s for s in (self.start, self.best, self.candidate, *self.good) if s is not None]

    def _forget(self, old: list[Snapshot]) -> None:
        kept = {id(s) for s in self._all()}
        for snapshot in {id(s): s for s in old if id(s) not in kept}.values():
            self.dropped(snapshot)
