"""The global gradient norm, read once a step. Finiteness follows from it.

Small tensors are flattened into one vector, large ones go through `_foreach_norm`: per-tensor calls dominate the
cost of the small ones, an extra copy that of the large ones. Half-precision gradients are summed in FP32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

_SMALL = 16384  # elements; measured in the training loop: flattening wins below, foreach above

_flatten = torch._C._nn.flatten_dense_tensors


class GradientReader:
    """Reads the gradients of an optimizer's parameters.

    Args:
        optimizer: its parameter groups are looked at anew whenever their number changes.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.count = 0
        self.along: float | None = None
        self._plan()

    def _plan(self) -> None:
        self._groups = self._optimizer.param_groups
        self._planned = [len(g["params"]) for g in self._groups]
        params: list[Tensor] = [p for g in self._groups for p in g["params"]]
        self.params = params
        first = params[0] if params else None
        self._uniform = first is not None and all(p.dtype == first.dtype and p.device == first.device for p in params)
        self._widen = first is not None and first.element_size() < 4
        self._small = [p for p in params if p.numel() <= _SMALL]
        self._large = [p for p in params if p.numel() > _SMALL]
        self._on_cpu = first is not None and first.device.type == "cpu"
        self._fast = self._uniform and first is not None and not first.is_complex()

    def read(self, along: Tensor | None = None) -> float:
        """The global L2 norm of all gradients; `count` holds how many tensors have one.

        Args:
            along: a scalar on an accelerator to read in the same transfer; its value is in `self.along` afterwards.

        Returns:
            Inf or NaN only if a gradient holds one: a norm that overflowed or underflowed is recomputed with care.
        """
        groups = self._optimizer.param_groups  # `load_state_dict` replaces the list
        if (
            groups is not self._groups
            or len(groups) != len(self._planned)
            or len(groups[-1]["params"]) != self._planned[-1]
        ):
            self._plan()
        self.along = None
        norm = self._quick(along) if self._fast else -1.0
        if along is not None and self.along is None:
            self.along = along.item()
        # Gradients that are all exactly zero are as suspicious as infinite ones: the square may have underflowed.
        return norm if 0.0 < norm < math.inf else self._careful()

    def _quick(self, along: Tensor | None) -> float:
        """The norm of dense gradients of one dtype on one device; -1 if they are something else."""
        small = [g for p in self._small if (g := p.grad) is not None]
        large = [g for p in self._large if (g := p.grad) is not None]
        self.count = len(small) + len(large)
        try:
            parts: list[Tensor] = []
            if small:
                flat = _flatten(small)
                if self._widen:
                    flat = flat.float()
                parts.append(torch.dot(flat, flat))
                if not large and along is None:
                    return math.sqrt(parts[0].item())
            if large:
                norms = torch._foreach_norm(large, 2, dtype=torch.float32 if self._widen else None)
                if self._on_cpu and along is None and len(large) <= 16:
                    total = parts[0].item() if parts else 0.0
                    for n in norms:
                        x = n.item()
                        total += x * x
                    return math.sqrt(total)
                stacked = torch.stack(norms)
                parts.append(torch.dot(stacked, stacked))
            if along is None or not parts:
                return math.sqrt(sum(torch.stack(parts).tolist())) if parts else 0.0
            *squares, self.along = torch.stack([*parts, along.to(parts[0].device)]).tolist()
            return math.sqrt(sum(squares))
        except (RuntimeError, ValueError, TypeError):
            return -1.0  # sparse, mixed or non-finite

    @torch.no_grad()
    def _careful(self) -> float:
        gradients = self.gradients()
        self.count = len(gradients)
        return careful_norm(gradients)

    def gradients(self) -> list[Tensor]:
        """Dense values of all gradients there are; they share memory with the gradients unless those are sparse."""
        return [values(p.grad) for p in self.params if p.grad is not None]


def values(gradient: Tensor) -> Tensor:
    """The stored numbers of a gradient, dense or sparse."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def careful_norm(tensors: Iterable[Tensor]) -> float:
    """L2 norm in FP64, scaled so that finite numbers neither overflow nor underflow; NaN or Inf if one is."""
    total = 0.0
    for tensor in tensors:
        if not tensor.numel():
            continue
        t = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        peak = float(t.abs().max())
        if not math.isfinite(peak):
            return peak
        if peak > 0.0:
            part = float((t.double() / peak).norm()) * peak
            total = math.hypot(total, part)
    return total


def nonfinite_names(model: nn.Module, most: int = 10) -> list[str]:
    """Names of parameters whose gradient is not finite, at most `most`; for evidence, not for every step."""
    bad = (
        name
        for name, p in model.named_parameters()
        if p.grad is not None and not math.isfinite(careful_norm([values(p.grad)]))
    )
    return list(itertools.islice(bad, most))
