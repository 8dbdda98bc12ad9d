"""The loss of a step, put together from what the loop shows."""

from __future__ import annotations

import math

import torch


class LossMeter:
    """Adds up micro-batch losses until the step asks for them.

    A loss that is *stated* (`g.backward`, `g.record`) is the undivided loss of one micro-batch: the step's loss is
    their mean. One that is only *heard* (from `torch.autograd.backward`) is already divided and perhaps scaled: the
    step's loss is their sum without the loss scale. Stated losses win.
    """

    __slots__ = ("_count", "_pending", "_stated", "_sum")

    def __init__(self) -> None:
        self._sum, self._count, self._stated = 0.0, 0, False
        self._pending: list[torch.Tensor] = []  # on an accelerator: read together, once a step

    def state(self, loss: torch.Tensor | float) -> None:
        """Takes the undivided, unscaled loss of one micro-batch (scalar)."""
        if not self._stated:
            self._sum, self._count, self._stated = 0.0, 0, True
            self._pending.clear()
        self._add(loss)

    def forget_heard(self) -> None:
        """Another optimizer has stepped: what was only heard before that was its loss."""
        if not self._stated:
            self._sum, self._count = 0.0, 0
            self._pending.clear()

    def hear(self, loss: torch.Tensor) -> None:
        """Takes what a backward pass started from (scalar)."""
        if not self._stated:
            self._add(loss)

    def _add(self, loss: torch.Tensor | float) -> None:
        self._count += 1
        if isinstance(loss, torch.Tensor):
            if loss.is_cpu:
                self._sum += loss.item()
            else:
                self._pending.append(loss.detach())
        else:
            self._sum += loss

    @property
    def pending(self) -> torch.Tensor | None:
        """Sum of what is still on an accelerator (scalar, FP32), to be read together with other signals; or None."""
        return torch.stack([t.float().reshape(()) for t in self._pending]).sum() if self._pending else None

    def take(self, scale: float, read: float = 0.0) -> float:
        """The loss since the last call, NaN if there was none.

        Args:
            scale: loss scale in force; heard losses are divided by it.
            read: value of `pending`.
        """
        self._sum += read
        self._pending.clear()
        total, count, stated = self._sum, self._count, self._stated
        self._sum, self._count, self._stated = 0.0, 0, False
        if count == 0:
            return math.nan
        return total / count if stated else total / scale if scale > 0 else math.nan

    @property
    def known(self) -> bool:
        """A loss has come since the last `take`."""
        return self._count > 0
