"""Whom an incident still concerns: reminders, silences, and what follows when nobody answers.

Pure functions of what the journal says and the time. Everything here that happens by itself also says when it will, so
that a courier need not look before.
"""

from __future__ import annotations

import math
import shlex

from guard.incidents import IncidentLog
from guard.notify import story
from guard.notify.message import Reply
from guard.notify.render import run_dir
from guard.notify.words import one_line, sentence, span
from guard.types import Incident

REMINDERS = 6  # at 1, 2, 4 … times a receiver's `remind_every`; who has not answered then will not
NEVER = math.inf


def unresolved(log: IncidentLog, incident: Incident) -> bool:
    """What its message is about now is not over: under way, or somebody must get up."""
    now = story.latest(log, incident)
    return story.stage(log, now) in ("firing", "verifying") or story.needs_person(log, now)


def waits(log: IncidentLog, incident: Incident) -> bool:
    """It is unresolved, and nobody has acknowledged it. A run that has finished as planned waits for nobody."""
    now = story.latest(log, incident)
    finished = (log.finished or {}).get("status") == "finished"
    return unresolved(log, incident) and not story.ack(log, now) and not finished and now.severity != "info"


def muted_until(log: IncidentLog, incident: Incident, now: float) -> float:
    """Until when a silence keeps its messages back; 0 if none does."""
    entry = log.silence(story.latest(log, incident).policy, now)
    return float(entry["until"]) if entry else 0.0


def since(log: IncidentLog, incident: Incident) -> float:
    """When it became what it is now: needs a person, or is under way."""
    now = story.latest(log, incident)
    match story.stage(log, now):
        case "crashed" if log.finished is not None:
            return float(log.finished["time"])
        case "exhausted" | "stopped":
            return now.closed_at or now.opened_at
    return now.opened_at


def nudges(
    log: IncidentLog, incident: Incident, every: float | None, told_at: float, now: float
) -> tuple[list[Reply], float]:
    """What is to be said although nothing has happened, and when there may be more of it.

    That is a reminder, and after a silence one word that it still stands. Of several reminders that are due only the
    latest is said.

    Args:
        every: the receiver's `remind_every`.
        told_at: when its message was first told [s since the epoch].
    """
    if (until := muted_until(log, incident, now)) > 0:
        return [], until
    if not waits(log, incident):
        return [], NEVER
    latest, found = story.latest(log, incident), []
    started = max(since(log, incident), told_at)
    ended = log.silence_ended(latest.policy, now)
    if told_at < ended and latest.opened_at < ended:
        text = f"The silence is over, and this still stands. {sentence(story.first_line(log, latest))}"
        found.append(_nudge(log, latest, f"after-silence:{ended:.0f}", text))
        started = max(started, ended)
    if every is None:
        return found, NEVER
    times = [started + every * 2.0**n for n in range(REMINDERS)]
    due = sum(now >= t for t in times)
    if due:
        state = "open" if story.stage(log, latest) in ("firing", "verifying") else story.stage(log, latest)
        unanswered = f"Unresolved for {span(now - since(log, incident))}, and nobody has acknowledged it."
        text = f"{unanswered} {sentence(story.first_line(log, latest))}"
        found.append(_nudge(log, latest, f"reminder:{latest.id}:{state}:{due}", text))
    return found, times[due] if due < REMINDERS else NEVER


def escalates_at(log: IncidentLog, incident: Incident, after: float, now: float) -> float:
    """When another receiver is to be told because nobody has answered here; `NEVER` if that is not needed."""
    latest = story.latest(log, incident)
    if not (waits(log, incident) and story.needs_person(log, latest)):
        return NEVER
    return max(since(log, incident) + after, muted_until(log, incident, now))


def _nudge(log: IncidentLog, incident: Incident, key: str, text: str) -> Reply:
    command = f"guard ack {run_dir(log)} {shlex.quote(one_line(incident.id, 80))}"
    return Reply(key, f"{text} To acknowledge it, type:", broadcast=True, command=command)
