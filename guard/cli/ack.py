"""`guard ack`."""

from __future__ import annotations

from typing import Annotated

import typer

from guard.cli import _runs
from guard.cli._asking import author
from guard.cli._attention import acknowledged_by
from guard.cli._runs import ActDir, find_run, incident_of, read_run, unknown_incident
from guard.cli._say import USAGE, fail, out, wrapped

EXAMPLES = ("guard ack runs/exp1 i0003",)


def command(
    run_dir: ActDir,
    incident: Annotated[str, typer.Argument(metavar="INCIDENT", show_default=False, help="As in `guard incidents`.")],
) -> None:
    """Say that you have seen an incident.

    Its message then says who has, nobody is reminded of it any more, and no further receiver is called. That counts for
    all that was told in the same message until now; if the fault comes back, somebody is called again.
    """
    from guard.incidents import acts

    path = find_run(run_dir)
    run = read_run(path)
    found = incident_of(run, incident)
    if found is None:
        fail(unknown_incident(run, incident), USAGE)
    if by := acknowledged_by(run, found):
        out(f"{found.id} was acknowledged by {by} already.")
        return
    out(wrapped(f"{acts.acknowledge(path, found.id, author(), _runs.CLOCK)} ({author()})."))
