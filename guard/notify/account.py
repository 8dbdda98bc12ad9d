"""One incident in sentences, as far as it alone says. Plain text."""

from __future__ import annotations

import math
from typing import Any

from guard.notify import why
from guard.notify.from_outside import HAPPENED
from guard.notify.words import as_float, clean, count, cut, fault, number, sentence, signal
from guard.types import Attempt, Incident


def outcome(incident: Incident) -> dict[str, Any]:
    found = incident.evidence.get("outcome")
    return found if isinstance(found, dict) else {}


def detection(incident: Incident) -> dict[str, Any]:
    found = incident.evidence.get("detection")
    return found if isinstance(found, dict) else {}


def lost_steps(incident: Incident) -> str:
    steps = as_float(outcome(incident).get("steps_lost"))
    return "no steps lost" if not steps > 0 else f"{count(int(steps), 'step')} lost"


def latest_deed(incident: Incident) -> str:
    return cut("; ".join(summaries(incident.attempts[-1])), 80) if incident.attempts else ""


def what_happened(incident: Incident) -> str:
    """The detection in words: value, limit, what is usual."""
    d = detection(incident)
    lines = [sentence(clean(d.get("message") or fault(incident.detector)))]
    if d.get("signal") and d.get("value") is not None:
        measured = f"{sentence(signal(d['signal']))[:-1]}: {number(d['value'])}"
        extras = [
            f"{label} {number(d[key])}"
            for key, label in (("threshold", "limit"), ("baseline", "usual"))
            if math.isfinite(as_float(d.get(key)))
        ]
        lines.append(" · ".join([measured, *extras]))
    if incident.count > 1:
        lines.append(f"Seen {number(incident.count)} times{'' if incident.ended else ' so far'}.")
    return "\n".join(lines)


def where_it_began(incident: Incident) -> str:
    since = detection(incident).get("since")
    lines = []
    if isinstance(since, int) and incident.detector not in HAPPENED:
        before = incident.opened_tick - since
        lines.append(
            f"At step {number(incident.opened_step)}, the same step in which it was seen."
            if before <= 0
            else sentence(f"{step_at(incident, since)}{count(before, 'step')} before it was seen")
        )
    if incident.cause and not why.told(incident):
        lines.append(f"Cause: {clean(incident.cause).rstrip('.')}.")
    return "\n".join(lines)


def escalated(incident: Incident, i: int) -> bool:
    """The attempt at index `i` was made because the one before it failed."""
    i %= len(incident.attempts)
    return i > 0 and incident.attempts[i].rung > incident.attempts[i - 1].rung and incident.status != "observed"


def step_at(incident: Incident, tick: int) -> str:
    rows = incident.evidence.get("signals")
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, list) and len(row) > 1 and row[0] == tick:
            return f"at step {number(row[1])}, "
    return ""


def what_was_done(incident: Incident) -> str:
    """The attempts, numbered; of a long list the first and the latest."""
    if not incident.attempts:
        return "" if incident.detector in HAPPENED else "Nothing so far."
    lines = [f"{i}. {attempt_line(incident, a)}" for i, a in enumerate(incident.attempts, 1)]
    if len(lines) > 8:
        lines = [*lines[:2], f"… {len(lines) - 7} more …", *lines[-5:]]
    pause = incident.evidence.get("pause")
    if isinstance(pause, dict):
        lines.append(f"The pause is over: {clean(pause.get('ended'), 160)}.")
    return "\n".join(lines)


def attempt_line(incident: Incident, attempt: Attempt) -> str:
    done = "; ".join(summaries(attempt))
    would = "would have " if incident.status == "observed" and done else ""
    line = f"Step {number(attempt.step)}: {would}{done or 'nothing could be done'}."
    if attempt.repeats:
        line += f" Repeated {count(attempt.repeats, 'time')}."
    for action, reason in attempt.unavailable[:4]:
        line += f" Not possible: {clean(action, 40)} ({clean(reason, 160).rstrip('.')})."
    return line


def summaries(attempt: Attempt) -> list[str]:
    return [clean(r.summary or r.type, 200).rstrip(".") for r in attempt.results]


def losses_said(incident: Incident) -> str:
    """`` Loss before 2.31, after 2.29, expected 2.3.``, or "" if none is known."""
    labels = (("loss_before", "before"), ("loss_after", "after"), ("loss_expected", "expected"))
    known = {label: value for key, label in labels if (value := outcome(incident).get(key)) is not None}
    return f" Loss {', '.join(f'{label} {number(value)}' for label, value in known.items())}." if known else ""


def paused(incident: Incident) -> bool:
    """Its latest attempt has paused the run, and that has not ended as far as is known."""
    last = incident.attempts[-1].results if incident.attempts and not incident.ended else []
    return "pause" not in incident.evidence and any(r.type == "pause" and "paused_for" in r.changes for r in last)


def standing(incident: Incident) -> list[str]:
    """Changes that are still in force and can be undone."""
    if incident.status == "observed":
        return []
    return [clean(r.summary or r.type, 200).rstrip(".") for a in incident.attempts for r in a.results if r.standing]
