"""`guard undo`."""

from __future__ import annotations

from typing import Annotated

import typer

from guard.cli._asking import Wait, ask, author, need_running
from guard.cli._runs import ActDir, incident_of, read_run, unknown_incident
from guard.cli._say import USAGE, fail

EXAMPLES = ("guard undo runs/exp1 i0003",)


def command(
    run_dir: ActDir,
    incident: Annotated[str, typer.Argument(metavar="INCIDENT", show_default=False, help="As in `guard incidents`.")],
    wait: Wait = 30.0,
) -> None:
    """Take back what an incident changed.

    That is the learning rate multiplier or the precision, as far as they are still in force.
    """
    from guard.incidents.control import Request

    path = need_running(run_dir)
    run = read_run(path)
    if incident_of(run, incident) is None:
        fail(unknown_incident(run, incident), USAGE)
    ask(path, Request("undo", author(), incident=incident), wait)
