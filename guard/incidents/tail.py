"""The newest row of ``signals.csv``: how a run is doing, for whoever looks from outside."""

from __future__ import annotations

from pathlib import Path

from guard.incidents.rundir import CSV_COLUMNS

_TAIL = 4096  # bytes read from the end


def last_signals(run_dir: Path) -> dict[str, float] | None:
    """The newest whole row, by column; or None."""
    try:
        with (run_dir / "signals.csv").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            lines = file.read().decode("ascii", "replace").split("\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        cells = line.split(",")
        try:
            return dict(zip(CSV_COLUMNS, map(float, cells), strict=True))
        except ValueError:
            continue
    return None
