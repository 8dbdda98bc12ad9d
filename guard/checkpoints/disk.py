"""Checkpoints on disk: written in the background, verified before they are read.

Nothing here raises into training. What came of it are values that the training thread takes when it likes.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from guard.checkpoints import manifest, retention, writing
from guard.checkpoints.crew import Crew
from guard.checkpoints.loading import Loading, load
from guard.checkpoints.manifest import Checkpoint, State
from guard.checkpoints.portable import Portable
from guard.checkpoints.state import Snapshot, TrainingState
from guard.clock import Clock
from guard.errors import CheckpointError

_OUTCOMES = 1000  # kept if nobody takes them


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened on the disk.

    Args:
        kind: saved, failed (a save, a removal, a promotion), promoted, removed.
        step, tick: of the checkpoint; -1 where it is about none.
        reason: why it failed or was removed, one sentence; else empty.
        bytes: of its files.
        seconds: what a save took in the background, failed or not.
        left_out: what of the run's state is not in it, one sentence each.
    """

    kind: Literal["saved", "failed", "promoted", "removed"]
    step: int
    tick: int
    reason: str = ""
    bytes: int = 0
    seconds: float = 0.0
    left_out: tuple[str, ...] = ()


class DiskStore:
    """Checkpoints in a folder.

    All methods are for the training thread; with several ranks, `save` and `load` are called by all of them, in the
    same order, the others count on rank 0 only. A save is written by a thread of its own, one at a time.

    Args:
        folder: where; made if it is not there. Later it is not made again: a disk that is not mounted is no place.
        keep: the newest good ones that are kept, >= 1; up to as many older ones stay too.
        max_bytes: what all of them may take; None: no bound. The newest good one stays whatever its size.
        clock: injected.
        rank, world: which process of how many.
        group: a gloo process group of all ranks that nothing else uses; None if `world` is 1.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        max_bytes: int | None = None,
        clock: Clock,
        rank: int = 0,
        world: int = 1,
        group: Any = None,
    ) -> None:
        self.folder, self.keep, self.max_bytes = folder, keep, max_bytes
        self._clock, self._crew = clock, Crew(rank, world, group)
        self._writing: Portable | None = None
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._outcomes: deque[Outcome] = deque(maxlen=_OUTCOMES)
        self._released: list[tuple[Snapshot, Callable[[Snapshot], None]]] = []
        self._pid = os.getpid()
        self._closed = False
        self._tidied = rank != 0
        self._tidying = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="guard-checkpoints", daemon=True)
        self._thread.start()

    # ---- what the training thread asks

    @property
    def writing(self) -> bool:
        """A save is under way, so that another would be refused. With several ranks, ask all of them."""
        return self._writing is not None

    def save(self, portable: Portable, *, state: State = "probation") -> bool:
        """Begins to write; returns at once.

        Args:
            portable: its source must not change before `busy` says so.
            state: with which it is entered.

        Returns:
            False: the save before it is still under way, or the store is closed; try again later.
        """
        if self._writing is not None or self._closed:
            return False
        self._writing = portable
        self._jobs.put(lambda: self._save(state))
        return True

    def promote(self, step: int, tick: int | None = None) -> None:
        """The checkpoint of `step` survived its probation. One that does not exist, or is of another tick, is left."""

        def do() -> None:
            for checkpoint in self._there():
                same = checkpoint.manifest.step == step and tick in (None, checkpoint.manifest.tick)
                if same and checkpoint.manifest.state != "good":
                    self._note("promoted", manifest.with_state(checkpoint, "good"))
            self._thin()

        self._as_first(do, "promoted")

    def rewind(self, tick: int) -> None:
        """The run went back to what it was at `tick`: what was saved later is on probation again, which it will not
        survive, and a resume takes it only if there is nothing else."""

        def do() -> None:
            for checkpoint in self._there():
                if checkpoint.manifest.tick > tick and checkpoint.manifest.state != "probation":
                    manifest.with_state(checkpoint, "probation")

        self._as_first(do, "put back on probation")

    def busy(self, snapshot: Snapshot) -> bool:
        """The snapshot's tensors are being written: they must not change."""
        portable = self._writing
        return portable is not None and portable.source is snapshot

    def release(self, snapshot: Snapshot, recycle: Callable[[Snapshot], None]) -> None:
        """Calls `recycle` now, or, while the snapshot is being written, in the first `outcomes` after that."""
        if self.busy(snapshot):
            self._released.append((snapshot, recycle))
        else:
            recycle(snapshot)

    def outcomes(self) -> list[Outcome]:
        """What has happened since the last call, oldest first; gives back released snapshots."""
        if self._released:
            waiting, self._released = self._released, []
            for snapshot, recycle in waiting:
                self.release(snapshot, recycle)
        return [self._outcomes.popleft() for _ in range(len(self._outcomes))]

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all that was asked for is done, at most `timeout` [s]; True if it is."""
        with self._jobs.all_tasks_done:
            return self._jobs.all_tasks_done.wait_for(lambda: not self._jobs.unfinished_tasks, timeout)

    def close(self, timeout: float) -> bool:
        """Takes no more, and waits for what is under way, at most `timeout` [s]; True if all is done. What is not
        done then is left unfinished when the process ends. In a forked child: nothing."""
        self._closed = True
        if os.getpid() != self._pid:
            return True
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def load(self, state: TrainingState, step: int | None = None) -> Loading:
        """The newest checkpoint that is whole: every file is verified before anything of it is read. A damaged one is
        passed over, and said. Waits for the disk; `to_snapshot` makes of it what `TrainingState.restore` takes.

        Args:
            state: the live run; its names and shapes are used, nothing of it is changed.
            step: this one or none; None: the newest good or preempted one, else the newest on probation.

        Raises:
            ChangedModelError: it is sound, but of another model or optimizer.
            CheckpointError: the folder cannot be read, or there is no such step.
        """
        with contextlib.suppress(OSError):
            self._tidy()
        return load(self.folder, state, self._crew, step)

    # ---- the thread

    def _as_first(self, job: Callable[[], None], what: str) -> None:
        """For what only rank 0 does."""
        if self._crew.rank == 0 and not self._closed:
            self._jobs.put(lambda: self._protected(job, what))

    def _work(self) -> None:
        with contextlib.suppress(OSError):  # the first save will say so
            self._tidy()
        while (job := self._jobs.get()) is not None:
            job()
            job = None  # what it holds is not needed until the next one comes
            self._jobs.task_done()
        self._jobs.task_done()

    def _tidy(self) -> None:
        """Once, before anything else is done in the folder."""
        with self._tidying:
            if not self._tidied:
                writing.tidy(self.folder)
                self._tidied = True

    def _protected(self, do: Callable[[], None], what: str) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - the thread must survive anything
            why = writing.sentence(error, self.folder)
            self._outcomes.append(Outcome("failed", -1, -1, f"{self.folder} could not be {what}: {why}"))

    def _save(self, state: State) -> None:
        portable = self._writing
        assert portable is not None
        start = self._clock.monotonic()
        try:
            self._crew.agree(self._room_for(portable) if self._crew.rank == 0 else None)
            made = writing.write(self.folder, portable, state, self._crew, self._clock.time())
            self._note("saved", made, seconds=self._clock.monotonic() - start, left_out=made.manifest.left_out)
        except Exception as error:  # noqa: BLE001 - training goes on whatever the disk does
            why = str(error) if isinstance(error, CheckpointError) else writing.sentence(error, self.folder)
            took = self._clock.monotonic() - start
            self._outcomes.append(
                Outcome(
                    "failed",
                    portable.step,
                    portable.tick,
                    f"no checkpoint of step {portable.step} in {self.folder}: {why}",
                    seconds=took,
                )
            )
        else:
            if self._crew.rank == 0:
                self._protected(self._thin, "thinned out")
        finally:
            self._writing = None

    def _room_for(self, portable: Portable) -> str | None:
        try:
            self._tidy()
            for gone in writing.make_room(self.folder, writing.room_needed(portable), self.keep, self.max_bytes):
                self._note("removed", gone, "to make room for a newer one within max_bytes")
        except CheckpointError as error:
            return str(error)
        except OSError as error:
            return writing.sentence(error, self.folder)
        return None

    def _thin(self) -> None:
        for checkpoint in retention.surplus(self._there(), self.keep, self.max_bytes):
            with contextlib.suppress(FileNotFoundError):
                writing.remove(checkpoint)
            self._note("removed", checkpoint, "newer ones, or ones of about its age, are kept")

    def _there(self) -> list[Checkpoint]:
        return manifest.listing(self.folder).checkpoints

    def _note(self, kind: Any, checkpoint: Checkpoint, reason: str = "", **more: Any) -> None:
        made = checkpoint.manifest
        self._outcomes.append(Outcome(kind, made.step, made.tick, reason, made.bytes, **more))
