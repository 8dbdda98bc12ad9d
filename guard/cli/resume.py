"""`guard resume`."""

from __future__ import annotations

from guard.cli import _runs
from guard.cli._asking import Wait, ask, author, need_running
from guard.cli._runs import ActDir, find_run
from guard.cli._say import out
from guard.incidents import acts

EXAMPLES = ("guard resume runs/exp1",)


def command(run_dir: ActDir, wait: Wait = 30.0) -> None:
    """Let a run that was paused or stopped go on.

    A paused one goes on at once; one that its policy or a person stopped, when it is started again.
    """
    path = find_run(run_dir)
    if acts.reopen(path, author(), _runs.CLOCK):
        out(f"The run may go on. Start it again with the same run directory: {path}")
        return
    from guard.incidents.control import Request

    ask(need_running(path), Request("resume", author()), wait)
