"""The learning rate: a range test, rates from the same start, the schedule, and the optimizer's constants."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from guard.doctor.case import Case
from guard.doctor.checks import _optimizer
from guard.doctor.finding import Finding, Verdict
from guard.doctor.form import samples
from guard.doctor.training import OVERTIME, paced, rates, scale, step, train

_LEAST_RANGE, _LEAST_SWEEP = 40, 15  # steps; slow models get smaller batches rather than fewer
_COMPARED = 3  # rates; fewer say nothing
_LOWEST, _HIGHEST = 1e-7, 10.0
_SMOOTH = 0.8  # of the moving average, with bias correction
_DIVERGED = 4.0  # times the best smoothed loss
_EVALUATED = 4  # batches on which a rate is judged, before and after
# A short run favours higher rates than a long one: a rate may stand far below a good one of a few dozen steps, and does
# in as many times the steps what that does. A factor of 50 makes of 30 steps 1,500, of 300 it makes 9,000.
_LOW: tuple[tuple[Verdict, float, float], ...] = (  # progress against the best's is below; a good rate / rate is above
    ("FAIL", 0.01, 300.0),
    ("WARN", 0.12, 50.0),
)
_ENOUGH = 0.1  # of the planned steps: a slow rate that is there by then is not too slow
_GOOD = 0.9  # progress against the best's
_HIGH = 0.25  # progress against the best's, when that stands a factor of 10 lower; some dozen steps overshoot easily
_THROWN, _BEHIND = 1.25, 0.25  # highest loss / the best's highest; what is missing of the best's fall at the end
_LEARNS = 0.02  # of the first loss: less, and no rate has been shown to work
_LATER = ("curve",)


@dataclass(frozen=True, slots=True)
class _Test:
    """A range test: rates, smoothed losses, and what is read off them; None: there is no such point."""

    rates: list[float]
    losses: list[float]
    steepest: float | None
    diverges: float | None


@dataclass(frozen=True, slots=True)
class _Tried:
    """One rate, from the same start as all others."""

    rate: float
    after: float  # mean loss on the same batches; Inf: it diverged
    highest: float  # loss of a step


def check(case: Case) -> list[Finding]:
    """Range test, sweep, the rate as it is against a tenth and ten times of it, schedule, Adam's eps."""
    optimizer = case.box.optimizer
    if optimizer is None:
        return [Finding("rate", "SKIP", "nothing is trained")]
    fixed = _optimizer.check(case)
    base = rates(optimizer)
    current = max(base)
    if current <= 0 or not math.isfinite(current):
        return fixed
    trained = case.batches[: len(case.batches) - len(case.held_out)] if case.validation is None else case.batches
    trained = trained or case.batches
    test = _range_test(case, trained, base)
    tried, start = _sweep(case, trained, base, test)
    plots = {
        "range": dataclasses.asdict(test),
        "sweep": {
            "rates": [t.rate for t in tried],
            "losses": [t.after if math.isfinite(t.after) else None for t in tried],
            "start": start,
            "current": current if case.box.given else None,
        },
    }
    found = [*fixed, _judge(case, tried, start, test)]
    return [dataclasses.replace(found[0], plots=plots), *found[1:]]


def _range_test(case: Case, batches: Sequence[Any], base: list[float]) -> _Test:
    """Rates and smoothed losses while the rate grows exponentially, until divergence."""
    batches, count = paced(case, batches, case.effort.range_steps, case.effort.range_seconds, _LEAST_RANGE)
    over = case.effort.until(OVERTIME * case.effort.range_seconds)
    used: list[float] = []
    smooth: list[float] = []
    with case.box.trial() as model:
        assert case.box.optimizer is not None
        average = 0.0
        for i in range(count):
            rate = _LOWEST * (_HIGHEST / _LOWEST) ** (i / (count - 1))
            scale(case.box.optimizer, base, rate / max(base))
            loss = step(case, model, case.box.optimizer, batches[i % len(batches)])
            average = _SMOOTH * average + (1 - _SMOOTH) * loss
            value = average / (1 - _SMOOTH ** (i + 1))
            if not math.isfinite(value):
                break
            used.append(rate)
            smooth.append(value)
            if over() or _has_diverged(smooth):
                break
    return _Test(used, smooth, *_read(used, smooth))


def _has_diverged(smooth: list[float]) -> bool:
    best = min(smooth)
    return smooth[-1] - best > (_DIVERGED - 1) * max(abs(best), 0.1 * abs(smooth[0]), 1e-12)


def _read(used: list[float], smooth: list[float]) -> tuple[float | None, float | None]:
    """Rate of steepest descent, and rate at which the loss left its lowest region for good."""
    if len(smooth) < 8:
        return None, used[-1] if used and used[-1] < _HIGHEST * 0.99 else None
    lowest = min(range(len(smooth)), key=smooth.__getitem__)
    if smooth[0] - smooth[lowest] < _LEARNS * abs(smooth[0]):
        return None, None
    slopes = [smooth[i + 1] - smooth[i - 1] for i in range(1, lowest)]
    steepest = used[1 + min(range(len(slopes)), key=slopes.__getitem__)] if slopes and min(slopes) < 0 else None
    limit = smooth[lowest] + 0.5 * abs(smooth[0] - smooth[lowest]) + 0.1 * abs(smooth[0])
    diverges = next((used[i] for i in range(lowest, len(smooth)) if smooth[i] > limit), None)
    return steepest, diverges


def _sweep(case: Case, batches: Sequence[Any], base: list[float], test: _Test) -> tuple[list[_Tried], float]:
    """Every rate for the same steps on the same batches from the same weights; and the loss before."""
    candidates = _candidates(case, max(base), test)
    time = case.effort.rate_seconds / len(candidates)
    batches, steps = paced(case, batches, case.effort.rate_steps, time, _LEAST_SWEEP)
    case.notes["smaller"] = samples(case.form, batches[0])[0] < case.size if case.form else False
    judged = case.glance(batches[: _EVALUATED if steps == case.effort.rate_steps else 1])
    with case.box.trial() as model:
        start = case.mean_loss(model, judged)
    tried = []
    over = case.effort.until(OVERTIME * case.effort.rate_seconds)
    for rate in candidates:
        if over():
            break
        with case.box.trial() as model:
            assert case.box.optimizer is not None
            scale(case.box.optimizer, base, rate / max(base))
            losses = train(case, model, case.box.optimizer, batches, steps)
            after = case.mean_loss(model, judged) if all(map(math.isfinite, losses)) else math.inf
            tried.append(_Tried(rate, after if math.isfinite(after) else math.inf, max(losses)))
    return sorted(tried, key=lambda t: t.rate), start


def _candidates(case: Case, current: float, test: _Test) -> list[float]:
    """The rate as it is, a tenth and ten times of it; and some below the lowest point of the range test."""
    wanted = [current, current / 10, current * 10] if case.box.given else []
    if test.losses:
        lowest = test.rates[min(range(len(test.losses)), key=test.losses.__getitem__)]
        wanted += [r for r in (lowest / 3, lowest / 10, lowest / 30, lowest / 100) if r >= _LOWEST]
        wanted = wanted or [lowest]
    kept: list[float] = []
    for rate in wanted:
        if all(not 0.55 < rate / other < 1.8 for other in kept):
            kept.append(rate)
    return kept


def _judge(case: Case, tried: list[_Tried], start: float, test: _Test) -> Finding:
    assert case.box.optimizer is not None
    current = max(rates(case.box.optimizer))
    if len(tried) < _COMPARED:
        return Finding(
            "rate", "SKIP", "time was up before rates could be compared", advice="give it more time (without --quick)"
        )
    best = min(tried, key=lambda t: t.after)
    gain = start - best.after
    if not math.isfinite(best.after) or gain < _LEARNS * max(abs(start), 1e-12):
        if start < 0.3 * case.notes.get("guess", -math.inf):
            return Finding(
                "rate", "PASS", f"the loss is low from the start ({start:.3g}); no rate improves it much", "loss", start
            )
        return Finding(
            "rate",
            "SKIP",
            f"no rate from {tried[0].rate:.1e} to {tried[-1].rate:.1e} lowers the loss within the trial",
            "best change of the loss",
            -gain,
            "the learning rate is not the problem: look at the other checks first; or the task is hard to begin with",
        )
    suggestion = best.rate / 2
    case.notes["suggestion"] = suggestion
    points = f"steepest descent at {test.steepest:.1e}" if test.steepest else "no steepest point"
    points += f", divergence at {test.diverges:.1e}" if test.diverges else ", no divergence up to the end"
    if not case.box.given:
        return Finding("rate", "PASS", f"no optimizer was given; {points}", "suggested rate (AdamW)", suggestion)
    own = next(t for t in tried if t.rate == current)
    compared = _compared(tried, current, start)
    fault = _too_high(case, own, best, start) or _too_low(case, own, best, tried, start)
    if fault is None:
        where = " on smaller batches" if case.notes["smaller"] else ""
        said = f"{current:.1e} works{where}: {compared}; {points}; half of the best is {suggestion:.1e}"
        return Finding("rate", "PASS", said, "suggested rate", suggestion)
    verdict, sentence = fault
    said = f"{current:.1e} is {sentence}; {compared}"
    advice = f"try {suggestion:.1e} (half of the best in a short run)"
    return Finding("rate", verdict, said, "learning rate", current, advice, symptom=True, explains=_LATER)


def _too_high(case: Case, own: _Tried, best: _Tried, start: float) -> tuple[Verdict, str] | None:
    gain, ratio = start - best.after, best.rate / own.rate
    progress = (start - own.after) / gain
    if math.isinf(own.after):
        return "FAIL", "too high: the loss diverges"
    if case.notes["smaller"]:  # noisier than the user's batches: no lower rate can be asked for on their account
        return None
    if progress <= 0.0 and ratio < 0.5:
        return "FAIL", f"too high: the loss ends at {own.after:.3g}, above its start of {start:.3g}"
    if progress < _HIGH and ratio <= 0.15:
        return "WARN", f"high: it gets {progress:.0%} of what {best.rate:.1e} gets"
    thrown = own.highest > best.highest + (_THROWN - 1) * abs(best.highest)
    if thrown and progress < 1 - _BEHIND and ratio < 0.4:
        return "WARN", f"high: the loss is thrown up to {own.highest:.3g} before it falls"
    return None


def _too_low(case: Case, own: _Tried, best: _Tried, tried: list[_Tried], start: float) -> tuple[Verdict, str] | None:
    gain = start - best.after
    progress = (start - own.after) / gain
    good = min(t.rate for t in tried if start - t.after >= _GOOD * gain) / own.rate
    planned = case.setup.steps
    if planned is not None and case.effort.rate_steps * good < _ENOUGH * planned:
        return None
    for verdict, share, factor in _LOW:
        if progress < share and good >= factor:
            return verdict, f"too low: it gets {max(progress, 0):.1%} of what {best.rate:.1e} gets"
    return None


def _compared(tried: list[_Tried], current: float, start: float) -> str:
    """The rate as it is beside a tenth and ten times of it."""

    def at(factor: float) -> str:
        near = next((t for t in tried if 0.55 < t.rate / (current * factor) < 1.8), None)
        return "?" if near is None else "diverged" if math.isinf(near.after) else f"{near.after:.3g}"

    return f"loss {start:.3g} becomes {at(1)}; with a tenth {at(0.1)}, with ten times {at(10)}"
