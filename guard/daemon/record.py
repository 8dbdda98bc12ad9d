"""What a supervisor adds to the journal: the fault that the guard inside could not write down any more. Only between
two lives of the run, because the journal belongs to the process inside while there is one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from guard.clock import Clock
from guard.daemon.verdict import Life, Verdict
from guard.daemon.watched import POLICY as WATCH
from guard.errors import RunDirError
from guard.incidents import IncidentLog, read_story
from guard.incidents.afterwards import Write, adding
from guard.incidents.journal import NAME
from guard.types import Entry, Incident

POLICY = "supervisor"
_LINES, _LINES_HUNG = 40, 200  # kept of each stream; of a hang the stacks of all threads may be among them
_ID = re.compile(r"d\d{4,}")
_EXCEPTION = re.compile(r"(?:\[rank\d+\]:\s*)?[A-Za-z_][\w.]*(?:Error|Exception): \S")


class Record:
    """Writes about one run.

    Args:
        run_dir: need not exist: a command that never attached a guard has none, and nothing is written.
        say: told when something cannot be written.
    """

    def __init__(self, run_dir: Path, clock: Clock, say: Callable[[str], None]) -> None:
        self._run_dir, self._clock, self._say = run_dir, clock, say

    def fault(self, life: Life, verdict: Verdict, restarter: str) -> None:
        """A crash or hang, with its evidence; but not what a daemon has told of while no supervisor lived.

        Args:
            restarter: who starts it again, in a clause.
        """

        def write_fault(log: IncidentLog, write: Write) -> None:
            incident, detection = _open(log, verdict.kind), _detection(life, verdict)
            if life.unseen and self._watched(verdict.kind, float(log.run["time"])):
                return
            if incident is None:
                name = f"d{len(log.incidents) + 1:04d}"
                write(
                    "incident_opened",
                    incident=name,
                    policy=POLICY,
                    detector=verdict.kind,
                    severity="critical",
                    detection=detection,
                    observed=False,
                    attached_to=None,
                    signals=[],
                )
            else:
                name = incident.id
                write("incident_fired", incident=name, count=incident.count + 1, detection=detection)
            write("incident_evidence", incident=name, evidence=_evidence(life, restarter), cause=_cause(life))

        self._add(write_fault, life)

    def restarted(self, kind: str, spent: int, restarts: int) -> None:
        """The command is about to be started again."""

        def write_attempt(log: IncidentLog, write: Write) -> None:
            if (incident := _open(log, kind)) is not None:
                count = f" ({spent} of {restarts} without a new step)" if restarts else ""
                summary = f"started the run again{count}"
                write(
                    "attempt",
                    incident=incident.id,
                    rung=0,
                    rungs=1,
                    repeat=incident.attempts[-1].repeats + 1 if incident.attempts else 0,
                    escalated=False,
                    would=False,
                    results=[{"type": "restart", "summary": summary, "changes": {}, "standing": False}],
                    unavailable=[],
                )

        self._add(write_attempt)

    def given_up(self, kind: str) -> None:
        """Nobody starts it again."""

        def write_end(log: IncidentLog, write: Write) -> None:
            if (incident := _open(log, kind)) is not None:
                write("incident_closed", incident=incident.id, status="exhausted", count=incident.count, outcome={})
            if log.finished is None:
                write("run_finished", status="crashed", summary={})

        self._add(write_end)

    def _watched(self, kind: str, since: float) -> bool:
        found = IncidentLog(read_story(self._run_dir)).incidents.values()
        return any(i.policy == WATCH and i.detector == kind and i.opened_at >= since for i in found)

    def _add(self, add: Callable[[IncidentLog, Write], None], life: Life | None = None) -> None:
        if not (self._run_dir / NAME).exists():
            return
        try:
            with adding(self._run_dir, self._clock, life.moment if life and life.ranks else None) as (log, write):
                if log.run:
                    add(log, write)
        except (RunDirError, OSError) as error:
            self._say(f"this could not be journaled: {error}")


def told(entries: Iterable[Entry]) -> bool:
    """A supervisor has written down among these how a life ended."""
    faults = (e for e in entries if e["kind"] in ("incident_opened", "incident_fired"))
    return any(_ID.fullmatch(str(e["incident"])) for e in faults)


def _open(log: IncidentLog, kind: str) -> Incident | None:
    """The supervisor's own that is not over: the run has not been heard of since it was started again."""
    mine = (i for i in log.incidents.values() if i.policy == POLICY and i.detector == kind and not i.ended)
    return next(mine, None)


def _detection(life: Life, verdict: Verdict) -> dict[str, Any]:
    hang = life.hang if verdict.kind == "hang" else None
    return {
        "signal": "seconds without progress" if hang else "exit code",
        "value": round(hang.seconds, 1) if hang else verdict.exit_code,
        "threshold": round(hang.limit, 1) if hang else math.nan,
        "baseline": math.nan,
        "since": life.moment[0],
        "message": verdict.message,
    }


def _evidence(life: Life, restarter: str) -> dict[str, Any]:
    evidence: dict[str, Any] = {"exit": life.code, "seconds": round(life.seconds, 1), "restarts": restarter}
    if life.hang is not None:
        evidence |= {"rank": life.hang.rank, "phase": life.hang.phase}
    lines = _LINES_HUNG if life.hang is not None else _LINES
    for name, found in (
        ("stderr", _foreign(life.err)[-lines:]),
        ("stdout", life.out[-lines:]),
        ("stacks", life.stacks),
    ):
        if found:
            evidence[name] = found
    return evidence


def _cause(life: Life) -> str:
    """The last exception that is told with a message, else what the process said last; of a hang that is nothing."""
    if life.memory or life.hang is not None:
        return life.memory
    said = _foreign(life.err)
    return next((line for line in reversed(said) if _EXCEPTION.match(line)), said[-1] if said else "")


def _foreign(lines: list[str]) -> list[str]:
    """Without what the guard inside said there."""
    return [line for line in lines if not line.startswith(("guard:", "guard \u2502"))]
