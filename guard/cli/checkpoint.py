"""`guard checkpoint`."""

from __future__ import annotations

from guard.cli._asking import Wait, ask, author, need_running
from guard.cli._runs import ActDir

EXAMPLES = ("guard checkpoint runs/exp1",)


def command(run_dir: ActDir, wait: Wait = 30.0) -> None:
    """Let a running guard take a checkpoint now."""
    from guard.incidents.control import Request

    ask(need_running(run_dir), Request("checkpoint", author()), wait)
