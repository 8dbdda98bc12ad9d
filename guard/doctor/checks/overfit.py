"""Can the model learn one batch by heart? What cannot memorise a few samples will not learn many."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from guard.doctor.case import Case
from guard.doctor.finding import Finding, Verdict
from guard.doctor.form import Outcome
from guard.doctor.training import train

_PASS, _PARTIAL = 0.01, 0.5  # of the first loss
_RATES = (1e-3, 3e-3, 1e-2, 3e-4, 3e-2)  # of Adam; which one suits is not the question here
_TRY = 30  # steps with each rate, before the best one goes on
_FAIR = 100  # steps, below which a model that ran out of time has not failed
_SAMPLES, _DENSE, _TOKENS = 16, 4, 2  # few sequences: many that begin alike cannot be told apart at their first places
_LATER = ("rate", "curve")


def check(case: Case) -> list[Finding]:
    """Trains a copy on a few samples, without dropout, until its loss is below 1 % of the first."""
    batch = case.few((_TOKENS if case.tokens else _DENSE) if case.per_position else _SAMPLES)
    over = case.effort.until(case.effort.overfit_seconds)
    with case.box.trial(quiet=True) as model:
        outcome = case.run(model, batch)
        floor = _floor(case, outcome)
        if not outcome.loss.requires_grad:
            return [
                Finding(
                    "overfit", "FAIL", "nothing can be trained: the loss has no gradient", symptom=True, explains=_LATER
                )
            ]
    first = float(outcome.loss.detach())
    if not math.isfinite(first):
        return [Finding("overfit", "FAIL", f"the first loss is {first}", "loss", first, symptom=True, explains=_LATER)]
    if case.facts.kind != "other" and abs(first - floor) < 1e-6 * max(1.0, abs(first)):
        return [Finding("overfit", "PASS", f"the first loss, {first:.3g}, is as low as it can be", "loss", first)]
    best: list[float] = []
    for rate in _RATES:
        losses, _ = _memorise(case, batch, rate, min(_TRY, case.effort.overfit_steps), floor=floor, over=over)
        if not best or _end(losses) < _end(best):
            best, chosen = losses, rate
        if _share(first, _end(best), floor) < _PASS or over():
            break
    accuracy = math.nan
    if _share(first, _end(best), floor) >= _PASS and not over():
        losses, accuracy = _memorise(case, batch, chosen, case.effort.overfit_steps, floor=floor, over=over)
        best = losses if _end(losses) <= _end(best) else best
    return [_judge(case, batch, first, best, floor=floor, accuracy=accuracy, hurried=over())]


def _memorise(
    case: Case, batch: Any, rate: float, steps: int, *, floor: float, over: Callable[[], bool]
) -> tuple[list[float], float]:
    """Losses of training on one batch, and the share of labels that are right at the end."""
    with case.box.trial(quiet=True) as model:
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
        start: list[float] = []

        def enough(_: int, loss: float) -> bool:
            start.append(loss)
            return _share(start[0], loss, floor) < 0.5 * _PASS

        losses = train(case, model, optimizer, [batch], steps, over=over, watch=enough)
        return losses, _accuracy(case, model, batch)


def _end(losses: list[float]) -> float:
    """The best loss; one that diverged before that does not count against it."""
    finite = [v for v in losses if math.isfinite(v)]
    return min(finite, default=math.inf)


def _share(first: float, last: float, floor: float) -> float:
    """What is left of the first loss, both above the floor; a loss that may be negative has none, and passes at 0."""
    if first <= floor:
        return 0.0 if last < first - 0.5 * abs(first) - 0.1 else 1.0
    return max(0.0, (last - floor) / (first - floor))


@torch.no_grad()
def _accuracy(case: Case, model: nn.Module, batch: Any) -> float:
    if case.facts.kind != "classes":
        return math.nan
    outcome = case.run(model, batch)
    main, target = outcome.main, outcome.target
    if main is None or not isinstance(target, Tensor) or target.is_floating_point():
        return math.nan
    axis = 1 if main.dim() > 1 and main.shape[1] == case.facts.classes and main.dim() == target.dim() + 1 else -1
    guess = main.argmax(axis)
    if guess.numel() != target.numel():
        return math.nan
    valid = target.reshape(-1) != case.facts.ignore
    return float((guess.reshape(-1) == target.reshape(-1))[valid].float().mean())


def _floor(case: Case, outcome: Outcome) -> float:
    """The least a perfect model can get: 0, but for smoothed and soft labels."""
    smoothing = float(getattr(case.setup.loss, "label_smoothing", 0.0) or 0.0)
    if smoothing and case.facts.classes > 1:
        c = case.facts.classes
        top, rest = 1 - smoothing + smoothing / c, smoothing / c
        return -top * math.log(top) - (c - 1) * rest * math.log(rest)
    target, main = outcome.target, outcome.main
    if not isinstance(target, Tensor) or not target.is_floating_point() or case.facts.weighted:
        return 0.0
    t = target.detach().double()
    if case.facts.kind == "labels":
        return float((torch.special.entr(t) + torch.special.entr(1 - t)).mean())
    if case.facts.kind == "classes" and main is not None and t.shape == main.shape and t.dim() > 1:
        return float(torch.special.entr(t).sum(1).mean())
    return 0.0


def _judge(
    case: Case, batch: Any, first: float, losses: list[float], *, floor: float, accuracy: float, hurried: bool
) -> Finding:
    share, steps = _share(first, _end(losses), floor), len(losses)
    count = next((len(t) for t in case.inputs(batch).values()), 0)
    said = f"{count} samples: loss from {first:.3g} to {_end(losses):.3g} in {steps} steps"
    if not math.isnan(accuracy):
        said += f", {accuracy:.0%} of the labels right"
    plots = {"overfit": [v for v in losses if math.isfinite(v)]}
    measure = "% of the first loss"
    if share < _PASS:
        return Finding("overfit", "PASS", said, measure, 100 * share, plots=plots)
    unfinished = hurried and steps < _FAIR
    if unfinished:
        verdict: Verdict = "PASS" if accuracy == 1.0 else "SKIP"
        advice = "give it more time (without --quick)"
        return Finding("overfit", verdict, said + "; time was up", measure, 100 * share, advice, plots)
    if share < _PARTIAL:
        advice = "enough for large models; else more capacity, less regularisation"
        return Finding("overfit", "WARN", said + " (partial)", measure, 100 * share, advice, plots, symptom=True)
    return Finding(
        "overfit",
        "FAIL",
        said + ": it cannot memorise them",
        measure,
        100 * share,
        "look for labels that do not belong to the inputs, a wrong loss, a cut graph, or inputs that lose what matters",
        plots,
        symptom=True,
        explains=_LATER,
    )
