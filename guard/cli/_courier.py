"""A run's receivers, as its own copy of the policy names them, and what they have not been told."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from guard.cli import _runs

if TYPE_CHECKING:
    from guard.notify import Courier, Pending, ReceiverSpec

DAMAGED = (KeyError, TypeError, ValueError, AttributeError)  # what a wrong value in a journal may lead to


def receivers(run_dir: Path) -> list[ReceiverSpec] | str:
    """The receivers in the run's ``policy.yaml``, or why they are not known."""
    from guard.errors import PolicyError
    from guard.policy import load
    from guard.receivers import receiver_specs

    try:
        return receiver_specs(load(run_dir / "policy.yaml"))
    except PolicyError as error:
        return str(error.problems[0])


def courier(run_dir: Path, specs: list[ReceiverSpec], say: Callable[[str], None], state: Path | None = None) -> Courier:
    """A courier of this process."""
    from guard.home import Home, where
    from guard.notify import Courier
    from guard.notify.evidence import make_in_subprocess

    home = Home(place, _runs.CLOCK) if (place := where()) else None
    return Courier(run_dir, specs, clock=_runs.CLOCK, state=state, home=home, plot=make_in_subprocess, say=say)


def deliver(post: Courier, wait: float) -> tuple[int, bool]:
    """Passes until all is told, the time is up, or somebody else turns out to deliver."""
    never, clock = threading.Event(), _runs.CLOCK
    end, told = clock.monotonic() + wait, 0
    try:
        while True:
            progress = post.deliver_once(eager=True)
            told += progress.told
            pause = max(0.2, progress.next_try or 0.0)
            if not progress.waiting or not progress.leader or clock.monotonic() + pause > end:
                return told, progress.leader
            clock.wait(never, pause)
    finally:
        post.close(1.0)  # gives the outbox back


def untold(run_dir: Path) -> list[Pending] | str:
    """What is not told yet, or why that is not known. Leaves the run directory as it is."""
    specs = receivers(run_dir)
    if isinstance(specs, str):
        return specs
    from guard.notify.rounds import outbox_path

    box = outbox_path(run_dir)
    if box.exists() and not os.access(box, os.R_OK | os.W_OK):
        return f"{box} cannot be opened by this user"
    with tempfile.TemporaryDirectory() as elsewhere:  # an outbox that is not there is not made by a look at it
        try:
            return courier(run_dir, specs, lambda _: None, None if box.exists() else Path(elsewhere)).pending()
        except DAMAGED as error:
            return f"a line of the journal cannot be told ({type(error).__name__}: {error})"
