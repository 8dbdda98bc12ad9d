"""The diagnosis of an incident, as people read it."""

from __future__ import annotations

from guard.incidents import advice
from guard.incidents.diagnose import Diagnosis, from_plain
from guard.notify.words import clean
from guard.types import Incident


def diagnosis(incident: Incident) -> Diagnosis | None:
    """What the journal says of it, or None."""
    plain = incident.evidence.get("diagnosis")
    return from_plain(plain) if isinstance(plain, dict) else None


def told(incident: Incident) -> str:
    """Two sentences, and what to change in the code; empty: there is no diagnosis."""
    d = diagnosis(incident)
    if d is None:
        return ""
    lines = [advice.sentences(d), advice.advice(d), *(f"Not looked at: {note}." for note in d.evidence.notes)]
    return "\n".join(clean(line, 900) for line in lines if line)


def experiments(incident: Incident) -> list[tuple[str, str, str]]:
    """(experiment, outcome, numbers), in order."""
    d = diagnosis(incident)
    return [] if d is None else [(clean(a, 80), clean(b, 160), clean(c, 80)) for a, b, c in advice.table(d)]


def listed(incident: Incident) -> str:
    """The same, a line each."""
    return "\n".join(f"• {what}: {came}" + (f" ({said})" if said else "") for what, came, said in experiments(incident))


def before(incident: Incident) -> list[str]:
    """The tensors that were looked at before the first bad one, all in order."""
    d = diagnosis(incident)
    if d is None or d.evidence.origin is None:
        return []
    return [clean(advice.look_line(look), 200) for look in d.evidence.origin.before]
