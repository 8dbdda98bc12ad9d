"""Turns what happens into journal entries, and keeps the same picture of it as any reader of the journal."""

from __future__ import annotations

import math
import os
import platform
import socket
import statistics
import sys
import traceback
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from guard.errors import TrainingStopped
from guard.incidents import IncidentLog, control
from guard.incidents.advice import CAUSES
from guard.incidents.diagnose import Diagnosis, to_plain
from guard.incidents.rundir import RunDir, SignalRow
from guard.policy import engine
from guard.policy.schema import Policy
from guard.types import Detection, Entry, Result, Severity

_ERROR = 2000  # characters of an exception's text
_AROUND = 20  # ticks that loss_before and loss_after are the median of


class Reporter:
    """Writes the journal.

    Args:
        files: the run directory.
        moment: ``(tick, step)`` of now.
        earlier: what the journal of this directory says already.

    Attributes:
        log: incidents as the journal tells them.
        listeners: called after every entry; the couriers'.
    """

    def __init__(self, files: RunDir, moment: Callable[[], tuple[int, int]], earlier: IncidentLog) -> None:
        self.files, self._moment, self.log = files, moment, earlier
        self.listeners: list[Callable[[], None]] = []
        self._failures = len(earlier.incidents)
        self._lost: dict[str, int] = {}
        self._before: dict[str, float] = {}

    def write(self, kind: str, *, durable: bool = False, **keys: Any) -> Entry:
        """Journals one entry and folds it."""
        tick, step = self._moment()
        entry = self.files.journal({"kind": kind, "tick": tick, "step": step} | keys, durable=durable)
        self.log.apply(entry)
        for wake in self.listeners:
            wake()
        return entry

    def facts(self, incident: str) -> Entry:
        """All that is known of an incident, as a program would read it."""
        known = self.log.incidents.get(incident)
        return {} if known is None else asdict(known)

    # ---- the engine's events

    def opened(self, event: engine.Opened, rows: Iterable[SignalRow], shown: int, evidence: Mapping[str, Any]) -> None:
        """Journals a new incident, with the last `shown` of the recent `rows` and with `evidence`."""
        d, recent = event.detection, list(rows)
        self._before[event.incident] = _typical(r for r in recent if r[0] < d.since)
        self.write(
            "incident_opened",
            incident=event.incident,
            policy=event.policy.name,
            detector=d.detector,
            severity=event.policy.severity,
            detection=_detection(d),
            observed=event.observed,
            attached_to=event.attached_to,
            signals=[list(r) for r in recent[-shown:]],
        )
        if evidence:
            self.write("incident_evidence", incident=event.incident, evidence=dict(evidence))

    def fired(self, event: engine.Fired) -> None:
        self.log.incidents[event.incident].count = event.count
        if event.detection is None:
            self.write("incident_fired", incident=event.incident, count=event.count)
        elif _is_power_of_two(event.count):
            self.write(
                "incident_fired", incident=event.incident, count=event.count, detection=_detection(event.detection)
            )

    def attempted(self, event: engine.Attempted, step: int, results: Sequence[Result]) -> bool:
        """Journals an attempt with the step at which it was made: a rollback has moved the run since. False: it is one
        of many alike, and was only counted.
        """
        for r in results:
            lost = r.changes.get("from_step", 0) - r.changes.get("to_step", 0) + (r.type == "skip_step")
            self._lost[event.incident] = self._lost.get(event.incident, 0) + lost
        if event.repeat and not _is_power_of_two(event.repeat):
            self.log.incidents[event.incident].attempts[-1].repeats = event.repeat
            return False
        self.write(
            "attempt",
            step=step,
            durable=any(r.type in ("rollback", "stop") for r in results),
            incident=event.incident,
            rung=event.rung,
            rungs=event.policy.rungs,
            repeat=event.repeat,
            escalated=event.escalated,
            would=event.would,
            results=[asdict(r) for r in results],
            unavailable=[list(u) for u in event.unavailable],
        )
        return True

    def closed(self, event: engine.Closed, rows: Iterable[SignalRow]) -> None:
        before = self._before.pop(event.incident, math.nan)
        after = _typical(list(rows)[-_AROUND:]) if event.status == "resolved" else math.nan
        outcome = {
            "loss_before": before,
            "loss_after": after,
            "loss_expected": before,
            "steps_lost": self._lost.pop(event.incident, 0),
        }
        self.write(
            "incident_closed",
            durable=event.status in ("exhausted", "stopped"),
            incident=event.incident,
            status=event.status,
            count=event.count,
            outcome=outcome,
        )

    def examining(self, policy: Policy, detection: Detection) -> None:
        """Journals a fault before its incident opens, which it does when its cause is known."""
        self.write("examining", policy=policy.name, detector=detection.detector, detection=_detection(detection))

    def diagnosed(self, incident: str, diagnosis: Diagnosis) -> None:
        self.write(
            "incident_evidence",
            incident=incident,
            evidence={"diagnosis": to_plain(diagnosis)},
            cause=CAUSES[diagnosis.cause] if diagnosis.cause != "unknown" else "",
        )

    # ---- what happens outside the policies

    def gated(self, grad_norm: float) -> None:
        """A non-finite gradient was kept from the optimizer although no policy acted (observe, cooldown, budget)."""
        incident = next((i for i in reversed(self.log.incidents.values()) if i.detector == "non_finite"), None)
        if incident is not None:
            count = incident.evidence.get("gate_skipped", 0) + 1
            incident.evidence["gate_skipped"] = count
            if _is_power_of_two(count):
                self.write("incident_evidence", incident=incident.id, evidence={"gate_skipped": count})
        else:
            self.notice("critical", f"the gradient norm was {grad_norm}; the update was left out")

    def failure(self, what: str, error: BaseException) -> None:
        """Something of the guard's own, or a plug-in, raised: an incident of its own; training goes on."""
        where = traceback.extract_tb(error.__traceback__)[-1:] if error.__traceback__ else []
        at = f" ({where[0].name}, line {where[0].lineno})" if where else ""
        message = f"{what} failed: {type(error).__name__}: {str(error)[:500]}{at}; it is switched off, training goes on"
        self.trouble("plugin_failure", message, what)

    def trouble(self, detector: str, message: str, what: str, severity: Severity = "warning") -> None:
        """An incident about which no policy can do anything; told, and over at once.

        Args:
            detector: the kind of trouble, e.g. ``checkpoint_failed``.
            what: failed.
        """
        detection = Detection(detector, what, math.nan, math.nan, math.nan, self._moment()[0], message)
        incident = self._open_own("f", "guard", severity, detection)
        self.write("incident_closed", incident=incident, status="ended", count=1, outcome={})

    def stopped_by(self, author: str) -> None:
        """A person stopped the run."""
        message = f"{author} asked for it"
        detection = Detection("request", "request", math.nan, math.nan, math.nan, self._moment()[0], message)
        incident = self._open_own("p", "person", "info", detection)
        self.write("incident_closed", durable=True, incident=incident, status="stopped", count=1, outcome={})

    def _open_own(self, letter: str, policy: str, severity: Severity, detection: Detection) -> str:
        """An incident that is no policy's; returns its id."""
        self._failures += 1
        incident = f"{letter}{self._failures:04d}"
        self.write(
            "incident_opened",
            incident=incident,
            policy=policy,
            detector=detection.detector,
            severity=severity,
            detection=_detection(detection),
            observed=False,
            attached_to=None,
            signals=[],
        )
        return incident

    def notice(self, severity: str, message: str) -> None:
        """Something said once that is no incident."""
        self.write("notice", severity=severity, message=message)

    def request(self, request: control.Request, accepted: bool, message: str) -> None:
        """The receipt of a person's request."""
        self.write("request", request=asdict(request), author=request.author, accepted=accepted, message=message)

    def memory(self, engine_state: Mapping[str, Any], standing: Mapping[str, Any]) -> None:
        """What must outlive the process, as of now: budgets, ladders, and what is in force."""
        self.write("memory", engine=engine_state, standing=standing)

    def refused(self, refused: Sequence[tuple[str, str]], instead: str) -> None:
        """Checkpoints that could not be used when the run was resumed."""
        names = "; ".join(f"{name}: {why}" for name, why in refused[:5])
        self.trouble("checkpoint_damaged", f"{names}; the run went on from {instead}", "disk")

    def started(self, *, run: str, mode: str, policy: str, policy_text: str, going_on: Container[str] = ()) -> None:
        """The run begins: who, where, under which policy. Incidents of an earlier process end, but for those that are
        `going_on`.
        """
        import hashlib

        import torch

        digest = hashlib.sha256(policy_text.encode()).hexdigest()[:16]
        facts: dict[str, Any] = {
            "run": run,
            "run_dir": str(self.files.path),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "rank": 0,
            "segment": self.files.segment,
            "script": Path(sys.argv[0] or "python").name,
            "mode": mode,
            "policy": policy,
            "policy_digest": digest,
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
        }
        self.files.write_text("policy.yaml", policy_text)
        for incident in [i for i in self.log.incidents.values() if not i.ended and i.id not in going_on]:
            self.write("incident_closed", incident=incident.id, status="ended", count=incident.count, outcome={})
        entry = self.write("run_started", **facts)
        import json

        self.files.write_text("run.json", json.dumps(entry, indent=1, default=str) + "\n")

    def finished(self, status: str, summary: dict[str, Any], error: BaseException | None = None) -> None:
        """The run is over.

        Args:
            error: the exception that ended it.
        """
        why = {} if error is None else {"error": f"{type(error).__name__}: {error}"[:_ERROR]}
        self.write("run_finished", durable=True, status=status, summary=summary, **why)

    def training_stopped(self) -> TrainingStopped:
        """The exception that tells the loop about the incident that stopped it."""
        incidents = list(self.log.incidents.values())
        return TrainingStopped(next((i for i in reversed(incidents) if i.status == "stopped"), incidents[-1]))


def _detection(d: Detection) -> dict[str, Any]:
    return {
        "signal": d.signal,
        "value": d.value,
        "threshold": d.threshold,
        "baseline": d.baseline,
        "since": d.since,
        "message": d.message,
    }


def _typical(rows: Iterable[SignalRow]) -> float:
    losses = [r[2] for r in rows if math.isfinite(r[2])][-_AROUND:]
    return statistics.median(losses) if losses else math.nan


def _is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0
