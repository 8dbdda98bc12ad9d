"""Lines that are added to the journal of a run that no guard owns: it has ended, or its process is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from guard.clock import Clock
from guard.incidents.journal import read_journal
from guard.incidents.log import IncidentLog
from guard.incidents.rundir import RunDir


class Write(Protocol):
    def __call__(self, kind: str, **keys: Any) -> None:
        """One line; it is on the disk when this returns, or complained about on stderr."""


@contextmanager
def adding(run_dir: Path, clock: Clock, moment: tuple[int, int] | None = None) -> Iterator[tuple[IncidentLog, Write]]:
    """Owns the directory for a moment.

    Args:
        moment: ``(tick, step)`` of the lines; None: of the journal's last one.

    Yields:
        what the journal says, kept up with what is written; and the way to write.

    Raises:
        RunDirError: a live guard owns it.
    """
    files = RunDir(run_dir, clock, lambda: (-1, -1, ""))  # which is what it never writes a heartbeat of
    try:
        entries = read_journal(run_dir)
        log = IncidentLog(entries)
        tick, step = moment or ((entries[-1]["tick"], entries[-1]["step"]) if entries else (0, 0))

        def write(kind: str, **keys: Any) -> None:
            log.apply(files.journal({"kind": kind, "tick": tick, "step": step, **keys}, durable=True))

        yield log, write
    finally:
        files.close(5.0)
