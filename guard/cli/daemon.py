"""`guard daemon`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guard.cli import _runs
from guard.cli._say import PROBLEMS, fail, note

if TYPE_CHECKING:
    from guard.daemon.settings import Settings

EXAMPLES = ("guard daemon", "guard daemon guard-daemon.yaml")

_PATIENCE = 10.0  # [s] for what is under way at the end


def command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", show_default=False, help="What it is told. Default: nothing."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            show_default=False, help="Folder on this host's own disk. Default: STATE_DIRECTORY, else one in /var/tmp."
        ),
    ] = None,
) -> None:
    """Watch all runs of this user, and tell people.

    Runs announce themselves when a guard is attached. SIGHUP, or a change of FILE, makes it read FILE again.
    """
    settings = _load(file)
    if settings is None:
        raise typer.Exit(PROBLEMS)
    from guard.daemon.loop import Loop
    from guard.daemon.service import Daemon, DaemonRunningError

    _more_files()
    try:
        daemon = Daemon(settings, state or _state(), _runs.CLOCK, note)
    except DaemonRunningError as error:
        fail(str(error), PROBLEMS)
    loop = Loop(daemon, file, lambda: _load(file))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.end())
    signal.signal(signal.SIGHUP, lambda *_: loop.ask_to_reload())
    loop.run(_PATIENCE)


def _load(file: Path | None) -> Settings | None:
    """The settings; None after their problems have been said."""
    from guard.daemon.settings import load
    from guard.errors import PolicyError

    try:
        settings = load(file)
        settings.homes()
    except PolicyError as error:
        for problem in error.problems:
            note(str(problem))
        return None
    return settings


def _state() -> Path:
    from guard.home import local_state

    # systemd names the folder that it has made for a unit.
    given = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(given) if given else local_state() / "daemon"


def _more_files() -> None:
    """Many runs are many files; the usual soft limit is low for no reason of this day."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536) if hard > 0 else 65_536, hard))
