"""Fewer, better averaged updates: the gradients of several windows make one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class Held:
    """Gradients of one optimizer that wait for their update."""

    count: int = 0
    sums: dict[Tensor, Tensor] = field(default_factory=dict)

    def copy(self) -> Held:
        return Held(self.count, {p: g.clone() for p, g in self.sums.items()})


class Accumulation:
    """Holds gradients of accepted windows back until there are `factor` of them, then gives the optimizer their mean.

    The loop's own `zero_grad` and its own accumulation stay as they are: a held gradient is a copy.

    Attributes:
        factor: windows per update.
        on: something is held, or is to be.
        held: the last window's update was left out.
        first_tick: from which on `factor` counts.
    """

    def __init__(self) -> None:
        self.factor, self.on, self.held = 1, False, False
        self.first_tick = 0
        self._held: dict[torch.optim.Optimizer, Held] = {}

    def set(self, factor: int, first_tick: int) -> None:
        """From `first_tick` on, so many windows make an update; what is held already counts."""
        self.factor, self.first_tick = factor, first_tick
        self.on = factor > 1 or bool(self._held)

    @torch.no_grad()
    def due(self, optimizer: torch.optim.Optimizer, tick: int) -> bool:
        """Takes this window's gradients. True: the update is due, and the mean of all held windows is in place."""
        self.held = False
        if tick < self.first_tick:
            return True
        held = self._held.setdefault(optimizer, Held())
        held.count += 1
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        if held.count < self.factor:
            for p in parameters:
                if p.grad is not None:
                    held.sums[p] = held.sums[p].add_(p.grad) if p in held.sums else p.grad.detach().clone()
                    p.grad = None if p.grad.is_sparse else p.grad.detach().zero_()
            self.held = True
            return False
        for p in parameters:
            earlier = held.sums.get(p)
            if earlier is not None:
                p.grad = earlier if p.grad is None else p.grad.detach().add_(earlier)
            if p.grad is not None and held.count > 1:
                p.grad = p.grad.detach().div_(held.count)
        del self._held[optimizer]
        self.on = self.factor > 1 or bool(self._held)
        return True

    def state(self) -> Any:
        """A copy of what is held, for a snapshot; None: nothing."""
        return {o: h.copy() for o, h in self._held.items()} if self._held else None

    def load(self, state: Any) -> None:
        """Puts back what `state` said; the factor stays as it is."""
        self._held = {o: h.copy() for o, h in (state or {}).items()}
        self.on = self.factor > 1 or bool(self._held)
