"""Leaving a request for a running guard, and waiting for its receipt in the journal."""

from __future__ import annotations

import getpass
import os
import threading
from pathlib import Path
from typing import Annotated

import typer

from guard.cli import _runs
from guard.cli._say import NO_RUN, PROBLEMS, fail, note, out
from guard.incidents import acts, control
from guard.incidents.rundir import holder_alive
from guard.types import Entry

_POLL = 0.1  # [s] between looks at the journal

Wait = Annotated[
    float,
    typer.Option("--wait", min=0, metavar="SECONDS", help="How long to wait for the run's answer; 0: do not wait."),
]

Policy = Annotated[
    str | None,
    typer.Option("--policy", metavar="NAME", show_default=False, help="Only this policy; default: the whole run."),
]


def author() -> str:
    """Who asks: the user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container whose user has no name
        return f"uid {os.getuid()}"


def need_running(given: Path) -> Path:
    """The run directory, if a live guard owns it; else ends the command."""
    run_dir = _runs.find_run(given)
    if not holder_alive(run_dir, _runs.CLOCK):
        fail(f"no guard is running in {run_dir}, so nobody would take the request; see: guard status {run_dir}", NO_RUN)
    return run_dir


def ask(run_dir: Path, request: control.Request, wait: float) -> None:
    """Submits a request and tells how it was answered within `wait` seconds; ends the command if it was not granted."""
    asked = acts.ask(run_dir, request, _runs.CLOCK)
    if not wait:
        out(f"Request {request.id} left for the run; it is taken at the next step.")
        return
    try:
        receipt = _receipt(asked, wait)
    except KeyboardInterrupt:
        note(f"not waiting any longer; request {request.id} is taken at the next step all the same")
        raise
    if receipt is None:
        _unanswered(asked, wait)
    elif not receipt.get("accepted"):
        fail(f"refused: {receipt.get('message')}", PROBLEMS)
    else:
        out(f"Done at step {receipt.get('step', 0):,}: {receipt.get('message')}")


def _receipt(asked: acts.Asked, wait: float) -> Entry | None:
    """The journal's answer, or None if the time is up or the run has ended without one."""
    never, clock = threading.Event(), _runs.CLOCK
    end = clock.monotonic() + wait
    while True:
        gone = not holder_alive(asked.run_dir, clock)  # asked first: what it wrote before it went is still read
        if (receipt := asked.receipt()) is not None:
            return receipt
        left = end - clock.monotonic()
        if gone or left <= 0:
            return None
        clock.wait(never, min(_POLL, left))


def _unanswered(asked: acts.Asked, wait: float) -> None:
    if not holder_alive(asked.run_dir, _runs.CLOCK):
        asked.withdraw()
        fail("the run ended before it took the request; the request is withdrawn", NO_RUN)
    fail(
        f"no answer within {wait:g} s; the request stays and is taken at the next step. "
        f"See: guard status {asked.run_dir}",
        PROBLEMS,
    )
