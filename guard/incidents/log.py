"""Incidents, folded from journal lines. The live guard and every reader use the same fold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from guard.types import Attempt, Entry, Incident, Mode, Result


class IncidentLog:
    """What a run's journal says, after any number of its lines.

    Attributes:
        incidents: by id, oldest first.
        run: the `run_started` entry, or {}.
        finished: the `run_finished` entry, or None while the run goes on. A run that may go on although it was stopped
            has the `reopened` entry there, with that word as its status.
        mode: enforce or observe, as last set for the whole run.
        notices: `notice` entries.
        asked_mode: what a person last asked of the whole run, or None.
        memory: the last `memory` entry: budgets, ladders and what was in force; or None.
        segments: how often the run was started.
        lifecycle: its `run_started` and `run_finished` entries.
        acks: by incident, the first `ack` entry: a person has seen it.
        applied: lines taken so far.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.incidents: dict[str, Incident] = {}
        self.run: Entry = {}
        self.finished: Entry | None = None
        self.mode: Mode = "enforce"
        self.notices: list[Entry] = []
        self.asked_mode: Mode | None = None
        self.memory: Entry | None = None
        self.segments = 0
        self.lifecycle: list[Entry] = []
        self.applied = 0
        self.acks: dict[str, Entry] = {}
        self._silences: dict[str | None, Entry] = {}
        for entry in entries:
            self.apply(entry)

    def apply(self, entry: Entry) -> Incident | None:
        """Takes one line; returns the incident it concerns. Kinds it does not know are left alone."""
        self.applied += 1
        match entry["kind"]:
            case "run_started":
                self.run, self.finished, self.mode = entry, None, entry["mode"]
                self.segments += 1
                self.lifecycle.append(entry)
            case "run_finished":
                self.finished = entry
                self.lifecycle.append(entry)
            case "reopened":
                self.finished = {**entry, "status": "reopened"}
            case "mode" if entry["policy"] is None:
                self.mode = self.asked_mode = entry["mode"]
            case "memory":
                self.memory = entry
            case "notice":
                self.notices.append(entry)
            case "ack":
                self.acks.setdefault(entry["incident"], entry)
            case "silence":
                self._silences[entry["policy"]] = entry
            case "incident_opened":
                return self._open(entry)
        incident = self.incidents.get(entry.get("incident", ""))
        if incident is not None:
            self._change(incident, entry)
        return incident

    def silence(self, policy: str, now: float) -> Entry | None:
        """The `silence` entry that mutes a policy's messages now, or None. Of the whole run's and the policy's own, the
        one that lasts longer."""
        found = [e for key in (None, policy) if (e := self._silences.get(key)) is not None and e["until"] > now]
        return max(found, key=lambda e: float(e["until"]), default=None)

    def silences(self, now: float) -> list[Entry]:
        """The `silence` entries that hold now: of the whole run first, then of policies."""
        return sorted((e for e in self._silences.values() if e["until"] > now), key=lambda e: e["policy"] or "")

    def silence_ended(self, policy: str, now: float) -> float:
        """When the latest silence of a policy's messages, or of the whole run's, came to its end; 0 if there was
        none."""
        found = [e for key in (None, policy) if (e := self._silences.get(key)) is not None and e["until"] <= now]
        return max((float(e["until"] or e["time"]) for e in found), default=0.0)

    def _open(self, e: Entry) -> Incident:
        evidence: dict[str, Any] = {"detection": e["detection"], "signals": e.get("signals", [])}
        if e.get("attached_to"):
            evidence["attached_to"] = e["attached_to"]
        incident = Incident(
            e["incident"],
            e["policy"],
            e["detector"],
            e["severity"],
            "observed" if e.get("observed") else "firing",
            e["tick"],
            e["step"],
            e["time"],
            evidence=evidence,
        )
        self.incidents[incident.id] = incident
        return incident

    @staticmethod
    def _change(incident: Incident, e: Entry) -> None:
        match e["kind"]:
            case "incident_fired":
                incident.count = e["count"]
            case "attempt" if e["repeat"] and incident.attempts and incident.attempts[-1].rung == e["rung"]:
                incident.attempts[-1].repeats = e["repeat"]
            case "attempt":
                incident.attempts.append(
                    Attempt(
                        e["rung"],
                        e["tick"],
                        e["step"],
                        [Result(**r) for r in e["results"]],
                        [(a, why) for a, why in e["unavailable"]],
                        e["repeat"],
                    )
                )
                if not e["would"]:
                    incident.status = "verifying"
            case "incident_evidence":
                incident.evidence.update(e["evidence"])
                incident.cause = e.get("cause") or incident.cause
            case "undone":
                for attempt in incident.attempts:
                    for result in attempt.results:
                        result.standing = False
            case "incident_closed":
                incident.status, incident.count = e["status"], e["count"]
                incident.closed_tick, incident.closed_at = e["tick"], e["time"]
                incident.evidence["outcome"] = e["outcome"]
