"""The daemon's jobs: run by APScheduler, each at its pace, and known to have advanced or not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from guard.clock import Clock

_STUCK = 30.0  # [s] beyond its pace after which a job is taken to be stuck


@dataclass(slots=True)
class Job:
    """One thing that is done again and again.

    Args:
        do: must not raise what it can meet itself; what it raises is said once, and it is tried again.
        every: seconds between two.
    """

    name: str
    do: Callable[[], None]
    every: float
    done_at: float = 0.0
    took: float = 0.0
    failures: int = 0

    def late(self, now: float) -> float:
        """Seconds by which it is behind its pace."""
        return max(0.0, now - self.done_at - self.every)


class Jobs:
    """All of them.

    Args:
        say: told once of each kind of failure.
    """

    def __init__(self, jobs: Iterable[Job], clock: Clock, say: Callable[[str], None]) -> None:
        self._clock, self._say, self._said = clock, say, set[str]()
        self._scheduler: BackgroundScheduler | None = None
        self.jobs = {job.name: job for job in jobs}
        for job in self.jobs.values():
            job.done_at = clock.monotonic()

    def start(self) -> None:
        logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # what is late or fails is known here
        self._scheduler = BackgroundScheduler(
            # Threads for all: a job that waits for the network must not keep another from its turn.
            executors={"default": ThreadPoolExecutor(len(self.jobs))},
            # What was missed is made up for once; a job of which one runs still is not begun again.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
            timezone="UTC",
        )
        for job in self.jobs.values():
            self._scheduler.add_job(self.run, "interval", seconds=job.every, args=[job], id=job.name)
        self._scheduler.start()

    def stop(self) -> None:
        """No job begins any more; those that run are not waited for."""
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
            self._scheduler = None

    def run(self, job: Job) -> None:
        """Once, now; whatever goes wrong in it, there will be a next time."""
        began = self._clock.monotonic()
        try:
            job.do()
        except Exception as error:  # noqa: BLE001 - one job must not end the daemon
            job.failures += 1
            self._trouble(job, error)
        job.done_at = self._clock.monotonic()
        job.took = job.done_at - began

    def stuck(self) -> list[str]:
        """Those that have not advanced for much longer than their pace."""
        now = self._clock.monotonic()
        return [job.name for job in self.jobs.values() if job.late(now) > _STUCK]

    def _trouble(self, job: Job, error: Exception) -> None:
        # Only the type and the place: an exception's text may hold anything.
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f" ({place.tb_frame.f_code.co_name}, line {place.tb_lineno})" if place else ""
        if (key := f"{job.name}: {type(error).__name__}{where}") not in self._said:
            self._said.add(key)
            self._say(f"the job {key} failed; it is tried again")
