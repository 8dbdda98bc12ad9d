"""One rank's parameters, buffers and optimizer state on all ranks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from guard.checkpoints import TrainingState
from guard.errors import UnavailableError
from guard.ranks import Ranks
from guard.signals.gradients import is_sharded
from guard.signals.replicas import checksums, is_replicated, majority


def why_not(state: TrainingState, ranks: Ranks) -> str | None:
    """Why there is no other rank to copy from or to, or None; the same on all ranks."""
    if ranks.world == 1:
        return "the run has one process only"
    if any(is_sharded(p) for p in state.parameters()):
        return "the parameters are sharded: no rank holds a copy of another's"
    for optimizer in state.optimizers:
        if any(cls.__name__ == "ZeroRedundancyOptimizer" for cls in type(optimizer).__mro__):
            return "the optimizer's state is sharded: no rank holds a copy of another's"
    return None


@torch.no_grad()
def rebroadcast(state: TrainingState, ranks: Ranks, source: Literal["majority", "first"]) -> dict[str, Any]:
    """Overwrites every rank's state in place; all ranks call it.

    Args:
        source: the lowest rank among those whose parameters most ranks hold, or rank 0.

    Returns:
        `from_rank`; `tensors`: how many were copied; `ranks_that_differed`: whose parameters were others than that
        rank's.

    Raises:
        UnavailableError: the ranks do not hold the same tensors; nothing was changed.
        RankLostError: a rank has ended.
    """
    rows = ranks.gather(tuple(checksums(p for p in state.parameters() if is_replicated(p)).tolist()))
    holder = majority(rows)[0] if source == "majority" else 0
    tensors = [*(p.data for p in state.parameters()), *state.buffers().values()]
    held = [_held(o) for o in state.optimizers]
    kinds = ranks.gather(([_kind(t) for t in tensors], [len(parameters) for parameters in held]))
    if any(other != kinds[0] for other in kinds):
        raise UnavailableError("the ranks do not hold the same parameters and buffers")
    wanted = ranks.broadcast([_described(o) for o in state.optimizers] if ranks.rank == holder else [], holder)
    for optimizer, entries in zip(state.optimizers, wanted, strict=True):
        tensors += _fit(optimizer, entries)
    ranks.copy_from(holder, tensors)
    others = [rank for rank, row in enumerate(rows) if row != rows[holder]]
    return {"from_rank": holder, "tensors": len(tensors), "ranks_that_differed": others}


def _held(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _kind(t: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(t.shape), t.dtype


def _described(optimizer: torch.optim.Optimizer) -> list[dict[str, Any] | None]:
    """By parameter: name -> kind of a tensor and whether it lives with its parameter, or the value itself."""
    entries: list[dict[str, Any] | None] = []
    for p in _held(optimizer):
        values = optimizer.state.get(p)
        entries.append(
            None
            if values is None
            else {
                name: _Like(*_kind(value), value.device == p.device) if isinstance(value, Tensor) else value
                for name, value in values.items()
            }
        )
    return entries


class _Like(NamedTuple):
    """A tensor of an optimizer's state."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    beside: bool  # on the device of its parameter


def _fit(optimizer: torch.optim.Optimizer, entries: Sequence[dict[str, Any] | None]) -> list[Tensor]:
    """Gives the optimizer state of that shape, keeping the tensors that fit, and returns its tensors, in order. What
    belongs to no parameter is left alone.
    """
    tensors: list[Tensor] = []
    for p, entry in zip(_held(optimizer), entries, strict=True):
        if entry is None:
            optimizer.state.pop(p, None)
            continue
        values = optimizer.state[p]
        for name in [n for n in values if n not in entry]:
            del values[name]
        for name, wanted in entry.items():
            if not isinstance(wanted, _Like):
                values[name] = copy.deepcopy(wanted)
                continue
            current = values.get(name)
            if not isinstance(current, Tensor) or _kind(current) != (wanted.shape, wanted.dtype):
                device = p.device if wanted.beside else torch.device("cpu")
                values[name] = torch.zeros(wanted.shape, dtype=wanted.dtype, device=device)
            tensors.append(values[name])
    return tensors
