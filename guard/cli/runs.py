"""`guard runs`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from guard import home
from guard.cli import _runs
from guard.cli._runs import AsJson
from guard.cli._say import NO_RUN, ago, fail, out, out_json, out_table
from guard.home import Announcement, Home
from guard.incidents import IncidentLog, read_story
from guard.incidents.rundir import holder_alive
from guard.incidents.tail import last_signals

EXAMPLES = ("guard runs", "guard runs --json")


@dataclass(frozen=True, slots=True)
class Line:
    """One run; `step` and `loss` are of the latest row that it wrote, None if there is none."""

    run: str
    host: str
    state: str
    step: int | None
    loss: float | None
    incidents: int
    started: float
    run_dir: str


def command(
    as_json: AsJson = False,
    folder: Annotated[
        Path | None,
        typer.Option("--home", show_default=False, help="Where runs announce themselves. Default: GUARD_HOME."),
    ] = None,
) -> None:
    """List the runs that have announced themselves."""
    where = folder or home.where()
    if where is None:
        fail(f"{home.VARIABLE} is empty, so that runs do not announce themselves; name a folder: --home", NO_RUN)
    at = Home(where, _runs.CLOCK)
    lines = sorted(map(_line, at.runs()), key=lambda line: -line.started)
    if as_json:
        out_json([asdict(line) for line in lines])
        return
    if not lines:
        out(f"No run has announced itself in {where}.")
        return
    from guard.notify.words import clean, number

    now = _runs.CLOCK.time()
    rows = [
        (
            clean(line.run, 60),
            line.state,
            "" if line.step is None else f"{line.step:,}",
            "" if line.loss is None else number(line.loss),
            str(line.incidents),
            ago(now - line.started),
            clean(line.host, 40),
            line.run_dir,
        )
        for line in lines
    ]
    headers = ("Run", "State", "Step", "Loss", "Incidents", "Begun, ago", "Host", "Directory")
    out_table(headers, rows, numbers=("Step", "Loss", "Incidents"))
    daemons = [f"pid {d.pid} on {d.host}" + (f", {d.page}" if d.page else "") for d in at.daemons()]
    out(f"\nDaemons: {'; '.join(daemons) or 'none; to start one: guard daemon'}")


def _line(run: Announcement) -> Line:
    path = Path(run.run_dir)
    log = IncidentLog(read_story(path))
    last = last_signals(path) or {}
    step, loss = last.get("step"), last.get("loss")
    count = len(log.incidents)
    return Line(
        run.run, run.host, _state(path, log), None if step is None else int(step), loss, count, run.time, run.run_dir
    )


def _state(path: Path, log: IncidentLog) -> str:
    if not path.exists():
        return "not reachable"
    if log.finished is not None:
        return str(log.finished.get("status"))
    return "running" if holder_alive(path, _runs.CLOCK) else "gone"
