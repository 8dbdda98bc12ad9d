"""Looking into a forward pass: what each layer is given and what it puts out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from guard.doctor import tree

WEIGHTED = (nn.Linear, nn.Bilinear, nn.RNNBase, nn.MultiheadAttention, nn.modules.conv._ConvNd)
NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    *((nn.RMSNorm,) if hasattr(nn, "RMSNorm") else ()),
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one layer.

    Args:
        name, module: the layer.
        given: its first input tensor; None if it has none.
        out: its first output tensor.
    """

    name: str
    module: nn.Module
    given: Tensor | None
    out: Tensor

    @property
    def label(self) -> str:
        """Name and kind, for people: in a Sequential the name is only a number."""
        kind = type(self.module).__name__
        return self.name if self.name == kind else f"{self.name} ({kind})"


def weighted(module: nn.Module) -> bool:
    """It multiplies by a matrix: torch's own layers, and leaves of other makes that hold one."""
    if isinstance(module, WEIGHTED):
        return True
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag, *NORMS)):
        return False
    return leaf(module) and any(p.dim() > 1 for p in module.parameters(recurse=False))


def normalising(module: nn.Module) -> bool:
    return isinstance(module, NORMS) or "norm" in type(module).__name__.lower()


def leaf(module: nn.Module) -> bool:
    return not any(True for _ in module.children())


@contextlib.contextmanager
def watching(model: nn.Module, see: Callable[[Call], None]) -> Iterator[None]:
    """Calls `see` after every call of a leaf or weighted layer, in the order in which they run."""
    handles = []

    def hook(name: str) -> Any:
        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            out = tree.first(getattr(output, "data", output) if not isinstance(output, Tensor) else output)
            if out is not None:
                see(Call(name, module, tree.first([*args, kwargs]), out))

        return after

    for name, module in model.named_modules():
        if leaf(module) or isinstance(module, WEIGHTED):
            handles.append(module.register_forward_hook(hook(name or type(module).__name__), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
