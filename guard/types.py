"""Values that cross rooms. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["info", "warning", "critical"]
Mode = Literal["observe", "enforce"]
Status = Literal["firing", "verifying", "resolved", "exhausted", "stopped", "observed", "ended"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
ENDED: frozenset[str] = frozenset({"resolved", "exhausted", "stopped", "observed", "ended"})

# One line of the journal; its keys are described in docs/design/journal.md.
Entry = dict[str, Any]


class Signals:
    """What was measured in one tick. One object per optimizer, overwritten every tick (see DESIGN §13 on costs).

    Attributes:
        tick: this call of the guarded step, from 0; only ever grows.
        step: completed steps before this one; goes back on a rollback.
        loss: loss of the step, unscaled, mean over micro-batches; NaN if `loss_known` is False.
        loss_known: a loss was recorded since the last step.
        grad_norm: global L2 norm over all gradients, unscaled. Inf or NaN only if a gradient is.
        lr: learning rate of the first parameter group, as the scheduler set it.
        lr_effective: the same after the guard's multiplier.
        loss_scale: of the GradScaler; 1.0 without one.
        overflow: the GradScaler left this step out (an ordinary event).
        params: parameter tensors that have a gradient.
        guess: loss of the best constant answer, read off the loss function in the first steps; NaN: not known.
        metrics: what `g.log` brought since the last tick, else None.
        deep: per-layer statistics, only on ticks on which a policy asked for them, else None.
    """

    __slots__ = (
        "deep",
        "grad_norm",
        "guess",
        "loss",
        "loss_known",
        "loss_scale",
        "lr",
        "lr_effective",
        "metrics",
        "overflow",
        "params",
        "step",
        "tick",
    )

    def __init__(
        self,
        tick: int = 0,
        step: int = 0,
        loss: float = math.nan,
        grad_norm: float = 0.0,
        lr: float = 0.0,
        *,
        loss_known: bool | None = None,
        lr_effective: float | None = None,
        loss_scale: float = 1.0,
        overflow: bool = False,
        params: int = 1,
        guess: float = math.nan,
        metrics: dict[str, float] | None = None,
        deep: dict[str, Any] | None = None,
    ) -> None:
        self.tick, self.step, self.loss, self.grad_norm, self.lr = tick, step, loss, grad_norm, lr
        self.loss_known = not math.isnan(loss) if loss_known is None else loss_known
        self.lr_effective = lr if lr_effective is None else lr_effective
        self.loss_scale, self.overflow, self.params = loss_scale, overflow, params
        self.guess, self.metrics, self.deep = guess, metrics, deep


@dataclass(frozen=True, slots=True)
class Detection:
    """A detector saw its fault.

    Args:
        detector: its name, e.g. ``loss_spike``.
        signal: the number that tripped it, e.g. ``loss``.
        value, threshold, baseline: that number, the limit it crossed, and what is usual (NaN where there is none).
        since: tick at which the fault began; a good checkpoint must be older than that.
        message: one sentence with the numbers in it.
    """

    detector: str
    signal: str
    value: float
    threshold: float
    baseline: float
    since: int
    message: str


@dataclass(slots=True)
class Result:
    """What one action did.

    Args:
        type: the action, e.g. ``scale_lr``.
        summary: one past-tense clause, e.g. ``halved the learning rate to 5e-4``.
        changes: what is different now, e.g. ``{"lr_multiplier": [1.0, 0.5]}``.
        standing: the change is still in force and can be undone (learning rate multiplier, precision).
    """

    type: str
    summary: str
    changes: dict[str, Any] = field(default_factory=dict)
    standing: bool = False


@dataclass(slots=True)
class Attempt:
    """The actions taken at one firing.

    Args:
        rung: index into the policy's ladder.
        tick, step: when.
        results: what each action did; in observe mode what it would have done.
        unavailable: ``(action, reason)`` of those left out.
        repeats: how many further times the same attempt was made.
    """

    rung: int
    tick: int
    step: int
    results: list[Result] = field(default_factory=list)
    unavailable: list[tuple[str, str]] = field(default_factory=list)
    repeats: int = 0


@dataclass(slots=True)
class Incident:
    """From firing to its end. Rebuilt from the journal by `guard.incidents.IncidentLog`.

    Args:
        status: firing, verifying, then one of resolved, exhausted, stopped, observed, ended (run over before a
            verdict).
        count: how often the trigger was satisfied.
        evidence: `detection` (value, threshold, baseline, since, message), `signals` before it, `outcome`
            (loss before, after, expected), `attached_to` if another incident owns its repair.
    """

    id: str
    policy: str
    detector: str
    severity: Severity
    status: Status
    opened_tick: int
    opened_step: int
    opened_at: float = 0.0
    closed_tick: int | None = None
    closed_at: float | None = None
    count: int = 1
    cause: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.status in ENDED
