"""`guard observe`."""

from __future__ import annotations

from guard.cli._asking import Policy, Wait, ask, author, need_running
from guard.cli._runs import ActDir

EXAMPLES = ("guard observe runs/exp1", "guard observe runs/exp1 --policy clip-on-explosion")


def command(run_dir: ActDir, policy: Policy = None, wait: Wait = 30.0) -> None:
    """Let a running guard only report, and change nothing."""
    from guard.incidents.control import Request

    ask(need_running(run_dir), Request("observe", author(), policy=policy), wait)
