"""The shape a journal line must have for everything that is told from it; one that has another counts as damaged."""

from __future__ import annotations

import math
from typing import get_args

from guard.types import Entry, Mode, Status

_KINDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "run_started": {"mode": str},
    "incident_opened": {"incident": str, "policy": str, "detector": str, "severity": str, "detection": dict},
    "incident_fired": {"incident": str, "count": int},
    "attempt": {"incident": str, "rung": int, "repeat": int, "would": bool, "results": list, "unavailable": list},
    "incident_evidence": {"incident": str, "evidence": dict},
    "incident_closed": {"incident": str, "status": str, "count": int, "outcome": dict},
    "undone": {"incident": str, "changes": dict},
    "mode": {"mode": str, "policy": (str, type(None))},
    "notice": {"message": str},
    "memory": {"engine": dict, "standing": dict},
    "resumed": {"checkpoint": str},
    "preempted": {"checkpoint": (str, type(None))},
    "reopened": {"author": str},
    "ack": {"incident": str, "author": str},
    "silence": {"until": (int, float), "author": str, "policy": (str, type(None))},
}
_RESULT: dict[str, type | tuple[type, ...]] = {"type": str, "summary": str, "changes": dict, "standing": bool}
_ALLOWED = {"mode": get_args(Mode), "status": get_args(Status)}


def check_shape(entry: Entry) -> None:
    """Raises ValueError, KeyError or TypeError if the line is not as docs/design/journal.md says."""
    _typed(entry, {"kind": str, "tick": int, "step": int, "time": (int, float)})
    if not math.isfinite(entry["time"]):
        raise ValueError("time")
    kind = entry["kind"]
    _typed(entry, _KINDS.get(kind, {}))
    if kind in ("run_started", "mode", "incident_closed"):
        key = "status" if kind == "incident_closed" else "mode"
        if entry[key] not in _ALLOWED[key]:
            raise ValueError(key)
    if kind == "attempt":
        for result in entry["results"]:
            _typed(result, _RESULT)
    _typed({"attached_to": entry.get("attached_to")}, {"attached_to": (str, type(None))})


def _typed(found: Entry, keys: dict[str, type | tuple[type, ...]]) -> None:
    for key, kind in keys.items():
        if not isinstance(found[key], kind):
            raise TypeError(key)
