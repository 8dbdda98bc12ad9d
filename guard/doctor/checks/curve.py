"""A short real run: flat, early saturation, oscillation, explosion, overfitting - or a loss that falls."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from guard.doctor import tree
from guard.doctor.case import Case
from guard.doctor.finding import Finding
from guard.doctor.training import OVERTIME, paced, rates, scale, train

# The guard's own detectors judge runs of thousands of steps, and say nothing on a hundred: here the same batches are
# looked at again and again, so that what moves is the model and not the data.
_LOOKS = 20  # at the loss on the same batches
_FLAT = 0.01  # of the first loss
_SATURATED = 0.9  # of the first loss, or of what a constant answer gets, where the second half stands still
_STILL = 0.01
_SWINGS, _HIGH, _WIDE = 3.0, 0.5, 0.2  # sum of rises / fall; loss at the end and range, in first losses
_EXPLODED = 2.0  # times the first loss
_OVERFITS, _LOST = 1.25, 0.25  # held-out loss at the end / at its best; share of its fall that is lost again
_FEW = 20  # steps, below which no curve has a name
_LEAST = 40  # steps; slow models get smaller batches rather than fewer
_BELONGS = 0.01  # of the loss: what other samples' inputs cost, when the answer depends on the input


@dataclass(frozen=True, slots=True)
class _Run:
    """One short run.

    Args:
        losses: of each step.
        at, same, held: step, loss on the same training batches, on batches never trained on (NaN without any).
        swapped: held-out loss at the end when inputs and targets are those of different samples.
        rate: peak learning rate it used.
        passes: over the batches.
    """

    losses: list[float]
    at: list[int]
    same: list[float]
    held: list[float]
    swapped: float
    rate: float
    passes: float


def check(case: Case) -> list[Finding]:
    """Trains a copy for some hundred steps as the user would, and names the curve."""
    if case.box.optimizer is None:
        return [Finding("curve", "SKIP", "nothing is trained")]
    run = _run(case)
    name, finding = _name(case, run)
    plots = {
        "curve": {
            "name": name,
            "losses": [v if math.isfinite(v) else None for v in run.losses],
            "at": run.at,
            "same": [v if math.isfinite(v) else None for v in run.same],
            "held": [v if math.isfinite(v) else None for v in run.held],
            "guess": case.notes.get("guess"),
        }
    }
    return [dataclasses.replace(finding, plots=plots)]


def _run(case: Case) -> _Run:
    held = case.held_out
    own = case.validation is None and bool(held)
    trained = case.batches[: len(case.batches) - len(case.held_out)] if own else case.batches
    trained, steps = paced(case, trained, case.effort.curve_steps, case.effort.curve_seconds / 2, _LEAST)
    shown = 2 if steps == case.effort.curve_steps else 1  # a slow model is looked at less
    held, same = case.glance(held[:shown]), case.glance(trained[:shown])
    every = max(1, steps // _LOOKS)
    over = case.effort.until(OVERTIME * case.effort.curve_seconds)
    at: list[int] = []
    before: list[float] = []
    validated: list[float] = []
    with case.box.trial() as model:
        assert case.box.optimizer is not None
        base = rates(case.box.optimizer)
        if not case.box.given and "suggestion" in case.notes:
            scale(case.box.optimizer, base, case.notes["suggestion"] / max(base))
        else:
            scale(case.box.optimizer, base, 1.0)

        def look(step: int) -> None:
            at.append(step)
            before.append(case.mean_loss(model, same))
            validated.append(case.mean_loss(model, held) if held else math.nan)

        def watch(step: int, _: float) -> bool:
            if (step + 1) % every == 0:
                look(step + 1)
            return not math.isfinite(before[-1])

        look(0)
        losses = train(case, model, case.box.optimizer, trained, steps, over=over, watch=watch)
        if at[-1] != len(losses):
            look(len(losses))
        swapped = case.mean_loss(model, tuple(_swap(case, b) for b in held)) if held else math.nan
        rate = max(float(g["lr"]) for g in case.box.optimizer.param_groups)
    return _Run(losses, at, before, validated, swapped, rate, len(losses) / len(trained))


def _swap(case: Case, batch: Any) -> Any:
    """The batch with each target given the inputs of the next sample."""
    assert case.form is not None
    targets = {t.data_ptr() for t in case.targets(batch).values()}

    def roll(t: Tensor) -> Tensor:
        mine = t.data_ptr() not in targets and t.dim() > case.dim and t.shape[case.dim] > 1
        return torch.roll(t, 1, case.dim) if mine else t

    return tree.change(batch, roll)


def _name(case: Case, run: _Run) -> tuple[str, Finding]:
    """Which of the curves it is, and what that means."""
    first, end, best = run.same[0], _last(run.same), min(v for v in run.same if math.isfinite(v))
    guess = case.notes.get("guess", math.nan) * case.notes.get("summed", 1)
    steps = len(run.losses)
    said = f"{steps} steps at {run.rate:.1e}: loss from {first:.3g} to {end:.3g}"
    size = max(abs(first), 1e-12)
    risen = end > first + (_EXPLODED - 1) * size and steps >= _FEW  # the first few may, and it may fall yet
    if not all(map(math.isfinite, (*run.losses, *run.same))) or risen:
        return "explosion", _finding(
            "FAIL",
            f"{said}: it explodes",
            end,
            "lower the rate by 10, warm it up, clip the gradient norm; look for extreme samples",
        )
    low = math.isfinite(guess) and end < 0.5 * guess
    fall = first - end
    if steps < _FEW:
        return "short", Finding("curve", "SKIP", f"{said}: time was up", advice="give it more time (without --quick)")
    rises = math.fsum(max(0.0, b - a) for a, b in zip(run.same, run.same[1:], strict=False))
    wide = max(run.same) - best > _WIDE * size
    if wide and rises > _SWINGS * max(first - best, 1e-12) and end > _HIGH * size:
        return "oscillation", _finding(
            "WARN",
            f"{said}: it oscillates",
            rises / max(first - best, 1e-12),
            "lower the rate by 3 to 10, or larger batches; warm it up",
        )
    if fall < _FLAT * size and not low:
        return "flat", _finding(
            "WARN",
            f"{said}: flat",
            end,
            "check, in this order: that labels belong to inputs, that gradients arrive, the rate (try ten times), "
            "capacity; some tasks are just slow to begin",
        )
    related = run.swapped - _last(run.held)
    half = [v for v, t in zip(run.same, run.at, strict=True) if t >= steps / 2]
    stands = half[0] - end < _STILL * size
    level = abs(end) > _SATURATED * (guess if math.isfinite(guess) else size)
    unseen = math.isfinite(run.swapped) and _last(run.held) > run.held[0] - _STILL * size
    if (stands or unseen) and level and not low and related < _BELONGS * size:
        return "early saturation", _finding(
            "WARN",
            f"{said}: early saturation, at what an answer gets that ignores the input",
            end,
            "check that labels belong to inputs and that inputs carry the information; then the rate, and capacity",
        )
    held = [v for v in run.held if math.isfinite(v)]
    rises_again = bool(held) and _last(held) - min(held) > _LOST * abs(held[0] - min(held))
    if rises_again and _last(held) > _OVERFITS * min(held) and run.passes > 1 and end < 0.7 * _last(held):
        return "overfitting", _finding(
            "WARN",
            f"{said}, while the held-out loss rises from {min(held):.3g} to {_last(held):.3g}: overfitting",
            _last(held) / min(held),
            "more data or augmentation, weight decay, dropout, a smaller model; stop early"
            + ("" if case.supply.complete else " (only a part of the data was used here)"),
        )
    text = f"{said}: it falls" if fall > 0 else f"{said}: low from the start"
    if held:
        text += f"; held-out {held[0]:.3g} to {_last(held):.3g}"
    return "falling", Finding("curve", "PASS", text, "last / first loss", end / size)


def _finding(verdict: Any, sentence: str, number: float, advice: str) -> Finding:
    return Finding("curve", verdict, sentence, "loss", number, advice, symptom=True)


def _last(values: list[float]) -> float:
    """Mean of the last tenth; NaN if there is nothing."""
    part = values[-max(1, len(values) // 10) :]
    return math.fsum(part) / len(part) if part else math.nan
