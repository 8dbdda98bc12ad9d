"""Who starts this process again if it ends, and what it does for a supervisor outside (`guard run`), if it has one."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from guard.process import started

MARK = "GUARD_SUPERVISED"  # in the environment of everything that a supervisor started
_OTHERS = {"TORCHELASTIC_RUN_ID": "torchrun", "SLURM_JOB_ID": "Slurm", "KUBERNETES_SERVICE_HOST": "Kubernetes"}
RUN_DIR = "GUARD_RUN_DIR"  # where `attach` writes if the script does not say
WHO = "GUARD_SUPERVISOR"  # beside it: the supervisor's pid and start time


def by() -> tuple[int, str | None] | None:
    """The supervisor's pid and start time, or None if there is none, or it has gone."""
    pid, _, since = os.environ.get(WHO, "").partition(":")
    return (int(pid), since) if pid.isdigit() and since and started(int(pid)) == since else None


def other_restarter(environment: Mapping[str, str]) -> str | None:
    """Who else starts this process again when it ends."""
    return next((name for key, name in _OTHERS.items() if environment.get(key)), None)


def lead_to(run_dir: Path) -> None:
    """The supervisor looks where ``GUARD_RUN_DIR`` says. Where a script has named another directory, a link leads it
    from there to here."""
    named = os.environ.get(RUN_DIR)
    if not os.environ.get(MARK) or not named or (link := Path(named).absolute()) == run_dir:
        return
    with contextlib.suppress(OSError):  # then it sees the process alone, and no heartbeats
        if link.is_symlink() or not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            temporary = link.with_name(f".{link.name}.{os.getpid()}")
            temporary.symlink_to(run_dir)
            temporary.replace(link)


def show_stacks_on_quit() -> None:
    """On SIGQUIT the stacks of all threads go to stderr, and the process goes on: evidence of a hang where nobody may
    look into the process. Only under a supervisor, and where nobody else listens to that signal.
    """
    if os.environ.get(MARK) and sys.__stderr__ and signal.getsignal(signal.SIGQUIT) == signal.SIG_DFL:
        try:
            faulthandler.register(signal.SIGQUIT, file=sys.__stderr__, all_threads=True)
        except (ValueError, OSError):
            return  # a stderr that is no file: less evidence, and nothing else is lost
