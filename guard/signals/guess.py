"""What a guess that knows nothing would lose: the level on which a model sits that has learnt nothing of its inputs.

The loss function and its targets stand in the autograd graph of the loss until backward has run, so a few looks at the
first steps tell it: the entropy of the classes for cross-entropy (ln C where they are balanced), of the labels for
binary cross-entropy, the variance of the targets for a squared error. Of any other loss it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_LOOKS = 8  # steps
_DEEP = 6  # nodes between the loss and its function: scaling, division, a mean
_ENOUGH = 10  # targets per class; fewer say little about how frequent each is
_AS_IT_IS = 1e-3  # deviation of the factors between loss function and loss from 1: else it is a loss of several parts


class GuessMeter:
    """Looks at the first steps' losses, then knows.

    Attributes:
        value: loss of the best constant answer [unit of the loss]; NaN: not known.
        done: it knows, or cannot.
    """

    def __init__(self) -> None:
        self.value, self.done = math.nan, False
        self._steps, self._factor = 0, 0.0
        self._kind, self._classes = "", 0
        self._sums: Tensor | None = None  # targets of each class; or per column their sum and sum of squares
        self._rows = 0

    @torch.no_grad()
    def look(self, loss: Tensor) -> None:
        """Takes in the targets behind `loss` (scalar), before its backward pass; gives up if there are none."""
        if self.done:
            return
        try:
            for node, factor in _chain(loss.grad_fn if loss.numel() == 1 else None):
                if take := _LOSSES.get(type(node).__name__):
                    self._factor += factor
                    take(self, node)
                    return
            self.done = True
        except Exception:  # noqa: BLE001 - freed graphs, losses of several numbers, another torch: then it is not known
            self.done = True

    def end_step(self, scale: float) -> bool:
        """A step ended. True: there is nothing more to look at.

        Args:
            scale: loss scale that was in force.
        """
        if not self.done:
            self._steps += 1
            if abs(self._factor - scale) > _AS_IT_IS * scale:
                self.done = True
            elif self._steps >= _LOOKS:
                self.done, self.value = True, self._level()
        self._factor = 0.0
        return self.done

    def _level(self) -> float:
        sums, n = self._sums, self._rows
        if sums is None or n < 2:
            return math.nan
        if self._kind == "classes":
            counts = [c for c in sums.tolist() if c]
            if n < _ENOUGH * len(counts):
                return math.log(self._classes) if self._classes > 1 else math.nan
            # a sample's entropy is too small by about (classes - 1) / 2n (Miller 1955)
            return math.fsum(-c / n * math.log(c / n) for c in counts) + (len(counts) - 1) / (2 * n)
        mean = sums[0] / n
        if self._kind == "labels":
            rest = torch.special.entr(mean) + torch.special.entr(1.0 - mean)
        else:
            rest = (sums[1] / n - mean * mean) * (n / (n - 1))
        return float(rest.mean())

    def _take_classes(self, node: Any) -> None:
        if node._saved_weight is not None:
            raise TypeError("classes have weights")
        self._classes = node._saved_self.shape[1 if node._saved_self.dim() > 1 else 0]
        target = node._saved_target.flatten()
        target = target[target != node._saved_ignore_index]
        self._add("classes", target.numel(), torch.bincount(target, minlength=self._classes))

    def _take_labels(self, node: Any) -> None:
        if node._saved_weight is not None or getattr(node, "_saved_pos_weight", None) is not None:
            raise TypeError("labels have weights")
        self._take_columns(node, "labels")

    def _take_values(self, node: Any) -> None:
        self._take_columns(node, "values")

    def _take_columns(self, node: Any, kind: str) -> None:
        target = node._saved_target
        target = target.reshape(len(target), -1) if target.dim() > 1 else target.reshape(-1, 1)
        target = target.double() if target.is_cpu else target.float()
        self._add(kind, len(target), torch.stack([target.sum(0), (target * target).sum(0)]))

    def _add(self, kind: str, rows: int, sums: Tensor) -> None:
        if self._sums is not None and (self._kind != kind or self._sums.shape != sums.shape):
            raise TypeError("the loss function changes from step to step")
        self._kind, self._rows = kind, self._rows + rows
        self._sums = sums if self._sums is None else self._sums + sums


_LOSSES = {
    "NllLossBackward0": GuessMeter._take_classes,
    "NllLoss2DBackward0": GuessMeter._take_classes,
    "BinaryCrossEntropyBackward0": GuessMeter._take_labels,
    "BinaryCrossEntropyWithLogitsBackward0": GuessMeter._take_labels,
    "MseLossBackward0": GuessMeter._take_values,
}
_SUM = 2  # torch's number for reduction="sum"


def _chain(node: Any) -> Iterator[tuple[Any, float]]:
    """The nodes from a loss towards its loss function, with the factor by which what they give enters the loss."""
    factor = 1.0
    for _ in range(_DEEP):
        if node is None:
            return
        if getattr(node, "_saved_reduction", 1) == _SUM:
            return
        yield node, factor
        name = type(node).__name__
        if name.startswith(("Mul", "Div")):
            other = float(node._saved_other)
            factor = factor * other if name.startswith("Mul") else factor / other
        elif not name.startswith(("Mean", "ToCopy", "View", "Reshape", "Squeeze")):
            return
        node = next((n for n, _ in node.next_functions if n is not None), None)
