"""Everything a rollback puts back, captured and restored in place.

In place matters: references held elsewhere, tied weights, captured graphs and optimizer internals stay valid, and a
snapshot is never aliased by the live run, so that it can be restored any number of times (`load_state_dict` aliases).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from guard.checkpoints.rng import RngState


class Stateful(Protocol):
    """Anything with `state_dict` and `load_state_dict`: schedulers, scalers, moving averages."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The small rest of a run's state.

    Args:
        groups: per optimizer, the parameter groups without their parameters.
        others: deep copies of the scheduler's, scaler's and extra objects' state dicts.
        rng: all random states.
    """

    groups: list[list[dict[str, Any]]]
    others: dict[str, dict[str, Any]]
    rng: RngState


BufferKey = tuple[int, str]  # identity of the module, name of the buffer


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor of which this process holds one shard is laid out over the processes (a DTensor's specification)."""

    spec: Any

    def whole(self, local: Tensor) -> Tensor:
        """The distributed tensor of which `local` is this process's shard. Shares its memory, wherever that is:
        `DTensor.from_local` would copy it to the device of the mesh.
        """
        from torch.distributed.tensor import DTensor

        return DTensor(local, self.spec, requires_grad=False)  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class Snapshot:
    """The run at an iteration boundary.

    Args:
        tick, step: when it was taken (both count what was done before it).
        tensors: copies of parameters, then buffers, then optimizer state; of a distributed one, of its shard here.
        parameters, buffers: which ones those are; what is added to the model later is left alone by a restore.
        layout: per optimizer, state key -> name -> index into `tensors`, or the value itself if it is no tensor.
        surroundings: what is no tensor of model and optimizer.
        context: what the guard adds: data position, detector baselines.
        finite: verified; None: not yet looked at.
        clean: clean ticks since it was taken (probation).
        shards: index into `tensors` -> what that shard is a part of.
    """

    tick: int
    step: int
    tensors: list[Tensor]
    parameters: list[nn.Parameter]
    buffers: list[BufferKey]
    layout: list[dict[Any, dict[Any, Any]]]
    surroundings: Surroundings
    context: dict[str, Any] = field(default_factory=dict)
    finite: bool | None = None
    clean: int = 0
    shards: dict[int, Sharding] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors)


@dataclass(frozen=True, slots=True)
class Slot:
    """Marks a tensor among the values of an optimizer's state."""

    index: int


class TrainingState:
    """The live objects of a run.

    Args:
        model: parameters and buffers, non-persistent ones included.
        optimizers: their state and parameter groups.
        others: name -> scheduler, scaler, and `extra`. Modules among them are copied tensor by tensor.

    Attributes:
        modules: name -> module that is copied tensor by tensor; the model is called ``""``.
        others: the rest of `others`.
    """

    def __init__(
        self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], others: dict[str, Stateful]
    ) -> None:
        self.model, self.optimizers = model, list(optimizers)
        self.modules = {"": model} | {k: o for k, o in others.items() if isinstance(o, nn.Module)}
        self.others = {k: o for k, o in others.items() if not isinstance(o, nn.Module)}
        self._watched: dict[BufferKey, bool] = {}
        self._spare: list[list[Tensor]] = []

    def parameters(self) -> list[nn.Parameter]:
        """Live parameters; looked up anew, because layers may be added."""
        grouped = (p for o in self.optimizers for g in o.param_groups for p in g["params"])
        return _unique([*(p for m in self.modules.values() for p in m.parameters()), *grouped])

    def buffers(self) -> dict[BufferKey, Tensor]:
        """Live buffers; looked up anew, because modules may replace them or make them late."""
        found: dict[int, tuple[BufferKey, Tensor]] = {}
        for module in (m for top in self.modules.values() for m in top.modules()):
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    found.setdefault(id(buffer), ((id(module), name), buffer))
        return dict(found.values())

    def finite(self) -> bool:
        """No parameter and no buffer holds NaN or Inf; a buffer that was born with them (a mask of -inf) is left
        alone.
        """
        buffers = self.buffers()
        self._watch(buffers)
        watched = (b for k, b in buffers.items() if self._watched[k])
        return all_finite([*(local(p.data) for p in self.parameters()), *map(local, watched)])

    def verify(self, snapshot: Snapshot) -> bool:
        """The same for a snapshot, optimizer state included."""
        first = len(snapshot.parameters)
        born_so = {first + i for i, key in enumerate(snapshot.buffers) if not self._watched[key]}
        return all_finite(t for i, t in enumerate(snapshot.tensors) if i not in born_so)

    def _watch(self, buffers: dict[BufferKey, Tensor]) -> None:
        for key, buffer in buffers.items():
            if key not in self._watched:
                self._watched[key] = all_finite([local(buffer)])

    @torch.no_grad()
    def capture(self, tick: int, step: int) -> Snapshot:
        """Copies everything; draws no random numbers and changes nothing."""
        buffers = self.buffers()
        self._watch(buffers)
        parameters = self.parameters()
        live: list[Tensor] = [*(p.data for p in parameters), *buffers.values()]
        layout: list[dict[Any, dict[Any, Any]]] = []
        for optimizer in self.optimizers:
            entries: dict[Any, dict[Any, Any]] = {}
            for key, values in optimizer.state.items():
                entry = entries[key] = {}
                for name, value in values.items():
                    if isinstance(value, Tensor) and (type(value) in (Tensor, nn.Parameter) or _is_sharded(value)):
                        entry[name] = Slot(len(live))
                        live.append(value)
                    else:
                        entry[name] = copy.deepcopy(value)
            layout.append(entries)
        shards = {i: sharding_of(t) for i, t in enumerate(live) if _is_sharded(t)}
        if shards:
            live = [local(t) for t in live]
        copies = self._copy(live)
        return Snapshot(tick, step, copies, parameters, list(buffers), layout, self.surroundings(), shards=shards)

    def surroundings(self) -> Surroundings:
        """What code outside the iterations changes: rates and other settings, schedulers, random states."""
        groups = [[_without_params(g) for g in o.param_groups] for o in self.optimizers]
        others = {k: copy.deepcopy(o.state_dict()) for k, o in self.others.items()}
        return Surroundings(groups, others, RngState.capture())

    def put_surroundings(self, saved: Surroundings) -> None:
        """Puts them back."""
        for optimizer, groups in zip(self.optimizers, saved.groups, strict=True):
            for group, saved_group in zip(optimizer.param_groups, groups, strict=False):
                _restore_group(group, saved_group)
        for name, state in saved.others.items():
            self.others[name].load_state_dict(copy.deepcopy(state))
        saved.rng.restore()

    @torch.no_grad()
    def restore(self, snapshot: Snapshot) -> None:
        """Puts a snapshot back, in place. Optimizer state that did not exist then is removed again."""
        live: list[Tensor] = [local(p.data) for p in snapshot.parameters]
        source = snapshot.tensors[: len(live)]
        now_there = self.buffers()
        for buffer, tensor in zip(snapshot.buffers, snapshot.tensors[len(live) :], strict=False):
            if buffer in now_there and local(now_there[buffer]).shape == tensor.shape:
                live.append(local(now_there[buffer]))
                source.append(tensor)
        for optimizer, entries in zip(self.optimizers, snapshot.layout, strict=True):
            for key in [k for k in optimizer.state if k not in entries]:
                del optimizer.state[key]
            for key, entry in entries.items():
                values = optimizer.state[key]
                for name in [n for n in values if n not in entry]:
                    del values[name]
                for name, saved in entry.items():
                    if not isinstance(saved, Slot):
                        values[name] = copy.deepcopy(saved)
                        continue
                    tensor, current = snapshot.tensors[saved.index], values.get(name)
                    if isinstance(current, Tensor) and local(current).shape == tensor.shape:
                        live.append(local(current))
                        source.append(tensor)
                    else:
                        made = tensor.to(_device_of(optimizer, key, tensor), copy=True)
                        sharding = snapshot.shards.get(saved.index)
                        values[name] = made if sharding is None else sharding.whole(made)
        if live:
            torch._foreach_copy_(live, source)
        self.put_surroundings(snapshot.surroundings)

    def recycle(self, snapshot: Snapshot) -> None:
        """Gives a dropped snapshot's memory to the next capture."""
        if len(self._spare) < 2:
            self._spare.append(snapshot.tensors)

    def _copy(self, live: list[Tensor]) -> list[Tensor]:
        target = next((s for s in self._spare if _fits(s, live)), None)
        if target is None:
            self._spare.clear()
            target = [_host_like(t) for t in live]
        else:
            self._spare = [s for s in self._spare if s is not target]
        if live:
            torch._foreach_copy_(target, live, non_blocking=True)
        if any(t.is_cuda for t in live):
            torch.cuda.synchronize()  # pinned copies are asynchronous; the next step may overwrite their source
        return target


@torch.no_grad()
def all_finite(tensors: Iterable[Tensor]) -> bool:
    """No NaN or Inf in any floating-point tensor. Norms first (fast); an infinite norm of finite values is
    confirmed.
    """
    floats = [t for t in tensors if (t.is_floating_point() or t.is_complex()) and t.numel()]
    if not floats:
        return True
    try:
        norms = torch._foreach_norm(
            floats, 2, dtype=None if all(t.element_size() >= 4 for t in floats) else torch.float32
        )
        if bool(torch.isfinite(torch.stack([n.float() for n in norms])).all()):
            return True
    except RuntimeError:
        pass  # mixed devices, sparse or odd dtypes: look at each
    return all(bool(torch.isfinite(t.coalesce().values() if t.is_sparse else t).all()) for t in floats)


def _unique(tensors: Iterable[Tensor]) -> list[Any]:
    return list({id(t): t for t in tensors}.values())


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {k: v.clone() if isinstance(v, Tensor) else copy.deepcopy(v) for k, v in group.items() if k != "params"}


def _restore_group(group: dict[str, Any], saved: dict[str, Any]) -> None:
    for key in [k for k in group if k != "params" and k not in saved]:
        del group[key]
    for key, value in saved.items():
        if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
            group[key].copy_(value)
        else:
            group[key] = value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def _host_like(t: Tensor) -> Tensor:
    return torch.empty_like(t, device="cpu", pin_memory=t.is_cuda)


def _fits(spare: list[Tensor], live: list[Tensor]) -> bool:
    return len(spare) == len(live) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride() for a, b in zip(spare, live, strict=True)
    )


def _is_sharded(t: Tensor) -> bool:
    return type(t) not in (Tensor, nn.Parameter) and hasattr(t, "to_local")


def local(t: Tensor) -> Tensor:
    """What this process holds of a tensor: all of it, or its shard of a distributed one. Shares its memory."""
    if not _is_sharded(t):
        return t
    with torch.no_grad():
        return t.to_local()  # type: ignore[attr-defined, no-any-return]


def sharding_of(t: Any) -> Sharding:
    """The layout of a distributed tensor."""
    return Sharding(t._spec)


def _device_of(optimizer: torch.optim.Optimizer, key: Any, tensor: Tensor) -> torch.device:
    """Optimizer state lives with its parameter, except step counters, which stay on the CPU unless the optimizer runs
    as one kernel.
    """
    if not isinstance(key, Tensor):
        return tensor.device
    if not tensor.dim():
        group: Any = next((g for g in optimizer.param_groups if any(p is key for p in g["params"])), {})
        if not (group.get("capturable") or group.get("fused")):
            return tensor.device
    return key.device
