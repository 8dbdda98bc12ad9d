"""`guard stop`."""

from __future__ import annotations

from guard.cli._asking import Wait, ask, author, need_running
from guard.cli._runs import ActDir

EXAMPLES = ("guard stop runs/exp1",)


def command(run_dir: ActDir, wait: Wait = 30.0) -> None:
    """Stop a running run at its next step."""
    from guard.incidents.control import Request

    ask(need_running(run_dir), Request("stop", author()), wait)
