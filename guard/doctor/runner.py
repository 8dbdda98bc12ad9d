"""The examination from start to end."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from guard.doctor.case import Case, opened, skipped
from guard.doctor.checks import activations, curve, data, gradients, leakage, loss, overfit, precision, rate, weights
from guard.doctor.effort import Effort
from guard.doctor.explain import explain
from guard.doctor.finding import ORDER, TITLES, Finding, Report
from guard.doctor.setup import Setup
from guard.errors import UsageError

Check = Callable[[Case], list[Finding]]
Progress = Callable[[str, int, int], None]

CHECKS: dict[str, Check] = {
    "data": data.check,
    "loss": loss.check,
    "weights": weights.check,
    "activations": activations.check,
    "gradients": gradients.check,
    "leakage": leakage.check,
    "overfit": overfit.check,
    "rate": rate.check,
    "precision": precision.check,
    "curve": curve.check,
}
assert tuple(CHECKS) == ORDER
_NEEDS_OUTPUT = {"activations", "leakage"}
_NEEDS_NOTHING = {"data", "weights"}


def run(setup: Setup, effort: Effort, only: Sequence[str] | None, seed: int, progress: Progress | None) -> Report:
    """All checks on one set-up; see `guard.doctor.examine`."""
    wanted = ORDER if only is None else tuple(name for name in ORDER if name in only)
    unknown = [name for name in only or () if name not in ORDER]
    if unknown:
        raise UsageError(f"there is no check {unknown[0]!r}; there are: {', '.join(ORDER)}")
    begun = effort.clock()
    findings: list[Finding] = []
    with _quietly(), opened(setup, effort, seed) as case:
        for number, name in enumerate(wanted):
            if progress:
                progress(TITLES[name], number, len(wanted))
            stop = _stop(case, name, findings)
            findings += [skipped(name, stop)] if stop else _checked(case, name)
        if progress:
            progress("", len(wanted), len(wanted))
        about = _about(case)
    return Report(explain(findings), effort.clock() - begun, about)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without torch's warnings: what matters of them is a finding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _checked(case: Case, name: str) -> list[Finding]:
    """What a check finds; one that fails itself is told and does not end the examination."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # what a user's model prints at every step
            return CHECKS[name](case)
    except Exception as error:  # noqa: BLE001 - a user's code, run in ways it was not written for
        case.box.reset()
        what = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        return [skipped(name, f"could not be looked at: {what}")]


def _stop(case: Case, name: str, findings: Sequence[Finding]) -> str:
    """Why a check makes no sense any more; empty if it does."""
    if name in _NEEDS_NOTHING:
        return ""
    stopper = next((f for f in findings if f.stops and f.bad and name in f.explains), None)
    if stopper is not None:
        return f"not run: see {stopper.check}"
    if case.form is None:
        return "not run: no batch could be run through the model"
    if name in _NEEDS_OUTPUT:
        return ""
    if case.problem is not None:
        return "not run: there is no loss" if name != "loss" else ""
    return ""


def _about(case: Case) -> dict[str, str]:
    setup = case.setup
    count = sum(p.numel() for p in setup.model.parameters())
    name = getattr(setup.loss, "__name__", type(setup.loss).__name__) if setup.loss is not None else "the model's own"
    length = "" if case.supply.length is None else f", {case.supply.length} batches a pass"
    about: dict[str, Any] = {
        "model": f"{type(setup.model).__name__}, {count:,} parameters",
        "data": f"{len(case.supply.batches)} batches read, {case.size} samples each{length}",
        "loss": name,
        "optimizer": type(setup.optimizer).__name__ if setup.optimizer is not None else "none given",
    }
    if setup.dtype is not None:
        about["dtype"] = str(setup.dtype).removeprefix("torch.")
    return about
