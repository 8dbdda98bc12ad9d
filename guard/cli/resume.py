"""`guard resume`."""

from __future__ import annotations

from guard.cli._asking import Wait, ask, author, need_running
from guard.cli._runs import ActDir

EXAMPLES = ("guard resume runs/exp1",)


def command(run_dir: ActDir, wait: Wait = 30.0) -> None:
    """Let a run that a policy paused go on."""
    from guard.incidents.control import Request

    ask(need_running(run_dir), Request("resume", author()), wait)
