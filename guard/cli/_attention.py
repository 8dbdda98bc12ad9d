"""What people have said about a run's messages, and what nobody could be told."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from guard.cli import _runs
from guard.cli._runs import RunStory
from guard.types import Incident

if TYPE_CHECKING:
    from guard.notify import Pending


def acknowledged_by(run: RunStory, incident: Incident) -> str | None:
    """Who has seen it, or None."""
    from guard.notify import story

    ack = story.ack(run.log, incident)
    return str(ack["author"]) if ack else None


def silenced_until(run: RunStory, incident: Incident) -> float | None:
    """Until when its messages are kept back [s since the epoch], or None."""
    entry = run.log.silence(incident.policy, _runs.CLOCK.time())
    return float(entry["until"]) if entry else None


def silenced(run: RunStory) -> list[str]:
    """The silences that hold now, a sentence each."""
    from guard.notify.words import clean, utc

    return [
        f"Silenced until {utc(e['until'])} by {clean(e['author'], 80)}: "
        f"{'policy ' + clean(e['policy'], 80) if e['policy'] else 'the whole run'}."
        for e in run.log.silences(_runs.CLOCK.time())
    ]


def cannot_be_told(pending: list[Pending] | str) -> list[str]:
    """Receivers that cannot be told, and why; what has only not been tried yet is left aside."""
    if isinstance(pending, str):
        return []
    from guard.notify.words import count

    failed = Counter((p.receiver, p.error) for p in pending if p.error)
    return [f"Not told to {receiver}: {count(n, 'message')} ({error})." for (receiver, error), n in failed.items()]


def untold_facts(pending: list[Pending] | str) -> Any:
    """What is not told, for a program; or why that is not known."""
    return pending if isinstance(pending, str) else [asdict(p) for p in pending]
