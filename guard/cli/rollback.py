"""`guard rollback`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from guard.cli._asking import Wait, ask, author, need_running
from guard.cli._runs import ActDir

EXAMPLES = ("guard rollback runs/exp1", "guard rollback runs/exp1 --to best")


class Checkpoint(str, Enum):
    """The checkpoints that have a name."""

    last_good = "last_good"
    previous = "previous"
    start = "start"
    best = "best"


def command(
    run_dir: ActDir,
    to: Annotated[Checkpoint, typer.Option("--to", help="Which checkpoint.")] = Checkpoint.last_good,
    wait: Wait = 30.0,
) -> None:
    """Take a running run back to a checkpoint."""
    from guard.incidents.control import Request

    ask(need_running(run_dir), Request("rollback", author(), to=to.value), wait)
