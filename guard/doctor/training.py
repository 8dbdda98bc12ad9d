"""Steps of training, in the sandbox."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from guard.doctor.case import Case


def step(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> float:
    """One step; returns the loss before it. A loss that is not finite is not stepped on."""
    seen: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = case.loss(model, batch)
        seen.append(float(loss.detach()))
        if math.isfinite(seen[-1]):
            loss.backward()  # type: ignore[no-untyped-call]
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    else:
        closure()
        if math.isfinite(seen[0]):
            optimizer.step()
    return seen[0]


def train(
    case: Case,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Any],
    steps: int,
    *,
    over: Callable[[], bool] = lambda: False,
    watch: Callable[[int, float], bool] = lambda _, __: False,
) -> list[float]:
    """Losses of up to `steps` steps, the batches in turn.

    Args:
        over: time is up.
        watch: gets step and loss; True ends it.
    """
    losses: list[float] = []
    for i in range(steps):
        if over() and losses:
            break
        losses.append(step(case, model, optimizer, batches[i % len(batches)]))
        if not math.isfinite(losses[-1]) or watch(i, losses[-1]):
            break
    return losses


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """The peak learning rate of each group: a scheduler that warms up has set another for the first step."""
    return [max(float(g["lr"]), float(g.get("initial_lr", 0.0))) for g in optimizer.param_groups]


def scale(optimizer: torch.optim.Optimizer, base: Sequence[float], factor: float) -> None:
    """Sets every group's rate to a multiple of its base."""
    for group, rate in zip(optimizer.param_groups, base, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * factor)
        else:
            group["lr"] = rate * factor


def paced(case: Case, batches: Sequence[Any], steps: int, seconds: float, least: int) -> tuple[tuple[Any, ...], int]:
    """Batches and steps that fit into a time: fewer steps first, and from `least` on smaller batches.

    What is compared must have the same steps, however slow the machine is at the moment.
    """
    each = _seconds(case, batches[0])
    fit = seconds / each if each > 0 else math.inf
    if fit >= least:
        return tuple(batches), int(min(steps, fit))
    count = max(min(4, case.size), int(case.size * fit / least))
    return tuple(case.few(count, b) for b in batches), least


OVERTIME = 1.5  # times the planned time: then a loop ends, however far it is; what it could not show is left open


def _seconds(case: Case, batch: Any) -> float:
    """Of one step with such a batch, the quicker of two."""
    if "step_seconds" not in case.notes:
        taken = []
        with case.box.trial() as model:
            assert case.box.optimizer is not None
            for _ in range(2):
                begun = case.effort.clock()
                step(case, model, case.box.optimizer, batch)
                taken.append(case.effort.clock() - begun)
        case.notes["step_seconds"] = min(taken)
    return float(case.notes["step_seconds"])
