"""`guard show`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from guard.cli._attention import acknowledged_by, silenced_until
from guard.cli._incident_text import evidence_files, standing, tell
from guard.cli._policy_line import policy_line
from guard.cli._runs import AsJson, ReadDir, RunStory, incident_of, open_run, unknown_incident
from guard.cli._say import NO_RUN, USAGE, fail, note, out_json
from guard.types import Incident

EXAMPLES = (
    "guard show runs/exp1 i0003",
    "guard show i0003          (of the newest run in ./runs)",
    "guard show runs/exp1 --json",
)


def command(
    run_dir: ReadDir = None,
    incident: Annotated[
        str | None,
        typer.Argument(
            metavar="INCIDENT", show_default=False, help="ID, as in `guard incidents`. Default: the latest."
        ),
    ] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the picture if it is not there yet.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell one incident in full.

    What was seen, what was done about it, whether it helped, and what is still different because of it.
    """
    if incident is None and run_dir is not None and _is_name(run_dir):
        run_dir, incident = None, str(run_dir)
    run = open_run(run_dir)
    found = _pick(run, incident)
    if plot:
        from guard.notify.evidence import make_in_subprocess

        there = (run.path / "evidence" / found.id / "plot.png").exists()
        if not there and make_in_subprocess(run.path, found.id) is None:
            note("the picture could not be drawn")
    if as_json:
        out_json(_facts(run, found))
    else:
        tell(run, found)


def _is_name(given: Path) -> bool:
    """The only argument is an incident's ID: no path, and nothing of that name is there."""
    return given.name == str(given) and not given.exists()


def _pick(run: RunStory, name: str | None) -> Incident:
    if not run.log.incidents:
        fail(f"there are no incidents in {run.path}", NO_RUN if name is None else USAGE)
    if name is None:
        latest = next(reversed(run.log.incidents.values()))
        if len(run.log.incidents) > 1:
            note(f"showing {latest.id}, the latest of {len(run.log.incidents)}")
        return latest
    found = incident_of(run, name)
    if found is None:
        fail(unknown_incident(run, name), USAGE)
    return found


def _facts(run: RunStory, incident: Incident) -> dict[str, Any]:
    from guard.notify import story

    line = policy_line(run.path, incident.policy)
    return {
        **asdict(incident),
        "first_line": story.first_line(run.log, incident),
        "run_dir": str(run.path),
        "policy_line": line,
        "in_force": [summary for _, summary in standing(run, incident)],
        "acknowledged_by": acknowledged_by(run, incident),
        "silenced_until": silenced_until(run, incident),
        "evidence_files": [str(p) for p in evidence_files(run, incident)],
        "damaged_lines": run.damaged,
    }
