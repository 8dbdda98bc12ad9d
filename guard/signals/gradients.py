"""The global gradient norm, read once a step. Finiteness follows from it.

Small tensors are flattened into one vector, large ones go through `_foreach_norm`: per-tensor calls dominate the
cost of the small ones, an extra copy that of the large ones. Half-precision gradients are summed in FP32.

Of a distributed tensor (DTensor, as FSDP2 makes them) each rank reads its own shard, without asking the others; `share`
says which part of what it read counts when the squares are summed over all ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_SMALL = 16384  # elements; measured in the training loop: flattening wins below, foreach above

_flatten = torch._C._nn.flatten_dense_tensors


class GradientReader:
    """Reads the gradients of an optimizer's parameters.

    Args:
        optimizer: its parameter groups are looked at anew whenever their number changes.
        world: ranks that train together.

    Attributes:
        share: the part of the last norm's square that counts in the sum over ranks, so that the sum is the global
            squared norm. Plain tensors are the same on all ranks, and count ``1 / world``.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, world: int = 1) -> None:
        self._optimizer = optimizer
        self._even = self.share = 1.0 / world
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
        self._sharded = any(is_sharded(p) for p in params)
        self._fast = self._uniform and first is not None and not first.is_complex() and not self._sharded

    def read(self, along: Tensor | None = None) -> float:
        """The global L2 norm of all gradients; of distributed ones that of this rank's shards. `count` holds how many
        tensors have one.

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
        norm = self._quick(along) if self._fast else self._quick_of_shards(along) if self._sharded else -1.0
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
    def _quick_of_shards(self, along: Tensor | None) -> float:
        """The norm of this rank's shards; -1 if it is to be looked at more closely. Sets `share`."""
        kinds: dict[tuple[float, torch.dtype, torch.device], list[Tensor]] = {}
        self.count = 0
        for p in self.params:
            if p.grad is not None:
                self.count += 1
                t = values(p.grad)
                if t.is_complex():
                    return -1.0
                kinds.setdefault((share_of(p.grad, self._even), t.dtype, t.device), []).append(t)
        try:
            parts: list[Tensor] = []
            for (_, dtype, _), tensors in kinds.items():
                norms = torch._foreach_norm(tensors, 2, dtype=torch.float32 if dtype.itemsize < 4 else None)
                stacked = torch.stack(norms)
                parts.append(torch.dot(stacked, stacked).double())
            if along is not None and parts:
                parts.append(along.to(parts[0].device).double())
            squares = torch.stack(parts).tolist() if parts else []
        except (RuntimeError, ValueError, TypeError):
            return -1.0  # sparse, or on several devices
        if along is not None and parts:
            self.along = squares.pop()
        total = sum(squares)
        if not 0.0 < total < math.inf:
            return -1.0
        self.share = sum(s * share for s, (share, *_) in zip(squares, kinds, strict=True)) / total
        return math.sqrt(total)

    @torch.no_grad()
    def _careful(self) -> float:
        gradients = self.gradients()
        self.count = len(gradients)
        return self._careful_of_shards() if self._sharded else careful_norm(gradients)

    def _careful_of_shards(self) -> float:
        kinds: dict[float, list[Tensor]] = {}
        for p in self.params:
            if p.grad is not None:
                kinds.setdefault(share_of(p.grad, self._even), []).append(values(p.grad))
        norms = {share: careful_norm(tensors) for share, tensors in kinds.items()}
        total = math.hypot(*norms.values())
        if not 0.0 < total < math.inf:
            self.share = self._even
            return next((n for n in norms.values() if not n < math.inf), 0.0)
        self.share = sum(share * (norm / total) ** 2 for share, norm in norms.items())
        return total

    def gradients(self) -> list[Tensor]:
        """Dense values of all gradients there are; they share memory with the gradients unless those are sparse."""
        return [values(p.grad) for p in self.params if p.grad is not None]


def is_sharded(tensor: Tensor) -> bool:
    """It is a distributed tensor, of which this process holds a part."""
    return type(tensor) not in (Tensor, nn.Parameter) and hasattr(tensor, "to_local")


@torch.no_grad()
def values(gradient: Tensor) -> Tensor:
    """The stored numbers of a gradient: dense, sparse, or this process's shard of a distributed one. They share its
    memory, unless it is sparse or its sum over ranks is still to be taken, which is then done by all ranks of its mesh.
    """
    if is_sharded(gradient):
        return _summed(gradient).to_local()  # type: ignore[no-any-return]
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _summed(gradient: Any) -> Any:
    """A distributed tensor that is no longer a sum in the making (tensor parallelism leaves such gradients)."""
    if not any(placement.is_partial() for placement in gradient.placements):
        return gradient
    from torch.distributed.tensor import Replicate

    return gradient.redistribute(placements=[Replicate() if p.is_partial() else p for p in gradient.placements])


def share_of(tensor: Any, even: float) -> float:
    """The part of its local square that counts in a sum over all ranks.

    Args:
        tensor: a parameter or its gradient.
        even: of a plain tensor, which all ranks hold.

    Returns:
        Of a distributed one, 1 / (copies of each shard on its mesh); ranks outside of the mesh hold other tensors.
    """
    if not is_sharded(tensor):
        return even
    copies = 1
    for size, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True):
        if placement.is_replicate() or placement.is_partial():  # replicated, or so once it is summed
            copies *= size
    return 1.0 / copies


def shares(model: nn.Module, world: int) -> dict[str, float]:
    """`share_of` every parameter, by name."""
    return {name: share_of(p, 1.0 / world) for name, p in model.named_parameters()}


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
