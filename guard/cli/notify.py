"""`guard notify`."""

from __future__ import annotations

from typing import Annotated

import typer

from guard.cli._courier import DAMAGED, courier, deliver, receivers, untold
from guard.cli._runs import ReadDir, find_run
from guard.cli._say import NO_RUN, PROBLEMS, fail, note, out, wrapped

EXAMPLES = ("guard notify runs/exp1",)


def command(
    run_dir: ReadDir = None,
    wait: Annotated[float, typer.Option("--wait", min=0, metavar="SECONDS", help="How long to go on trying.")] = 30.0,
) -> None:
    """Deliver what a run could not tell itself."""
    path = find_run(run_dir)
    specs = receivers(path)
    if isinstance(specs, str):
        fail(f"the receivers of {path} are not known: {specs}", NO_RUN)
    if not specs:
        out("The run's policy names no receivers.")
        return
    post = courier(path, specs, note)
    try:
        told, leader = deliver(post, wait)
    except DAMAGED as error:
        fail(f"a line of the journal cannot be told ({type(error).__name__}: {error})", PROBLEMS)
    if not leader:
        fail("another process delivers this run's messages, likely the run itself; nothing was done here", PROBLEMS)
    left = untold(path)
    if isinstance(left, str):
        fail(f"what is left to tell is not known: {left}", PROBLEMS)
    done = f"{told} message{'' if told == 1 else 's'} sent or brought up to date."
    out(f"{done} {'Not told:' if left else 'Nothing is left to tell.'}")
    for p in left:
        out(wrapped(f"{p.receiver}, {p.incident}: {p.first_line} ({p.error or 'not tried yet'})", "  - ", "    "))
    raise typer.Exit(PROBLEMS if left else 0)
