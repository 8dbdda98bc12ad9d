"""The run's checkpoints on disk: when one is written, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from guard.checkpoints import DiskInterval, DiskStore, Loading, Snapshot, to_portable, to_snapshot
from guard.checkpoints.crew import Crew
from guard.checkpoints.loading import load
from guard.clock import Clock
from guard.policy.schema import Disk
from guard.reporter import Reporter
from guard.run.accumulation import Held
from guard.run.feed import Place
from guard.run.live import LiveRun

CLASSES: dict[str, type] = {"Place": Place, "Held": Held}  # what a snapshot's context holds beside plain values


class Durable:
    """Writes snapshots of the memory ring to disk, in the background.

    Args:
        disk: where, how often and how many.
        run_dir: where a relative folder lies.
        live: the run; its ring says what is good, and what nobody needs any more.
        report: the journal.
        clock: injected.

    Attributes:
        store: what writes.
        subfolder: of a run directory, where checkpoints lie; or an absolute path.
    """

    def __init__(self, disk: Disk, run_dir: Path, live: LiveRun, report: Reporter, clock: Clock) -> None:
        self._live, self._report = live, report
        self.subfolder = disk.dir
        ranks = live.ranks
        self.store = DiskStore(
            run_dir / disk.dir,
            keep=disk.keep,
            max_bytes=disk.max_bytes,
            clock=clock,
            rank=ranks.rank,
            world=ranks.world,
            group=ranks.another_group(),
        )
        self._interval = DiskInterval(disk.every, clock)
        self._saved: Snapshot | None = None  # the last one that was given to the store
        self._failing = False  # the last save did, and that was said
        self._said: set[str] = set()
        live.ring.dropped, live.ring.promoted, live.ring.rewound = self._recycle, self._promoted, self._rewound

    @property
    def due(self) -> bool:
        """A checkpoint is to be written, by this process's clock."""
        return self._interval.due(self._live.step)

    def now(self) -> None:
        """A checkpoint is to be written at once."""
        self._interval.now()

    def save(self, snapshot: Snapshot) -> None:
        """Begins to write `snapshot`, if that has not been done."""
        if snapshot is self._saved:
            return
        try:
            began = self.store.save(self._portable(snapshot))
        except Exception as error:  # noqa: BLE001 - one checkpoint less is no reason to let go of the run
            self._interval.began(snapshot.step)
            self._fail(f"no checkpoint of step {snapshot.step}: {type(error).__name__}: {error}")
            return
        if not began:
            return
        self._saved = snapshot
        self._report.files.flush()  # a checkpoint without the rows before it would leave a gap
        self._interval.began(snapshot.step)
        if snapshot in self._live.ring.good:
            self._promoted(snapshot)

    def save_last(self, snapshot: Snapshot, timeout: float) -> bool:
        """Writes `snapshot` before the process ends; True if it is safe within `timeout` [s]."""
        self.store.wait(timeout / 2)
        written = self.store.save(self._portable(snapshot), state="preempted") and self.store.wait(timeout / 2)
        self.tend()
        return written and not self._failing

    def tend(self) -> None:
        """Journals what has happened on the disk."""
        for outcome in self.store.outcomes():
            if outcome.seconds:
                self._interval.took(outcome.seconds)
            if outcome.kind == "failed":
                self._fail(outcome.reason)
            elif outcome.kind == "saved":
                self._failing = False
                self._say_once(outcome.left_out)

    def _fail(self, reason: str) -> None:
        """An incident, until a save succeeds again."""
        if not self._failing:
            self._failing = True
            self._report.trouble("checkpoint_failed", f"{reason}; training goes on, older checkpoints stay", "disk")

    def load(self, folder: Path | None = None) -> Loading:
        """The newest sound checkpoint, of this run or of another one's `folder`; see `DiskStore.load`.

        Raises:
            ChangedModelError: it is of another model or optimizer.
            CheckpointError: the folder cannot be read.
        """
        live = self._live
        if not live.ranks.broadcast((folder or self.store.folder).is_dir()):
            return Loading()
        if folder is None:
            return self.store.load(live.state)
        return load(folder, live.state, Crew(live.ranks.rank, live.ranks.world, live.ranks.another_group()))

    def take_up(self, loading: Loading) -> Snapshot:
        """The snapshot that was loaded, in this process's terms."""
        assert loading.portable is not None, "asked only if there is one"
        self._say_once(loading.portable.left_out)
        snapshot = to_snapshot(self._live.state, loading.portable, CLASSES)
        self._interval.began(snapshot.step)
        return snapshot

    def close(self, timeout: float) -> None:
        """Finishes what is under way, for at most `timeout` [s]."""
        self.store.close(timeout)
        self.tend()

    def _portable(self, snapshot: Snapshot) -> Any:
        return to_portable(self._live.state, snapshot, CLASSES)

    def _recycle(self, snapshot: Snapshot) -> None:
        self.store.release(snapshot, self._live.state.recycle)

    def _promoted(self, snapshot: Snapshot) -> None:
        if snapshot is self._saved:
            self.store.promote(snapshot.step, snapshot.tick)

    def _rewound(self, snapshot: Snapshot) -> None:
        self.store.rewind(snapshot.tick)
        self._interval.began(snapshot.step)

    def _say_once(self, sentences: tuple[str, ...]) -> None:
        for sentence in sentences:
            if sentence not in self._said:
                self._said.add(sentence)
                self._report.notice("warning", f"checkpoints on disk are not complete: {sentence}")
