"""What a run of the demo left behind, and whether the three together show what they should."""

from __future__ import annotations

import math
from dataclasses import dataclass

from guard.types import Attempt, Incident, Result

_CLOSE, _RUINED = 1.05, 1.3  # of the healthy run's final validation loss


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run.

    Args:
        rows: (step, loss) of every tick, in order; the step goes back where the guard rolled back.
        validation: final loss on held-out text [nats per character].
        incidents: of the guarded run.
    """

    rows: list[tuple[int, float]]
    validation: float
    incidents: list[Incident]


def shortfall(healthy: Outcome, unguarded: Outcome, guarded: Outcome) -> str | None:
    """Why the demo did not show what it should, or None."""
    best = healthy.validation
    if not math.isfinite(best):
        return "the healthy run did not end with a finite loss"
    if not guarded.validation <= _CLOSE * best:
        return (
            f"the guarded run ended at {guarded.validation:.3f}, more than {_CLOSE - 1:.0%} above the healthy "
            f"run's {best:.3f}"
        )
    if math.isfinite(unguarded.validation) and unguarded.validation < _RUINED * best:
        return (
            f"the faults did too little harm: without the guard the run ended at {unguarded.validation:.3f}, "
            f"the healthy one at {best:.3f}"
        )
    return None


def told(incident: Incident) -> bool:
    """It has a story of its own; one seen at the same time is told with the incident that was acted on."""
    return bool(incident.attempts) or "attached_to" not in incident.evidence


def remedy(attempt: Attempt) -> str:
    """What was done, in a few words; the messages say it in full."""
    return ", ".join(_short(result) for result in attempt.results)


def _short(result: Result) -> str:
    if result.type == "rollback":
        return f"rolled back to step {result.changes['to_step']}"
    words = {"skip_step": "left the step out", "clip": "clipped the gradient", "scale_lr": "lowered the learning rate"}
    return words.get(result.type, result.summary)
