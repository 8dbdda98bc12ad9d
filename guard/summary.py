"""A run in a few numbers: `g.summary()`, and the last line of its journal."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guard.guard import Guard
    from guard.types import Incident

_NORMS = 10  # recent gradient norms that are shown
_REPAIRED = 20  # repairs that are told one by one, the latest


def summarise(guard: Guard) -> dict[str, Any]:
    """Steps, losses, incidents by cause, what was repaired, recent gradient norms."""
    rows, incidents, best = guard.history.rows, guard.incidents, guard.boundary.best
    losses = [row[2] for row in rows if math.isfinite(row[2])]
    lowest = min([guard.files.lowest_loss, *losses])
    resolved = [i for i in incidents if i.status == "resolved"]
    return {
        "steps": guard.step,
        "ticks": guard.tick,
        "last_loss": losses[-1] if losses else None,
        "best_loss": lowest if math.isfinite(lowest) else None,
        "best_val_loss": best if math.isfinite(best) else None,
        "incidents": len(incidents),
        "resolved": len(resolved),
        "causes": dict(Counter(map(_cause, incidents)).most_common()),
        "repaired": [_repair(i) for i in resolved if i.attempts][-_REPAIRED:],
        "grad_norms": [row[3] for row in list(rows)[-_NORMS:]],
    }


def _cause(incident: Incident) -> str:
    """What the diagnosis has found, else what was seen."""
    found = incident.evidence.get("diagnosis")
    return str(found["cause"]) if found else f"{incident.detector}, not examined"


def _repair(incident: Incident) -> str:
    done = "; ".join(r.summary for r in incident.attempts[-1].results)
    why = f" ({incident.cause})" if incident.cause else ""
    return f"step {incident.opened_step}: {incident.detector}{why}: {done}"
