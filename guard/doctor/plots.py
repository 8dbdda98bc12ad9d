"""The pictures of the page, as data URIs. Colours that can be read on white and on black."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

from guard.doctor.finding import Report

_BLUE, _ORANGE, _RED, _GREEN, _GREY = "#3f83d6", "#d9822b", "#d9534f", "#2e9e5b", "#8a919b"
_NAMES = 14  # labels on an axis


def draw(report: Report) -> Iterator[tuple[str, str, str]]:
    """Title, caption and picture of each plot that there is data for."""
    for title, caption, name, paint in (
        ("Learning rate: range test", "Smoothed loss while the rate grows from step to step.", "range", _range),
        ("Learning rate: sweep", "Loss after the same steps from the same weights.", "sweep", _sweep),
        (
            "Activations",
            "Root mean square of each layer's output, in the order in which they run.",
            "activations",
            _rms,
        ),
        ("Gradients", "Root mean square of each parameter's gradient, zeros left out.", "gradients", _rms),
        ("Labels", "How often each occurs in the batches read.", "labels", _labels),
        ("One batch by heart", "Loss on a few samples, trained on nothing else.", "overfit", _overfit),
        ("Short run", "Loss of each step, and on batches looked at again and again.", "curve", _curve),
        ("Precision", "Relative error of each layer's output against FP32.", "precision", _precision),
    ):
        data = report.plots(name)
        if data:
            picture = _picture(paint, data)
            if picture:
                yield title, caption, picture


def _picture(paint: Any, data: Any) -> str:
    import matplotlib as mpl

    style: Any = {
        "text.color": _GREY,
        "axes.labelcolor": _GREY,
        "axes.edgecolor": _GREY,
        "xtick.color": _GREY,
        "ytick.color": _GREY,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 9,
        "legend.frameon": False,
        "svg.hashsalt": "guard",
    }
    from matplotlib.figure import Figure

    with mpl.rc_context(style):
        figure = Figure(figsize=(5.6, 3.1), layout="constrained")
        axis = figure.subplots()
        axis.grid(alpha=0.2)
        if paint(axis, data) is False:
            return ""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def _range(axis: Any, data: Any) -> bool:
    rates, losses = data["rates"], data["losses"]
    if len(rates) < 2:
        return False
    axis.plot(rates, losses, color=_BLUE)
    axis.set_xscale("log")
    low, first = min(losses), losses[0]
    axis.set_ylim(low - 0.1 * (abs(first - low) + 1e-9), first + 1.0 * (abs(first - low) + 1e-9))
    if data["steepest"]:
        axis.axvline(data["steepest"], color=_GREEN, linestyle="--", label=f"steepest {data['steepest']:.1e}")
    if data["diverges"]:
        axis.axvline(data["diverges"], color=_RED, linestyle="--", label=f"divergence {data['diverges']:.1e}")
    axis.set_xlabel("learning rate")
    axis.set_ylabel("loss")
    axis.legend() if data["steepest"] or data["diverges"] else None
    return True


def _sweep(axis: Any, data: Any) -> bool:
    known = [(r, v) for r, v in zip(data["rates"], data["losses"], strict=True) if v is not None]
    diverged = [r for r, v in zip(data["rates"], data["losses"], strict=True) if v is None]
    if not known:
        return False
    top = 2 * abs(data["start"])
    axis.plot([r for r, _ in known], [min(v, top) for _, v in known], "o-", color=_BLUE, label="after")
    axis.axhline(data["start"], color=_GREY, linestyle=":", label="before")
    if diverged:
        axis.plot(diverged, [top] * len(diverged), "x", color=_RED, label="diverged")
    if data["current"]:
        axis.axvline(data["current"], color=_ORANGE, linestyle="--", label=f"as it is, {data['current']:.1e}")
    axis.set_xscale("log")
    axis.set_xlabel("learning rate")
    axis.set_ylabel("loss")
    axis.legend()
    return True


def _rms(axis: Any, data: Any) -> bool:
    names, values = data["names"], [v if v and math.isfinite(v) else math.nan for v in data["rms"]]
    if not any(v > 0 for v in values):
        return False
    axis.semilogy(range(len(values)), values, "o-", color=_BLUE, markersize=3.5)
    positive = [v for v in values if v > 0]
    if max(positive) < 20 * min(positive):  # at least a decade, or noise looks like a trend
        middle = math.sqrt(max(positive) * min(positive))
        axis.set_ylim(middle / 10, middle * 10)
    _name(axis, names)
    return True


def _name(axis: Any, names: Sequence[str]) -> None:
    """Some of the names, so that they can be read."""
    step = max(1, math.ceil(len(names) / _NAMES))
    places = list(range(0, len(names), step))
    short = [n if len(n) <= 22 else "..." + n[-19:] for n in names]
    if max(map(len, short)) <= 3:
        axis.set_xticks(places, [short[i] for i in places])
    else:
        axis.set_xticks(places, [short[i] for i in places], rotation=40, ha="right", fontsize=7)


def _labels(axis: Any, data: Any) -> None:
    axis.bar(range(len(data["counts"])), data["counts"], color=_BLUE)
    axis.grid(visible=False, axis="x")
    _name(axis, data["names"])


def _overfit(axis: Any, data: Any) -> bool:
    if len(data) < 2 or data[0] <= 0:
        return False
    axis.plot(range(1, len(data) + 1), data, color=_BLUE)
    axis.axhline(0.01 * data[0], color=_GREEN, linestyle="--", label="1 % of the first")
    if min(data) > 0:
        axis.set_yscale("log")
    axis.set_xlabel("step")
    axis.set_ylabel("loss")
    axis.legend()
    return True


def _curve(axis: Any, data: Any) -> None:
    def gaps(values: Sequence[float | None]) -> list[float]:
        return [math.nan if v is None else v for v in values]

    axis.plot(
        range(len(data["losses"])), gaps(data["losses"]), color=_GREY, alpha=0.5, linewidth=0.9, label="each step"
    )
    axis.plot(data["at"], gaps(data["same"]), color=_BLUE, label="training batches")
    if any(v is not None for v in data["held"]):
        axis.plot(data["at"], gaps(data["held"]), color=_ORANGE, label="held out")
    if data["guess"] is not None and math.isfinite(data["guess"]):
        axis.axhline(data["guess"], color=_GREY, linestyle=":", label="constant answer")
    axis.set_xlabel("step")
    axis.set_ylabel("loss")
    axis.legend()


def _precision(axis: Any, data: Any) -> bool:
    drawn = False
    for name, color in (("BF16", _ORANGE), ("FP16", _BLUE)):
        values = [row.get(name) or math.nan for row in data]
        if any(v > 0 for v in values):
            axis.semilogy(range(len(values)), values, "o-", color=color, markersize=3.5, label=name)
            drawn = True
        lost = [i for i, row in enumerate(data) if name in row and row[name] is None]
        if lost:
            axis.plot(
                lost,
                [0.97] * len(lost),
                "x",
                color=_RED,
                transform=axis.get_xaxis_transform(),
                label=f"{name} not finite",
            )
            drawn = True
    if drawn:
        axis.legend()
        _name(axis, [row["name"] for row in data])
    return drawn


def pixels(values: Any) -> str:
    """One image as a data URI.

    Args:
        values: [H][W] or [H][W][3], 0 to 255.
    """
    import numpy as np
    from matplotlib.image import imsave

    array = np.asarray(values, dtype=np.uint8)
    buffer = io.BytesIO()
    imsave(buffer, np.repeat(array[..., None], 3, 2) if array.ndim == 2 else array, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
