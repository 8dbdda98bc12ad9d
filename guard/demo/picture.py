"""The three loss curves in one picture, with what the guard met and did."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

from guard.demo.faults import Plan
from guard.demo.outcome import Outcome, remedy, told
from guard.notify.words import fault
from guard.types import Incident

_BLUE, _RED, _GREEN, _GREY = "#4c78a8", "#d62728", "#2a9d4a", "#888888"
_SMOOTH = 7  # steps of the running median
_CROWDED = 0.15  # of the steps: a mark this close to the next has its label on the left
_TOP = 150.0  # highest loss shown


def draw(outcomes: dict[str, Outcome], plan: Plan, target: Path) -> Path:
    """Draws it and returns where it is."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import ScalarFormatter

    figure, axis = plt.subplots(figsize=(11, 5.8), constrained_layout=True)
    axis.set_yscale("log")
    best = outcomes["healthy"].validation
    axis.set_ylim(0.75 * best, _TOP)
    axis.set_xlim(0, plan.steps * 1.01)
    _undone(axis, outcomes["guarded"].rows)
    _curve(axis, outcomes["healthy"], _BLUE, "healthy run", 5.0, alpha=0.45)
    _curve(axis, outcomes["unguarded"], _RED, "faults, no guard")
    _curve(axis, outcomes["guarded"], _GREEN, "faults, guarded")
    _death(axis, outcomes["unguarded"], plan.steps)
    _incidents(axis, outcomes["guarded"].incidents, plan.steps)
    axis.yaxis.set_major_formatter(ScalarFormatter())
    axis.set_yticks([2, 3, 5, 10, 30, 100], minor=False)
    axis.minorticks_off()
    axis.set_xlabel("training step")
    axis.set_ylabel("training loss (log scale)")
    axis.set_title(
        "Same model, same seed, same faults: with and without the guard", loc="left", fontsize=13, weight="bold", pad=26
    )
    axis.grid(alpha=0.2)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    handles, labels = axis.get_legend_handles_labels()
    order = [*range(1, len(labels)), 0] if len(labels) > 3 else range(len(labels))
    axis.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        frameon=False,
        ncols=4,
        fontsize=9,
    )
    figure.savefig(target, dpi=110)
    plt.close(figure)
    return target


def _curve(axis: Any, outcome: Outcome, color: str, label: str, width: float = 1.7, *, alpha: float = 1.0) -> None:
    """What became of each step in the end: after a rollback the later value counts. Smoothed, single spikes kept."""
    last = dict(outcome.rows)
    steps = sorted(last)
    losses = [last[s] for s in steps]
    smooth = [_median(losses[max(0, i - _SMOOTH // 2) : i + _SMOOTH // 2 + 1], x) for i, x in enumerate(losses)]
    end = f"{outcome.validation:.2f}" if math.isfinite(outcome.validation) else "NaN"
    axis.plot(
        steps,
        smooth,
        color=color,
        linewidth=width,
        alpha=alpha,
        solid_capstyle="round",
        label=f"{label}: ends at {end}",
    )


def _median(near: list[float], x: float) -> float:
    if not math.isfinite(x):
        return math.nan
    finite = sorted(v for v in near if math.isfinite(v))
    middle = finite[len(finite) // 2]
    return x if x > 5 * middle else middle


def _undone(axis: Any, rows: list[tuple[int, float]]) -> None:
    """What the guard took back, faintly."""
    branch: list[tuple[int, float]] = []
    first = True
    for before, row in pairwise(rows):
        branch.append(before)
        if row[0] <= before[0]:
            undone = [(s, v if math.isfinite(v) else math.nan) for s, v in branch if s >= row[0]]
            axis.plot(
                *zip(*undone, strict=True),
                color=_GREEN,
                linewidth=1.3,
                linestyle=":",
                label="taken back by the guard" if first else None,
            )
            branch, first = [], False


def _death(axis: Any, outcome: Outcome, steps: int) -> None:
    dead = next((s for s, loss in outcome.rows if not math.isfinite(loss)), None)
    if dead is None:
        return
    level = next((loss for s, loss in reversed(outcome.rows) if s < dead and math.isfinite(loss)), 1.0)
    axis.plot([dead], [level], marker="X", color=_RED, markersize=11, zorder=5)
    axis.hlines(level, dead, steps, color=_RED, linewidth=1.2, linestyle=(0, (2, 3)), alpha=0.7)
    axis.annotate(
        "unguarded run is NaN from here on", (dead, level), (10, 7), textcoords="offset points", color=_RED, fontsize=9
    )


def _incidents(axis: Any, incidents: list[Incident], steps: int) -> None:
    """Numbered marks on the axis of steps, each with fault and remedy."""
    shown = [i for i in incidents if told(i) and i.attempts]
    for number, i in enumerate(shown, 1):
        axis.axvline(i.opened_step, color=_GREY, linewidth=0.8, linestyle="--", zorder=0)
        does = "\n".join(f"→ {remedy(a)}" for a in i.attempts).replace(", ", ",\n    ")
        crowded = number < len(shown) and 0 < shown[number].opened_step - i.opened_step < _CROWDED * steps
        height = _TOP / 1.6 / 2.1 ** ((number - 1) % 2)
        axis.annotate(
            f"{number}  {fault(i.detector)}\n{does}",
            (i.opened_step, height),
            (-5 if crowded else 5, 0),
            textcoords="offset points",
            fontsize=8.5,
            va="top",
            ha="right" if crowded else "left",
            bbox={"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.85},
        )
