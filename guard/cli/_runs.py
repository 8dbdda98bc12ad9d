"""Finding a run directory and reading it, with an answer for everything that can be wrong with one."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from guard.cli._say import NO_RUN, fail, nearest, note
from guard.clock import Clock, SystemClock
from guard.incidents import IncidentLog, StoryFollower
from guard.incidents.journal import NAME
from guard.types import Entry, Incident

CLOCK: Clock = SystemClock()

ReadDir = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN_DIR", show_default=False, help="Run directory. Default: GUARD_RUN_DIR, else the newest in ./runs."
    ),
]
ActDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", show_default=False, help="Directory of the running run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


@dataclass(frozen=True, slots=True)
class RunStory:
    """What a run directory tells: its journal, and what those outside added.

    Args:
        damaged: journal lines that could not be understood.
    """

    path: Path
    entries: list[Entry]
    log: IncidentLog
    damaged: int


def open_run(given: Path | None) -> RunStory:
    """The run that was asked for, read; ends the command if there is none."""
    return read_run(find_run(given))


def find_run(given: Path | None) -> Path:
    """The run directory that was named, or the one that is meant; says on stderr which it took."""
    if given is not None:
        return _checked(given)
    if named := os.environ.get("GUARD_RUN_DIR"):
        note(f"reading {named} (GUARD_RUN_DIR)")
        return _checked(Path(named))
    found = _runs_in(Path("runs"))
    if not found:
        fail("which run? There is none in ./runs; name its directory", NO_RUN)
    which = f"the newest of {len(found)}" if len(found) > 1 else "the only one"
    note(f"reading {found[-1]} ({which} in ./runs)")
    return found[-1]


def read_run(path: Path) -> RunStory:
    """Reads the whole story; lines that cannot be understood are counted and said."""
    follower = StoryFollower(path)
    entries: list[Entry] = []
    log = IncidentLog()
    try:
        for entry in follower.read():
            log.apply(entry)
            entries.append(entry)
    except OSError as error:
        fail(f"{path / NAME} cannot be read: {error.strerror}", NO_RUN)
    damaged = follower.damaged
    if damaged:
        lines = "line of the journal is" if damaged == 1 else "lines of the journal are"
        note(f"{damaged} {lines} damaged and passed over; what follows is told from the others")
    return RunStory(path, entries, log, damaged)


def incident_of(run: RunStory, name: str) -> Incident | None:
    """The incident called `name`."""
    return run.log.incidents.get(name)


def unknown_incident(run: RunStory, name: str) -> str:
    return f"there is no incident {name!r} in {run.path}{nearest(name, run.log.incidents)}"


def _checked(path: Path) -> Path:
    found = []
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            hint = f"; did you mean {path.parent}?" if (path.parent / NAME).exists() else ""
            fail(f"{path} is a file, and a run directory is expected{hint}", NO_RUN)
        if (path / NAME).exists():
            return path
        found = _runs_in(path)
    except (FileNotFoundError, NotADirectoryError):
        beside = [p.name for p in _runs_in(path.parent)]
        fail(f"there is no directory {path}{nearest(path.name, beside) if beside else ''}", NO_RUN)
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}", NO_RUN)
    inside = f"; run directories in it: {', '.join(str(p) for p in found[-10:])}" if found else ""
    return fail(f"{path} is not a run directory: it has no {NAME}{inside}", NO_RUN)


def _runs_in(folder: Path) -> list[Path]:
    """Run directories in a folder, the one written last at the end."""
    try:
        found = [(journal.stat().st_mtime_ns, journal.parent) for journal in folder.glob(f"*/{NAME}")]
    except OSError:
        return []
    return [path for _, path in sorted(found)]
