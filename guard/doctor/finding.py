"""What a check says, and what they say together. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["PASS", "WARN", "FAIL", "SKIP"]

ORDER = (
    "data",
    "loss",
    "weights",
    "activations",
    "gradients",
    "leakage",
    "overfit",
    "rate",
    "precision",
    "curve",
)
TITLES = {
    "data": "Data",
    "loss": "Loss at initialisation",
    "weights": "Weights at initialisation",
    "activations": "Activations",
    "gradients": "Gradients",
    "leakage": "Batch leakage",
    "overfit": "Overfit one batch",
    "rate": "Learning rate",
    "precision": "Precision",
    "curve": "Short run",
}
_WORSE: dict[Verdict, int] = {"SKIP": 0, "PASS": 1, "WARN": 2, "FAIL": 3}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a check found.

    Args:
        check: its name, one of `ORDER`.
        verdict: FAIL: training will not work like this; WARN: look at it before a long run; SKIP: not looked at, or
            explained by what another check found.
        sentence: what was found, one sentence.
        measure, number: what was measured, with its unit, and the value; None where there is no number.
        advice: what to do about it.
        plots: plain lists and numbers for the page, by name.
        symptom: other faults can be its cause; then it is not counted a second time.
        explains: checks whose symptoms this finding accounts for, if it is a WARN or FAIL.
        stops: those checks make no sense any more, and are not run.
    """

    check: str
    verdict: Verdict
    sentence: str
    measure: str = ""
    number: float | None = None
    advice: str = ""
    plots: Mapping[str, Any] = field(default_factory=dict)
    symptom: bool = False
    explains: tuple[str, ...] = ()
    stops: bool = False

    @property
    def bad(self) -> bool:
        return self.verdict in ("WARN", "FAIL")


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of one examination, in the order of the checks.

    Args:
        findings: at least one of each check that was asked for.
        seconds: how long it took.
        about: what was examined: model, parameters, loader, loss, optimizer, as short texts.
    """

    findings: tuple[Finding, ...]
    seconds: float = 0.0
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The worst of all findings."""
        return worst(self.findings)

    @property
    def checks(self) -> tuple[str, ...]:
        """Names of the checks it holds findings of."""
        return tuple(dict.fromkeys(f.check for f in self.findings))

    def of(self, check: str) -> tuple[Finding, ...]:
        """The findings of one check, the worst first."""
        return tuple(sorted((f for f in self.findings if f.check == check), key=lambda f: -_WORSE[f.verdict]))

    def verdict_of(self, check: str) -> Verdict:
        """The worst finding of one check; SKIP if it was not asked for."""
        return worst(self.of(check))

    def plots(self, name: str) -> Any:
        """The first finding's data for the plot called `name`, or None."""
        return next((f.plots[name] for f in self.findings if name in f.plots), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; numbers that are not finite become text."""
        return {
            "verdict": self.verdict,
            "seconds": round(self.seconds, 2),
            "about": dict(self.about),
            "checks": [
                {
                    "check": check,
                    "verdict": self.verdict_of(check),
                    "findings": [
                        {
                            "verdict": f.verdict,
                            "finding": f.sentence,
                            "measure": f.measure,
                            "number": _plain(f.number),
                            "advice": f.advice,
                            "data": _plain(f.plots),
                        }
                        for f in self.of(check)
                    ],
                }
                for check in self.checks
            ],
        }


def worst(findings: tuple[Finding, ...]) -> Verdict:
    """The worst verdict; SKIP if there is nothing else."""
    return max((f.verdict for f in findings), key=_WORSE.__getitem__, default="SKIP")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value
