"""A small guarded run in which an action is taken at a step of the test's choice."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

import guard
from guard.incidents import read_journal
from guard.types import Result


def call(*actions: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A policy that takes `actions` when it is called (`Run.go(calls=...)`)."""
    return {
        "name": "on-call",
        "trigger": {"type": "threshold", "signal": "called", "above": 0.5},
        "actions": list(actions),
        "resolve_after": 3,
        **more,
    }


def batch(index: int) -> Any:
    generator = torch.Generator().manual_seed(index)
    x = torch.randn(8, 4, generator=generator)
    return x, x[:, :1].sin()


class Run:
    """Model, optimizer and guard.

    Args:
        folder: the run directory is made in it.
        policies: of the guard; without any there is no guard.
        optimizer: parameters -> optimizer.
        options: of `guard.attach`.
    """

    def __init__(
        self,
        folder: Path,
        *policies: dict[str, Any],
        optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.AdamW(p, lr=1e-2),
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = optimizer(self.model.parameters())
        self.scaler = options.get("scaler")
        self.run_dir = folder / "run"
        self.guard = guard.attach(
            self.model,
            self.optimizer,
            run_dir=self.run_dir,
            receivers=[],
            policy={"version": 1, "checkpoints": {"every": 4, "probation": 2}, "policies": list(policies)},
            **options,
        )
        self._left: set[int] = set()

    def go(
        self, steps: int, calls: Collection[int] = (), accumulate: int = 1, each: Callable[[int], None] = lambda _: None
    ) -> Run:
        """Trains until `steps` steps are done.

        Args:
            calls: steps at which the policy fires, once each.
            each: told of every step before it.
        """
        self._left |= set(calls)
        g = self.guard
        for micro, (x, y) in enumerate(g.batches(batch, steps, accumulate), 1):
            if g.step in self._left:
                self._left.remove(g.step)
                g.log(called=1.0)
            each(g.step)
            g.backward(mse_loss(self.model(x), y))
            if micro % accumulate == 0:
                if self.scaler is None:
                    self.optimizer.step()
                else:
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                self.optimizer.zero_grad()
        return self

    def close(self) -> Run:
        self.guard.close()
        return self

    @property
    def results(self) -> list[Result]:
        """What the policy's actions did, in order."""
        return [r for i in self.guard.incidents for a in i.attempts for r in a.results]

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """What was not available, and why."""
        return [u for i in self.guard.incidents for a in i.attempts for u in a.unavailable]

    @property
    def evidence(self) -> dict[str, Any]:
        return self.guard.incidents[0].evidence

    @property
    def journal(self) -> list[dict[str, Any]]:
        return read_journal(self.run_dir)

    @property
    def rates(self) -> list[float]:
        """The rate that was used, tick by tick."""
        return [row[5] for row in self.guard.signals]

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return copy.deepcopy(self.model.state_dict())

    @property
    def failures(self) -> list[str]:
        return [i.evidence["detection"]["message"] for i in self.guard.incidents if i.detector == "plugin_failure"]


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
