"""The shape of a case: a small training run that goes wrong, or, for a control, only looks odd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

Kind = Literal[
    "non_finite", "loss_spike", "grad_explosion", "oscillation", "divergence", "flat", "overfitting", "healthy"
]
Remedy = Literal["clip", "lower_lr", "rollback", "rollback_bf16", "skip_batch", "stop", "none"]

# How many ticks after the fault it may be told, by kind.
DELAY: dict[Kind, int] = {
    "non_finite": 1,
    "loss_spike": 2,
    "grad_explosion": 2,
    "oscillation": 120,
    "divergence": 100,
    "flat": 260,
    "overfitting": 200,
}


@dataclass
class Run:
    """What one training run needs.

    Args:
        batches: index -> batch; the same batch whenever it is asked for.
        loss: takes the model and a batch.
        evaluate: the held-out loss by which the run is judged; lower is better.
        dtype: of autocast; None: none.
        validate: every how many steps the held-out loss is logged; 0: never.
        iterate: one iteration if it is none of the usual kind (closures, several optimizers).
    """

    model: nn.Module
    optimizer: Any
    batches: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], Tensor]
    steps: int
    evaluate: Callable[[nn.Module], float]
    scheduler: Any = None
    scaler: Any = None
    dtype: torch.dtype | None = None
    accumulate: int = 1
    validate: int = 0
    iterate: Callable[[Run, Any, Hooks], Tensor] | None = None

    def held_out(self) -> float:
        """`evaluate`, in eval mode, without a trace."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]), eval_mode(self.model):
            return float(self.evaluate(self.model))


@dataclass(frozen=True)
class Hooks:
    """What a loop calls, with or without a guard."""

    backward: Callable[[Tensor], Any]
    autocast: Any = torch.autocast


@dataclass(frozen=True)
class Case:
    """One fault, with the same run without it.

    Args:
        source: where it was reported, in a few words.
        fault_step: first step at which it can be seen (0: from the start); None for controls.
        detectors: any of them is the right one.
        remedy: what brings the run back to its healthy twin; stop: nothing inside the loop does.
        build: seed, with the fault or without -> run.
        transient: does not come back when the step is taken again.
        delay: in place of the kind's.
    """

    name: str
    source: str
    kind: Kind
    fault_step: int | None
    detectors: frozenset[str]
    remedy: Remedy
    build: Callable[[int, bool], Run] = field(repr=False)
    transient: bool = False
    delay: int | None = None

    def make(self, seed: int) -> Run:
        torch.manual_seed(seed)
        return self.build(seed, True)

    def twin(self, seed: int) -> Run:
        torch.manual_seed(seed)
        return self.build(seed, False)

    @property
    def healthy(self) -> bool:
        return self.kind == "healthy"

    def __str__(self) -> str:
        return self.name


CASES: list[Case] = []


def case(
    source: str,
    kind: Kind,
    fault_step: int | None,
    detectors: str,
    remedy: Remedy,
    *,
    transient: bool = False,
    delay: int | None = None,
) -> Callable[[Callable[[int, bool], Run]], Callable[[int, bool], Run]]:
    """Makes a case of a function ``(seed, bad) -> Run``; its name is the case's."""

    def add(build: Callable[[int, bool], Run]) -> Callable[[int, bool], Run]:
        CASES.append(
            Case(
                build.__name__, source, kind, fault_step, frozenset(detectors.split()), remedy, build, transient, delay
            )
        )
        return build

    return add


def control(source: str) -> Callable[[Callable[[int, bool], Run]], Callable[[int, bool], Run]]:
    return case(source, "healthy", None, "", "none")


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)
