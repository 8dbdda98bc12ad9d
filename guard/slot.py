"""One guarded optimizer: where its signals come from, and the detectors that look at them."""

from __future__ import annotations

import math

import torch

from guard.bank import Bank
from guard.patching import StepPatch
from guard.run.live import LiveRun
from guard.signals import GradientReader, LossMeter
from guard.types import Signals


class Slot:
    """Reader, loss, signals and detectors of one optimizer.

    Attributes:
        patch: what stands in front of its `step`.
        called: `optimizer.step` was called since this was last reset; a GradScaler leaves it out on overflow.
    """

    __slots__ = ("bank", "called", "loss", "optimizer", "patch", "reader", "signals")

    def __init__(self, optimizer: torch.optim.Optimizer, bank: Bank, world: int = 1) -> None:
        self.optimizer, self.bank = optimizer, bank
        self.reader, self.signals, self.loss = GradientReader(optimizer, world), Signals(), LossMeter()
        self.patch: StepPatch
        self.called = False

    def measure(self, live: LiveRun, metrics: dict[str, float] | None) -> Signals:
        """Reads the gradients once, the loss, the rate and the loss scale.

        Args:
            live: the run.
            metrics: what was logged since the last tick.

        Returns:
            This slot's one `Signals` object, overwritten.
        """
        s = self.signals
        s.tick, s.step = live.tick, live.step
        s.grad_norm = self.reader.read(self.loss.pending)
        s.params = self.reader.count
        s.overflow = False
        lr = self.optimizer.param_groups[0].get("lr", math.nan)
        s.lr = lr if type(lr) is float else float(lr)
        s.lr_effective = live.effective_lr(s.lr) if live.scales_lr else s.lr
        s.metrics = metrics
        if live.scaler is not None:
            self._measure_scaled(s, live)
        s.loss_known = self.loss.known
        s.loss = self.loss.take(s.loss_scale, self.reader.along or 0.0)
        return s

    def _measure_scaled(self, s: Signals, live: LiveRun) -> None:
        """Under a GradScaler; a fused optimizer gets its gradients still scaled."""
        s.loss_scale = float(live.scaler.get_scale())
        still_scaled = getattr(self.optimizer, "grad_scale", None) is not None and s.loss_scale > 0
        live.grad_scale = s.loss_scale if still_scaled else 1.0
        s.grad_norm /= live.grad_scale
        found = getattr(self.optimizer, "found_inf", None)
        s.overflow = found is not None and live.scaling and bool(found)
