"""Folding journal lines into incidents: the live guard and every reader must come to the same picture."""

from __future__ import annotations

from typing import Any

from guard.incidents import IncidentLog


class Lines:
    """Journal entries with running numbers."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def add(self, kind: str, **keys: Any) -> Lines:
        n = len(self.all)
        self.all.append({"v": 1, "seq": n, "time": 100.0 + n, "kind": kind, "tick": n, "step": n, **keys})
        return self

    def opened(self, incident: str = "i0001", **keys: Any) -> Lines:
        return self.add(
            "incident_opened",
            **{
                "incident": incident,
                "policy": "p",
                "detector": "non_finite",
                "severity": "critical",
                "detection": {"message": "NaN"},
                "observed": False,
                "attached_to": None,
                "signals": [[1, 1, 2.0]],
                **keys,
            },
        )

    def attempt(self, rung: int = 0, repeat: int = 0, **keys: Any) -> Lines:
        result = {"type": "scale_lr", "summary": "halved it", "changes": {"lr_multiplier": [1, 0.5]}, "standing": True}
        return self.add(
            "attempt",
            **{
                "incident": "i0001",
                "rung": rung,
                "rungs": 3,
                "repeat": repeat,
                "escalated": False,
                "would": False,
                "results": [result],
                "unavailable": [["clip", "no norm"]],
                **keys,
            },
        )

    def closed(self, status: str = "resolved", count: int = 1) -> Lines:
        return self.add("incident_closed", incident="i0001", status=status, count=count, outcome={"steps_lost": 3})

    def fold(self) -> IncidentLog:
        return IncidentLog(self.all)


def test_the_life_of_an_incident() -> None:
    lines, seen = Lines(), []
    for step in (lines.opened, lines.attempt, lines.closed):
        step()
        seen.append(lines.fold().incidents["i0001"].status)
    assert seen == ["firing", "verifying", "resolved"]
    incident = lines.fold().incidents["i0001"]
    assert (incident.opened_tick, incident.opened_at, incident.closed_tick, incident.closed_at) == (0, 100.0, 2, 102.0)
    assert incident.evidence["outcome"] == {"steps_lost": 3}
    assert incident.ended


def test_entries_one_by_one_or_all_at_once_give_the_same() -> None:
    lines = Lines().opened().add("incident_fired", incident="i0001", count=2, detection={})
    lines.attempt().attempt(1).closed(count=5)
    live = IncidentLog()
    for entry in lines.all:
        live.apply(entry)
    assert live.incidents == lines.fold().incidents


def test_counts_are_those_of_the_last_line() -> None:
    lines = Lines().opened().add("incident_fired", incident="i0001", count=4, detection={})
    assert lines.fold().incidents["i0001"].count == 4
    assert lines.closed(count=7).fold().incidents["i0001"].count == 7


def test_repeats_of_an_attempt_are_counted_not_listed() -> None:
    lines = Lines().opened().attempt(0).attempt(0, repeat=1).attempt(0, repeat=2).attempt(1)
    attempts = lines.fold().incidents["i0001"].attempts
    assert [(a.rung, a.repeats) for a in attempts] == [(0, 2), (1, 0)]
    assert attempts[0].unavailable == [("clip", "no norm")]


def test_observed_stays_observed_whatever_would_have_been_done() -> None:
    incident = Lines().opened(observed=True).attempt(would=True).fold().incidents["i0001"]
    assert incident.status == "observed"


def test_evidence_is_merged_and_a_known_cause_is_kept() -> None:
    lines = Lines().opened()
    lines.add("incident_evidence", incident="i0001", evidence={"layer": 7}, cause="attention overflowed")
    lines.add("incident_evidence", incident="i0001", evidence={"gate_skipped": 2})
    incident = lines.fold().incidents["i0001"]
    assert (incident.evidence["layer"], incident.evidence["gate_skipped"]) == (7, 2)
    assert incident.cause == "attention overflowed"


def test_undone_changes_stand_no_more() -> None:
    lines = Lines().opened().attempt().add("undone", incident="i0001", author="ada", changes={"lr_multiplier": 1.0})
    assert not any(r.standing for a in lines.fold().incidents["i0001"].attempts for r in a.results)


def test_attached_incidents_name_their_owner() -> None:
    log = Lines().opened().opened("i0002", attached_to="i0001").fold()
    assert log.incidents["i0002"].evidence["attached_to"] == "i0001"
    assert list(log.incidents) == ["i0001", "i0002"]


def test_run_mode_and_end() -> None:
    lines = Lines().add("run_started", run="exp1", mode="observe")
    assert lines.fold().mode == "observe"
    lines.add("mode", mode="enforce", author="ada", policy=None).add("mode", mode="observe", author="ada", policy="p")
    log = lines.add("run_finished", status="finished", summary={}).fold()
    assert (log.mode, log.run["run"], log.finished and log.finished["status"]) == ("enforce", "exp1", "finished")
    assert lines.add("run_started", run="exp1", mode="enforce").fold().finished is None


def test_unknown_kinds_and_incidents_are_left_alone() -> None:
    lines = Lines().add("from_the_future", incident="i9")
    lines.add("incident_closed", incident="i9", status="resolved", count=1, outcome={})
    assert lines.fold().incidents == {}
