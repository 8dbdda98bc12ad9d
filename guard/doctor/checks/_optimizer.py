"""What can be read off optimizer and schedule without a step."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import torch

from guard.doctor.case import Case
from guard.doctor.finding import Finding
from guard.doctor.training import rates

_ADAMS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta")
_EPS = 1e-3  # with usual gradients of 1e-3 per weight it already halves the step
_LEFT = 0.02  # of the peak: a schedule is over
_EARLY = 0.85  # of the planned steps
_LONG = 0.5  # of the peak, at the end of a schedule that goes down


def check(case: Case) -> list[Finding]:
    """Findings on constants and schedule; none if all is well."""
    if not case.box.given:
        return []
    assert case.box.optimizer is not None
    return [f for f in (_zero(case.box.optimizer), _eps(case), _schedule(case)) if f]


def _zero(optimizer: torch.optim.Optimizer) -> Finding | None:
    peak = rates(optimizer)
    wrong = [r for r in peak if r < 0 or not math.isfinite(r)]
    if max(peak) > 0 and not wrong:
        return None
    rate = wrong[0] if wrong else 0.0
    return Finding(
        "rate",
        "FAIL",
        f"the learning rate is {rate:g}: nothing will move",
        "learning rate",
        rate,
        "set lr above 0",
        explains=("curve",),
    )


def _eps(case: Case) -> Finding | None:
    optimizer = case.box.optimizer
    assert optimizer is not None
    if type(optimizer).__name__ not in _ADAMS:
        return None
    eps = min(float(g.get("eps", 1e-8) or 0.0) for g in optimizer.param_groups)
    half = {p.dtype for p in case.setup.model.parameters()} & {torch.float16}
    if eps == 0 or (half and eps < 2**-24):
        why = "in FP16 it is 0" if eps else "it is 0"
        return Finding(
            "rate",
            "FAIL",
            f"{type(optimizer).__name__}'s eps is {eps:g}: {why}, and a gradient of 0 gives 0/0",
            "eps",
            eps,
            "eps=1e-8 with FP32 weights; keep FP32 master weights",
            explains=("curve",),
        )
    largest = max(float(g.get("eps", 1e-8) or 0.0) for g in optimizer.param_groups)
    if largest >= _EPS:
        return Finding(
            "rate",
            "WARN",
            f"{type(optimizer).__name__}'s eps is {largest:g}: it outweighs small gradients, whose steps nearly vanish",
            "eps",
            largest,
            "eps=1e-8 is usual, up to 1e-5 in half precision",
        )
    return None


def _schedule(case: Case) -> Finding | None:
    """The schedule against the planned number of steps, stepped once a step or once an epoch."""
    planned, scheduler = case.setup.steps, case.box.scheduler
    if planned is None or scheduler is None:
        return None
    ways = {"step": planned}
    if case.supply.length:
        ways["epoch"] = max(1, round(planned / case.supply.length))
    found = [_course(scheduler, count, way) for way, count in ways.items() if count <= 200_000]
    return None if None in found or not found else found[0]  # one reading in which all is well is enough


def _course(scheduler: Any, count: int, way: str) -> Finding | None:
    scheduler = copy.deepcopy(scheduler)
    values: list[float] = []
    said = f"stepped once a {way}, {count} times: "
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(count):
            values.append(max(float(g["lr"]) for g in scheduler.optimizer.param_groups))
            try:
                scheduler.step()
            except TypeError:  # needs a metric
                return None
            except ValueError as error:
                return _problem("FAIL", f"{said}the schedule raises after {i + 1}: {error}", i + 1.0)
    peak = max(values)
    if peak <= 0:
        return _problem("FAIL", f"{said}the schedule never leaves 0", 0.0)
    top = next(i for i, v in enumerate(values) if v > (1 - 1e-6) * peak)  # rounded, when it comes again
    over = next((i for i in range(top, len(values)) if values[i] < _LEFT * peak), None)
    if over is not None and over < _EARLY * count:
        again = max(values[over:]) > 0.1 * peak
        what = f"it reaches 0 at {over} and rises again" if again else f"it is over at {over}"
        return _problem("WARN", f"{said}the schedule is shorter than the run, {what}", float(over))
    end, start = values[-1], values[top]
    moves = len(set(values[top:])) > max(3, (count - top) // 2)  # changes all the time: cosine, linear
    if moves and _LONG * start < end < start:
        return _problem(
            "WARN", f"{said}the schedule is longer than the run, the rate ends at {end / peak:.0%} of its peak", end
        )
    if top >= 0.5 * count and count > 10:
        return _problem("WARN", f"{said}the rate warms up for {top} of them", float(top))
    return None


def _problem(verdict: Any, sentence: str, number: float) -> Finding:
    return Finding(
        "rate", verdict, sentence, "schedule", number, "make the schedule as long as the run (T_max, total_steps)"
    )
