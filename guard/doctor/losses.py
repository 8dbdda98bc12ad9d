"""What kind of loss it is, read off the autograd graph: so a lambda around `cross_entropy` is known as well."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

_DEEP = 12  # nodes between the loss and its function: sums of several terms, scaling, views

Kind = Literal["classes", "labels", "values", "other"]
_KINDS: dict[str, Kind] = {
    "NllLossBackward0": "classes",
    "NllLoss2DBackward0": "classes",
    "BinaryCrossEntropyBackward0": "labels",
    "BinaryCrossEntropyWithLogitsBackward0": "labels",
    "MseLossBackward0": "values",
    "SmoothL1LossBackward0": "values",
    "HuberLossBackward0": "values",
}


@dataclass(frozen=True, slots=True)
class LossFacts:
    """What the graph of one loss shows.

    Args:
        kind: ``classes`` (cross-entropy), ``labels`` (binary cross-entropy), ``values`` (regression), ``other``.
        classes: number of classes; 0 where there are none.
        ignore: label that is left out.
        weighted: classes or labels have weights.
        log_softmax, softmax, sigmoid: what the loss function's input was made by.
        squared: a squared error.
    """

    kind: Kind = "other"
    classes: int = 0
    ignore: int = -100
    weighted: bool = False
    log_softmax: bool = False
    softmax: bool = False
    sigmoid: bool = False
    squared: bool = False


def look(loss: Tensor, function: Any) -> LossFacts:
    """Reads the graph behind `loss`; what a soft-target cross-entropy hides there is known from the function's type."""
    node = find_node(loss.grad_fn)
    if node is None:
        kind: Kind = "classes" if is_cross_entropy(function) else "other"
        return LossFacts(kind, ignore=ignored(function))
    name = type(node).__name__
    before = _before(node)
    if _KINDS[name] == "classes":
        seen = node._saved_self
        return LossFacts(
            "classes",
            seen.shape[1 if seen.dim() > 1 else 0],
            node._saved_ignore_index,
            node._saved_weight is not None,
            log_softmax="LogSoftmax" in before,
            softmax=_made_by_softmax(node),
        )
    weighted = getattr(node, "_saved_weight", None) is not None or getattr(node, "_saved_pos_weight", None) is not None
    return LossFacts(_KINDS[name], weighted=weighted, sigmoid="Sigmoid" in before, squared=name.startswith("Mse"))


def is_cross_entropy(function: Any) -> bool:
    return isinstance(function, (nn.CrossEntropyLoss, nn.NLLLoss)) or function in (
        functional.cross_entropy,
        functional.nll_loss,
    )


def ignored(function: Any) -> int:
    """The label that a loss function leaves out."""
    return int(getattr(function, "ignore_index", -100))


def find_node(root: Any) -> Any:
    """The first loss function's node below the loss, breadth first."""
    queue: deque[tuple[Any, int]] = deque([(root, 0)])
    while queue:
        node, depth = queue.popleft()
        if node is None or depth > _DEEP:
            continue
        if type(node).__name__ in _KINDS:
            return node
        queue.extend((n, depth + 1) for n, _ in node.next_functions)
    return None


_PASSING = (
    "View",
    "Reshape",
    "Permute",
    "Transpose",
    "TBackward",
    "ToCopy",
    "Squeeze",
    "Unsqueeze",
    "Clone",
    "UnsafeView",
    "Select",
)


def _before(node: Any) -> str:
    """Name of the function that made the loss function's input; what only changes its form is passed."""
    node = next((n for n, _ in node.next_functions if n is not None), None)
    while node is not None and type(node).__name__.startswith(_PASSING):
        node = next((n for n, _ in node.next_functions if n is not None), None)
    return type(node).__name__ if node is not None else ""


def _made_by_softmax(node: Any) -> bool:
    """Softmax, then the log-softmax of cross-entropy."""
    node = next((n for n, _ in node.next_functions if n is not None), None)
    while node is not None and type(node).__name__.startswith((*_PASSING, "LogSoftmax")):
        if type(node).__name__.startswith("LogSoftmax"):
            return _before(node).startswith("Softmax")
        node = next((n for n, _ in node.next_functions if n is not None), None)
    return False


@torch.no_grad()
def guess_of_classes(labels: Tensor, classes: int) -> float:
    """Loss of the best constant answer: entropy of the labels [nats], with Miller's correction for a sample of them.

    Args:
        labels: [n] int64 in 0 .. classes - 1.
    """
    counts = torch.bincount(labels, minlength=classes).double()
    seen = counts[counts > 0]
    n = float(seen.sum())
    if n < 10 * len(seen):  # too few to know how frequent each class is
        return math.log(classes)
    shares = seen / n
    return float(-(shares * shares.log()).sum()) + (len(seen) - 1) / (2 * n)
