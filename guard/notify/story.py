"""An incident in sentences, for somebody who was asleep a minute ago. Plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

from guard.incidents import IncidentLog
from guard.notify import account, from_outside
from guard.notify.from_outside import HAPPENED
from guard.notify.words import as_float, clean, count, fault, sentence
from guard.types import SEVERITIES, Entry, Incident, Severity

Stage = Literal["firing", "verifying", "resolved", "exhausted", "stopped", "crashed", "over", "observed"]
NEEDS_YOU: frozenset[Stage] = frozenset({"exhausted", "stopped", "crashed"})
WATCH = "watch"  # policy of what a daemon sees that only watches
SETTLED: frozenset[Stage] = NEEDS_YOU | {"resolved", "over"}
AGAIN = 1800.0  # [s] after its end within which the same fault counts as the same story


def stage(log: IncidentLog, incident: Incident) -> Stage:
    """Its status, and what the end of the run makes of it."""
    outside = incident.detector in HAPPENED
    match incident.status:
        case "resolved" | "exhausted" | "stopped" | "observed":
            return incident.status
        case "firing" | "verifying" if outside and incident.policy == WATCH:
            return "over" if restarted(log, incident) else "exhausted"
        case "firing" | "verifying" if outside or (log.finished is None and not gone(log)):
            return incident.status  # of a restart `guard run` itself says when it gives up
    crashed = (log.finished or {}).get("status") == "crashed"
    # Of a death that is an incident itself, that one tells.
    return "crashed" if crashed and not outside and not gone(log) else "over"


def gone(log: IncidentLog) -> bool:
    """The process has died, and there is an incident that says so."""
    found = lost(log)
    return found is not None and found.detector == "crash"


def lost(log: IncidentLog) -> Incident | None:
    """The crash or hang because of which nobody inside answers now."""
    return _known(log).lost


def restarted(log: IncidentLog, incident: Incident) -> bool:
    """The run was started anew since the incident ended, or since it was seen if it has no end."""
    return float(log.run.get("time", 0.0)) > (incident.closed_at or incident.opened_at)


def needs_person(log: IncidentLog, incident: Incident) -> bool:
    """Somebody must get up: the run is lost, or goes on unrepaired."""
    if stage(log, incident) not in NEEDS_YOU or incident.policy == "person":  # who asked for it knows
        return False
    return not _taken_care_of(log, incident)


def _taken_care_of(log: IncidentLog, incident: Incident) -> bool:
    """Somebody has started the run again since. That repairs a run that had ended, and no other."""
    return restarted(log, incident) and (incident.status != "exhausted" or incident.detector in HAPPENED)


# ---- what is told together


@dataclass(frozen=True, slots=True)
class Together:
    """All that one message tells.

    Args:
        again: the incident whose message it is, and then the same fault whenever it came back.
        attached: incidents that were repaired along with one of these.
    """

    again: list[Incident]
    attached: list[Incident]

    @property
    def latest(self) -> Incident:
        """The one that the message is about now."""
        return self.again[-1]


@dataclass(frozen=True, slots=True)
class _Known:
    """Found once for each state of the log.

    Args:
        applied: lines of the log then.
        owners: owner's id by incident.
    """

    applied: int
    owners: dict[str, str]
    groups: dict[str, Together]
    lost: Incident | None


_KNOWN: WeakKeyDictionary[IncidentLog, _Known] = WeakKeyDictionary()


def owners(log: IncidentLog) -> Mapping[str, str]:
    """By incident, the id of the one in whose message it is told."""
    return _known(log).owners


def owner(log: IncidentLog, incident: Incident) -> Incident:
    """The incident in whose message this one is told: itself, unless it rode along with another, or is the same fault
    once more."""
    return log.incidents[owners(log).get(incident.id, incident.id)]


def groups(log: IncidentLog) -> dict[str, Together]:
    """What is told together, by the owner's id, oldest first."""
    return _known(log).groups


def carrier(log: IncidentLog, incident: Incident) -> Incident:
    """The incident that this one rides along with: itself, unless attached and without a story of its own."""
    seen = {incident.id}
    while (other := log.incidents.get(incident.evidence.get("attached_to", ""))) and other.id not in seen:
        if incident.attempts or incident.status in ("exhausted", "stopped"):
            break
        seen.add(other.id)
        incident = other
    return incident


def latest(log: IncidentLog, incident: Incident) -> Incident:
    """Of the incidents told in this one's message, the one it is about now."""
    found = groups(log).get(incident.id)
    return found.latest if found else incident


def attached(log: IncidentLog, incident: Incident) -> list[Incident]:
    """Those that rode along with it."""
    found = groups(log).get(owner(log, incident).id)
    return [i for i in found.attached if carrier(log, i).id == incident.id] if found else []


def _known(log: IncidentLog) -> _Known:
    known = _KNOWN.get(log)
    if known is None or known.applied != log.applied:
        firsts, owners, found = _firsts(log), dict[str, str](), dict[str, Together]()
        for incident in log.incidents.values():
            carried_by = carrier(log, incident)
            key = owners[incident.id] = firsts.get(carried_by.id, carried_by.id)
            together = found.setdefault(key, Together([], []))
            (together.again if carried_by.id == incident.id else together.attached).append(incident)
        lost = next((i for i in log.incidents.values() if _stands(log, i)), None)
        known = _KNOWN[log] = _Known(log.applied, owners, found, lost)
    return known


def _stands(log: IncidentLog, incident: Incident) -> bool:
    """A crash or hang that nobody has seen to; `guard run` keeps one incident for several in a row."""
    if incident.detector not in HAPPENED or incident.status not in ("firing", "verifying", "exhausted"):
        return False
    return not restarted(log, incident) or (incident.status != "exhausted" and log.finished is not None)


def _firsts(log: IncidentLog) -> dict[str, str]:
    """Of incidents that are the same fault once more: the first of their row. Only what was known when they were opened
    counts, so that a message once begun never turns out to be part of another."""
    firsts: dict[str, str] = {}
    before: dict[tuple[str, str, str], Incident] = {}
    for incident in log.incidents.values():
        if incident.evidence.get("attached_to") or incident.policy == "person":
            continue
        fault_of = (incident.policy, incident.detector, str(account.detection(incident).get("signal")))
        past = before.get(fault_of)
        if past and incident.opened_at - (past.closed_at or incident.opened_at) <= AGAIN:
            firsts[incident.id] = firsts.get(past.id, past.id)
        before[fault_of] = incident
    return firsts


def ack(log: IncidentLog, incident: Incident) -> Entry | None:
    """The `ack` entry that answers for an incident: its own, or the first that somebody gave since it began to anything
    told in the same message."""
    if own := log.acks.get(incident.id):
        return own
    together = groups(log)[owner(log, incident).id]
    given = (log.acks.get(i.id) for i in (*together.again, *together.attached))
    return min(
        (e for e in given if e and e["time"] >= incident.opened_at), key=lambda e: float(e["time"]), default=None
    )


def severity(log: IncidentLog, together: Sequence[Incident]) -> Severity:
    """How bad it is by now: the worst of what is told together; what needs a person is critical."""
    if any(stage(log, i) in NEEDS_YOU for i in together if carrier(log, i).id == i.id):
        return "critical"
    return max((i.severity for i in together), key=rank)


def rank(severity: Severity) -> int:
    """0 for info; one that this version does not know is told to everybody."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def first_line(log: IncidentLog, incident: Incident) -> str:
    """What the person woken needs to know."""
    line = _of_outside(log, incident) if incident.detector in HAPPENED else _of_inside(log, incident)
    return " ".join(line.split())


def _of_outside(log: IncidentLog, incident: Incident) -> str:
    happened = HAPPENED[incident.detector]
    what = from_outside.what(incident, still=incident.policy == WATCH)
    who = from_outside.who_restarts(incident)
    match stage(log, incident):
        case "resolved":
            return "No action needed: the run hung and went on by itself"
        case "exhausted" if needs_person(log, incident):
            return f"Needs you: {what}" + (f"; {who}" if who else "")
        case "exhausted":
            return f"No action needed: the run {happened} and was started again since"
        case "firing":
            return f"Working on it: {what}; {who or 'it is started again'}"
        case "verifying":
            return f"Working on it: {account.latest_deed(incident)}, now checking that it helps"
        case _ if incident.attempts or restarted(log, incident):
            return f"No action needed: the run {happened} and was started again"
    return f"Over: the run {happened}, and has ended since"


def _of_inside(log: IncidentLog, incident: Incident) -> str:
    what = fault(incident.detector)
    match stage(log, incident):
        case "resolved":
            return (
                f"No action needed: repaired, {account.lost_steps(incident)}"
                if incident.attempts
                else f"No action needed: {what} passed by itself"
            )
        case "stopped" if incident.policy == "person":
            return f"No action needed: stopped, {clean(account.detection(incident).get('message'))}"
        case "stopped" if _taken_care_of(log, incident):
            return "No action needed: the run stopped and was started again since"
        case "stopped":
            return "Needs you: " + ("out of remedies, " if len(incident.attempts) > 1 else "") + "run stopped"
        case "exhausted":
            stopped = (log.finished or {}).get("status") == "stopped"
            over = log.finished or gone(log)
            ending = "run stopped" if stopped else "run over" if over else "the run goes on unrepaired"
            return f"Needs you: out of remedies, {ending}"
        case "crashed":
            return "Needs you: the run crashed before this was repaired"
        case "over" if incident.detector == "plugin_failure":
            return "No action needed: a part of the guard failed and is switched off, training goes on"
        case "over":
            return f"Run over before a verdict: {what}"
        case "observed":
            would = account.latest_deed(incident)
            return f"Watching only: {f'would have {would}' if would else what + ', nothing was done'}"
        case "verifying":
            return f"Working on it: {account.latest_deed(incident) or 'attempt made'}, now checking that it helps"
    return f"Seen: {what}, nothing done yet"


def did_it_help(log: IncidentLog, incident: Incident) -> str:
    now, losses = stage(log, incident), account.losses_said(incident)
    match now:
        case "resolved" if incident.detector in HAPPENED:
            return "The run goes on."
        case "resolved":
            if not incident.attempts:
                return f"It passed without a remedy.{losses}"
            after, expected = (as_float(account.outcome(incident).get(key)) for key in ("loss_after", "loss_expected"))
            if after > expected + 0.5 * abs(expected):
                steps = sentence(account.lost_steps(incident))
                return f"The fault is gone, the loss is not yet where it was. {steps}{losses}"
            return f"Yes, {account.lost_steps(incident)}.{losses}"
        case "exhausted" | "stopped" if incident.attempts:
            tried = sum(1 + a.repeats for a in incident.attempts if not all(r.type == "stop" for r in a.results))
            failed = f"No: {count(tried, 'attempt')} failed." if tried else "No repair was tried."
            return failed + losses
        case "verifying":
            return "Not known yet; this message changes when it is."
        case "over" if incident.detector in HAPPENED:
            return "The run was started again." if incident.attempts or restarted(log, incident) else ""
        case "over" | "crashed":
            return f"Not known: the run {'crashed' if now == 'crashed' else 'ended'} first.{losses}"
    return ""
