"""What Prometheus may know: read off the daemon when it is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from guard.daemon.condition import STATES
from guard.incidents.tail import last_signals
from guard.notify.words import clean

if TYPE_CHECKING:
    from guard.daemon.service import Daemon
    from guard.daemon.watched import Watched

Labelled = Iterable[tuple[list[str], float]]
_RUN = ("run", "run_id", "host")
_JOB = ["name"]  # not "job": Prometheus has a label of that name for what it scrapes


class Collector:
    """Reads the daemon when it is asked."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def collect(self) -> Iterator[Metric]:
        daemon = self._daemon
        runs = [(_labels(w), w) for w in daemon.watched()]
        yield _gauge("guard_run_state", "1 for the state a run is in.", ["state"], self._states(runs))
        now = daemon.clock.monotonic()
        yield _gauge(
            "guard_run_heartbeat_age_seconds",
            "Since a rank's heartbeat last changed, as this daemon saw it.",
            [],
            ((labels, now - w.beat_at) for labels, w in runs if w.beats),
        )
        yield _gauge(
            "guard_run_step", "Completed steps.", [], ((labels, float(w.step)) for labels, w in runs if w.beats)
        )
        rows = [(labels, row) for labels, w in runs if (row := last_signals(w.path)) is not None]
        for column, what in (("loss", "Loss of the latest step."), ("grad_norm", "Global gradient norm of it.")):
            yield _gauge(f"guard_run_{column}", what, [], ((labels, row[column]) for labels, row in rows))
        yield _gauge("guard_run_incidents", "Incidents.", ["policy", "status"], self._incidents(runs))
        yield _gauge(
            "guard_run_unreadable",
            "1 if a run's story is damaged.",
            [],
            ((la, float(bool(w.damaged))) for la, w in runs),
        )
        yield from self._messages(runs)
        yield from self._jobs()

    def _states(self, runs: list[tuple[list[str], Watched]]) -> Iterator[tuple[list[str], float]]:
        for labels, watched in runs:
            for state in STATES:
                yield [*labels, state], float(watched.state == state)

    def _incidents(self, runs: list[tuple[list[str], Watched]]) -> Iterator[tuple[list[str], float]]:
        for labels, watched in runs:
            counts = Counter((i.policy, i.status) for i in list(watched.log.incidents.values()))
            for (policy, status), count in counts.items():
                yield [*labels, clean(policy, 80), status], float(count)

    def _messages(self, runs: list[tuple[list[str], Watched]]) -> Iterator[Metric]:
        telling, now = self._daemon.telling, self._daemon.clock.time()
        untold = [(labels, telling.standing(w.run.id)) for labels, w in runs]
        depth = ((labels, float(s.waiting)) for labels, s in untold)
        yield _gauge("guard_outbox_depth", "Incidents of which something is still to be told.", [], depth)
        oldest = ((labels, now - s.waiting_since) for labels, s in untold if s.waiting_since is not None)
        yield _gauge("guard_outbox_oldest_age_seconds", "Since when the oldest of them waits.", [], oldest)
        told = CounterMetricFamily("guard_messages_told", "Messages sent or edited since the daemon began.")
        told.add_metric([], telling.told)
        yield told
        if telling.last_success is not None:
            yield _gauge(
                "guard_last_success_timestamp_seconds",
                "When a message last arrived.",
                [],
                [([], telling.last_success)],
                (),
            )
        listener = self._daemon.listening
        states = (([state], float(state == listener)) for state in ("off", "waiting", "connecting", "connected"))
        yield _gauge("guard_listener_state", "1 for the state of the listener on Slack.", ["state"], states, ())

    def _jobs(self) -> Iterator[Metric]:
        jobs, now = list(self._daemon.jobs.jobs.values()), self._daemon.clock.monotonic()
        late = (([job.name], job.late(now)) for job in jobs)
        yield _gauge("guard_job_lateness_seconds", "By which a job is behind its pace.", _JOB, late, ())
        took = (([job.name], job.took) for job in jobs)
        yield _gauge("guard_job_duration_seconds", "Of a job's latest run.", _JOB, took, ())
        failed = CounterMetricFamily("guard_job_failures", "Runs of a job that failed.", labels=_JOB)
        for job in jobs:
            failed.add_metric([job.name], job.failures)
        yield failed


def _gauge(
    name: str,
    what: str,
    labels: list[str],
    values: Labelled,
    of: tuple[str, ...] = _RUN,
) -> GaugeMetricFamily:
    found = GaugeMetricFamily(name, what, labels=[*of, *labels])
    for given, value in values:
        found.add_metric(given, value)
    return found


def _labels(watched: Watched) -> list[str]:
    return [clean(watched.run.run, 80), watched.run.id, clean(watched.run.host, 80)]
