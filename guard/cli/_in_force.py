"""What is different in a run from what its script says: learning rate, precision, modes set by a person."""

from __future__ import annotations

from dataclasses import dataclass, field

from guard.types import Entry, Mode

_ENDED = {
    "the learning rate is back at the schedule's": "scale_lr",
    "the precision override has ended": "precision",
    "the standing clip has ended": "clip",
    "the learning rate has warmed up": "warmup_lr",
}


@dataclass(slots=True)
class InForce:
    """Folded from the journal.

    Args:
        lr_multiplier: standing factor on the learning rate.
        precision: the dtype that overrides the loop's autocast, or None.
        modes: by policy, where a person set one.
        changes: ``(incident, action, summary)`` of every change that can be undone.
    """

    lr_multiplier: float = 1.0
    precision: str | None = None
    modes: dict[str, Mode] = field(default_factory=dict)
    changes: list[tuple[str, str, str]] = field(default_factory=list)


def in_force(entries: list[Entry]) -> InForce:
    """What the journal says is in force after its last line."""
    now = InForce()
    for entry in entries:
        match entry["kind"]:
            case "run_started":
                now.modes = {}
            case "mode":
                _set_mode(now, entry)
            case "attempt" if not entry["would"]:
                for result in entry["results"]:
                    _apply(now, entry["incident"], result)
            case "undone":
                now.changes = [c for c in now.changes if c[0] != entry["incident"]]
                now.lr_multiplier = float(entry["changes"].get("lr_multiplier", now.lr_multiplier))
                now.precision = entry["changes"].get("precision", now.precision)
            case "notice" if (what := _ENDED.get(entry["message"])) is not None:
                _end(now, what)
    return now


def _set_mode(now: InForce, entry: Entry) -> None:
    if entry["policy"] is None:
        now.modes = {}
    else:
        now.modes[entry["policy"]] = entry["mode"]


def _apply(now: InForce, incident: str, result: Entry) -> None:
    changes = result.get("changes") or {}
    if "lr_multiplier" in changes:
        now.lr_multiplier = float(changes["lr_multiplier"][1])
    if "precision" in changes:
        now.precision = str(changes["precision"])
    if result.get("standing"):
        now.changes.append((incident, str(result["type"]), str(result["summary"])))


def _end(now: InForce, what: str) -> None:
    if what == "scale_lr":
        now.lr_multiplier = 1.0
    elif what == "precision":
        now.precision = None
    now.changes = [c for c in now.changes if c[1] != what]
