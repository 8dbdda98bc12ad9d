"""`guard incidents`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from guard.cli._runs import AsJson, ReadDir, RunStory, open_run
from guard.cli._say import out, out_json, out_table
from guard.types import Incident

EXAMPLES = ("guard incidents runs/exp1", "guard incidents runs/exp1 --json")


def command(run_dir: ReadDir = None, as_json: AsJson = False) -> None:
    """List a run's incidents, oldest first."""
    run = open_run(run_dir)
    found = list(run.log.incidents.values())
    if as_json:
        out_json({"run_dir": str(run.path), "damaged_lines": run.damaged, "incidents": [_facts(run, i) for i in found]})
    elif not found:
        last = max((entry["step"] for entry in run.entries), default=0)
        out(f"No incidents in {run.path} (journal up to step {last:,}).")
    else:
        from guard.notify.words import clean

        rows = [
            (clean(i.id, 80), f"{i.opened_step:,}", i.severity, clean(i.detector, 60), f"{i.count:,}", _outcome(run, i))
            for i in found
        ]
        out_table(("ID", "Step", "Severity", "Detector", "Seen", "Outcome"), rows, numbers=("Step", "Seen"))
        out(f"\nOne in full: guard show {run.path} {rows[-1][0]}")


def _outcome(run: RunStory, incident: Incident) -> str:
    """The first line of its message; for one that is told with another, which."""
    from guard.notify import story
    from guard.notify.words import clean

    owner = story.owner(run.log, incident)
    if owner.id != incident.id:
        return f"{'Repaired with' if owner.status == 'resolved' else 'Part of'} {clean(owner.id, 80)}"
    return story.first_line(run.log, incident)


def _facts(run: RunStory, incident: Incident) -> dict[str, Any]:
    return {
        **asdict(incident),
        "attempts": len(incident.attempts),
        "outcome": _outcome(run, incident),
        "evidence": {k: v for k, v in incident.evidence.items() if k != "signals"},
    }
