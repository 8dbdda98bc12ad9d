"""The picture of an incident: loss and gradient norm around it, drawn from the run directory alone."""

from __future__ import annotations

import csv
import math
import textwrap
from pathlib import Path
from typing import Any

from guard.incidents.log import IncidentLog
from guard.incidents.outside import read_story
from guard.incidents.rundir import SIGNAL_COLUMNS
from guard.types import Incident

_BEFORE, _AFTER = 150, 150  # ticks shown around the firing


def render(run_dir: Path, incident_id: str) -> Path:
    """Draws the picture of one incident here and now.

    Raises:
        KeyError: neither the journal nor those outside know such an incident.
        ValueError: its id, which names the folder, would lead out of the run directory.
    """
    log = IncidentLog(read_story(run_dir))
    incident = log.incidents[incident_id]
    if incident_id in ("", ".", "..") or Path(incident_id).name != incident_id:
        raise ValueError(f"{incident_id!r} cannot name a folder")
    rows = _rows(run_dir, incident)
    target = run_dir / "evidence" / incident_id / "plot.png"
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _draw(rows, incident, target)
    return target


def _rows(run_dir: Path, incident: Incident) -> list[dict[str, float]]:
    """Signals around the incident: from signals.csv, and those kept with the incident if that has not been
    written yet.
    """
    low, high = incident.opened_tick - _BEFORE, (incident.closed_tick or incident.opened_tick) + _AFTER
    rows = {
        int(r[0]): dict(zip(SIGNAL_COLUMNS, map(float, r), strict=True)) for r in incident.evidence.get("signals", [])
    }
    path = run_dir / "signals.csv"
    if path.exists():
        with path.open(encoding="ascii") as file:
            for row in csv.DictReader(file):
                if None in row.values() or None in row:
                    continue  # a row that is being written
                tick = int(row["tick"])
                if low <= tick <= high:
                    rows[tick] = {k: float(v) for k, v in row.items()}
    return [rows[t] for t in sorted(rows)]


def _draw(rows: list[dict[str, float]], incident: Incident, target: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 4.5), sharex=True, constrained_layout=True)
    _curve(top, rows, "loss", "loss", "#1f77b4")
    _curve(bottom, rows, "grad_norm", "gradient norm", "#7f7f7f")
    bottom.set_xlabel("tick")
    for axis in (top, bottom):
        axis.axvline(incident.opened_tick, color="#d62728", linewidth=1.2)
        for attempt in incident.attempts:
            axis.axvline(attempt.tick, color="#ff7f0e", linewidth=1.6, linestyle=":")
        if incident.closed_tick is not None and incident.status == "resolved":
            axis.axvline(incident.closed_tick, color="#2ca02c", linewidth=1.2)
        axis.grid(alpha=0.25)
    top.set_title(f"{incident.detector} ({incident.policy}): {incident.status}", fontsize=10, loc="left")
    if incident.cause:
        label = textwrap.shorten(incident.cause, 60)
        at = (incident.opened_tick, 0.06)
        top.annotate(
            label,
            at,
            xytext=(4, 0),
            textcoords="offset points",
            xycoords=top.get_xaxis_transform(),
            fontsize=8,
            color="#d62728",
        )
    bottom.plot([], [], color="#d62728", label="fired")
    bottom.plot([], [], color="#ff7f0e", linestyle=":", label="attempt")
    if incident.status == "resolved":
        bottom.plot([], [], color="#2ca02c", label="resolved")
    figure.legend(*bottom.get_legend_handles_labels(), fontsize=7, loc="outside lower right", ncols=3, frameon=False)
    figure.savefig(target, dpi=110)
    plt.close(figure)


def _curve(axis: Any, rows: list[dict[str, float]], column: str, label: str, color: str) -> None:
    """One signal; non-finite values are marked at the top, not left out: a gap hides the fault."""
    ticks, values = [r["tick"] for r in rows], [r[column] for r in rows]
    axis.plot(ticks, [v if math.isfinite(v) else math.nan for v in values], color=color, linewidth=1)
    bad = [t for t, v in zip(ticks, values, strict=True) if not math.isfinite(v)]
    if bad:
        axis.plot(
            bad, [0.96] * len(bad), "x", color="#d62728", transform=axis.get_xaxis_transform(), label="NaN or Inf"
        )
        axis.legend(fontsize=7, loc="upper right", frameon=False)
    finite = [v for v in values if math.isfinite(v)]
    if finite and min(finite) > 0 and max(finite) > 20 * min(finite):
        axis.set_yscale("log")
    axis.set_ylabel(label)
