"""`guard incidents`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from guard.cli import _runs
from guard.cli._attention import acknowledged_by, cannot_be_told, silenced, silenced_until, untold_facts
from guard.cli._courier import untold
from guard.cli._runs import AsJson, ReadDir, RunStory, open_run
from guard.cli._say import out, out_json, out_table, wrapped
from guard.types import Incident

EXAMPLES = ("guard incidents runs/exp1", "guard incidents runs/exp1 --json")


def command(run_dir: ReadDir = None, as_json: AsJson = False) -> None:
    """List a run's incidents, oldest first."""
    run = open_run(run_dir)
    found, pending = list(run.log.incidents.values()), untold(run.path)
    if as_json:
        facts = {"run_dir": str(run.path), "damaged_lines": run.damaged, "incidents": [_facts(run, i) for i in found]}
        out_json({**facts, "silences": run.log.silences(_runs.CLOCK.time()), "untold": untold_facts(pending)})
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
        for line in [*silenced(run), *cannot_be_told(pending)]:
            out(wrapped(line, "\n", ""))
        out(f"\nOne in full: guard show {run.path} {rows[-1][0]}")


def _outcome(run: RunStory, incident: Incident) -> str:
    """The first line of its message; for one that is told with another, which."""
    from guard.notify import story
    from guard.notify.words import clean

    owner = story.carrier(run.log, incident)
    if owner.id != incident.id:
        return f"{'Repaired with' if owner.status == 'resolved' else 'Part of'} {clean(owner.id, 80)}"
    by = acknowledged_by(run, incident)
    return story.first_line(run.log, incident) + (f" (acknowledged by {clean(by, 80)})" if by else "")


def _facts(run: RunStory, incident: Incident) -> dict[str, Any]:
    return {
        **asdict(incident),
        "attempts": len(incident.attempts),
        "outcome": _outcome(run, incident),
        "acknowledged_by": acknowledged_by(run, incident),
        "silenced_until": silenced_until(run, incident),
        "evidence": {k: v for k, v in incident.evidence.items() if k != "signals"},
    }
