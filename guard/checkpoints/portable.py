"""A snapshot in a form that means the same in another process: tensors by name, and plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from guard.checkpoints.changes import SavedTensor, differences
from guard.checkpoints.names import Names
from guard.checkpoints.plain import Encoder, UnportableError, decode
from guard.checkpoints.rng import RngState
from guard.checkpoints.state import Sharding, Slot, Snapshot, Surroundings, TrainingState, local, sharding_of
from guard.errors import ChangedModelError

_SMALL = 64 << 10  # [bytes] a tensor of a rank's own values that goes into that rank's file
_SMALL_BUFFERS = 16 << 20  # [bytes] a rank's own buffers that go into its file

_LEFT_OUT: Any = object()  # in place of a value that cannot be put into this form

Classes = Mapping[str, type]


@dataclass(slots=True)
class Portable:
    """A snapshot by name.

    Args:
        tick, step: as in the snapshot.
        tensors: name -> tensor of any shape and dtype; distributed ones stay distributed. They share the memory of
            `source`.
        shared: what is the same on all ranks; plain values.
        own: what this rank alone knows: random states, schedulers, extra objects, the guard's context; plain values and
            small tensors. None: no file of this rank, or of any.
        left_out: what could not be put into this form, or not be found in it, one sentence each.
        source: the snapshot whose memory it shares; None for one that was loaded.
        own_is_foreign: `own` is rank 0's, because this rank has none: its random states are not for this rank.
    """

    tick: int
    step: int
    tensors: dict[str, Tensor]
    shared: dict[str, Any]
    own: dict[str, Any] | None
    left_out: tuple[str, ...] = ()
    source: Snapshot | None = None
    own_is_foreign: bool = False

    @property
    def bytes(self) -> int:
        """Of all tensors, shards on other ranks included."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


# ---- there


def to_portable(state: TrainingState, snapshot: Snapshot, classes: Classes | None = None) -> Portable:
    """The snapshot by name. Copies no tensor.

    Args:
        state: the live run it was taken of.
        classes: data classes that may occur in its context, by name.
    """
    return _Packing(state, snapshot, classes or {}).portable()


class _Packing:
    def __init__(self, state: TrainingState, snapshot: Snapshot, classes: Classes) -> None:
        self.state, self.snapshot = state, snapshot
        self.names = Names(state)
        live: dict[int, Any] = {id(p): name for name, p in self.names.parameters.items()}
        live |= {id(o): f"optimizer.{i}" for i, o in enumerate(state.optimizers)}
        classes = {"RngState": RngState, **classes}
        self.tensors: dict[str, Tensor] = {}
        self.inline: dict[str, Tensor] = {}
        self.left_out: list[str] = []
        self._shared = Encoder(self._keep, live, classes)
        self._own = Encoder(self._keep_own, live, classes)

    def portable(self) -> Portable:
        snapshot, around = self.snapshot, self.snapshot.surroundings
        for i, parameter in enumerate(snapshot.parameters):
            self._place(self.names.of(parameter), i, "a parameter that is no longer in model or optimizer")
        for i, key in enumerate(snapshot.buffers, start=len(snapshot.parameters)):
            self._place(self.names.of_buffer(key), i, f"the buffer {key[1]!r}, which is no longer in the model")
        optimizers = [
            {
                "class": type(optimizer).__name__,
                "groups": [self._group(group, f"optimizer.{i}.group {g}") for g, group in enumerate(groups)],
                "state": self._optimizer(i, layout),
            }
            for i, (optimizer, groups, layout) in enumerate(
                zip(self.state.optimizers, around.groups, snapshot.layout, strict=True)
            )
        ]
        own: dict[str, Any] = {
            "rng": self._part(self._own, around.rng, "rng"),
            "others": self._parts(around.others, "other"),
            "context": self._parts(snapshot.context, "context"),
            "buffers": self._small_buffers(),
        }
        shared = {
            "optimizers": optimizers,
            "exported": self.names.exported,
            "passing": sorted(self.names.passing),
            "twins": self._twins(),
            "finite": snapshot.finite,
            "others": sorted(own["others"]),
        }
        own["inline"] = self.inline
        return Portable(snapshot.tick, snapshot.step, self.tensors, shared, own, tuple(self.left_out), snapshot)

    def _tensor(self, index: int) -> Tensor:
        sharding = self.snapshot.shards.get(index)
        tensor = self.snapshot.tensors[index]
        return tensor if sharding is None else sharding.whole(tensor)

    def _place(self, name: str | None, index: int, what: str) -> None:
        if name is None:
            self.left_out.append(f"{what}, was left out")
        else:
            self.tensors[name] = self._tensor(index)

    def _group(self, group: dict[str, Any], where: str) -> dict[str, Any]:
        """A parameter group's settings; one that cannot be saved is named, and stays as it is in the next process."""
        encoded = {k: self._part(self._shared, v, f"{where}.{k}") for k, v in group.items()}
        settings = {k: v for k, v in encoded.items() if v is not _LEFT_OUT}
        return {"settings": settings, "kept": [k for k in group if k not in settings]}

    def _optimizer(self, number: int, layout: dict[Any, dict[Any, Any]]) -> list[Any]:
        """A list of (key, values), for keys need not be text."""
        entries = []
        for key, values in layout.items():
            called = self.names.of(key)
            where = f"optimizer.{number}.{called or repr(key)[:80]}"
            if called is None and isinstance(key, Tensor):
                self.left_out.append(f"optimizer {number} has state of a parameter it no longer has; it was left out")
                continue
            whole = {
                name: self._tensor(value.index) if isinstance(value, Slot) else value for name, value in values.items()
            }
            plain_key = self._part(self._shared, key, where)
            plain = self._part(self._shared, whole, where) if plain_key is not _LEFT_OUT else _LEFT_OUT
            if plain is not _LEFT_OUT:
                entries.append([plain_key, plain])
        return entries

    def _parts(self, values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        encoded = {name: self._part(self._own, value, f"{prefix}.{name}") for name, value in values.items()}
        return {name: value for name, value in encoded.items() if value is not _LEFT_OUT}

    def _part(self, encoder: Encoder, value: Any, where: str) -> Any:
        """Encoded, or `_LEFT_OUT` if it cannot be; then nothing of it is kept."""
        before = len(self.tensors), len(self.inline)
        try:
            return encoder.encode(value, where)
        except (UnportableError, RecursionError) as error:
            for kept, count in zip((self.tensors, self.inline), before, strict=True):
                for name in list(kept)[count:]:
                    del kept[name]
            why = "it holds itself" if isinstance(error, RecursionError) else str(error)
            if why.startswith(f"{where} is "):
                why = f"it{why.removeprefix(where)}"
            self.left_out.append(f"{where} was left out: {why}")
            return _LEFT_OUT

    def _keep(self, name: str, tensor: Tensor) -> str:
        return _put(self.tensors, name, tensor)

    def _keep_own(self, name: str, tensor: Tensor) -> str:
        """What is small or empty stays with its rank; the rest is the same on all ranks, or distributed."""
        if hasattr(tensor, "to_local") or tensor.numel() * tensor.element_size() > _SMALL:
            return _put(self.tensors, name, tensor)
        return _put(self.inline, name, tensor.clone())

    def _small_buffers(self) -> dict[str, Tensor]:
        """Statistics differ between ranks unless something keeps them equal."""
        found = {n: t for n in self.names.buffers if (t := self.tensors.get(n)) is not None}
        plain = {n: t for n, t in found.items() if not hasattr(t, "to_local")}
        small = sum(t.numel() * t.element_size() for t in plain.values()) <= _SMALL_BUFFERS
        return plain if small else {}

    def _twins(self) -> dict[str, str]:
        """Distributed tensors that neither are nor belong to a parameter -> the parameter that is laid out alike."""
        sharded = {n: p for n in self.names.parameters if hasattr(p := self.tensors.get(n), "to_local")}
        twins = {}
        for name, tensor in self.tensors.items():
            if hasattr(tensor, "to_local") and name not in sharded and _owner(self.names, name) is None:
                alike = [n for n, p in sharded.items() if sharding_of(p) == sharding_of(tensor)]
                if alike:
                    twins[name] = max(alike, key=lambda n: _common(n, name))
        return twins


def _common(parameter: str, tensor: str) -> int:
    """How much of a parameter's path stands in a tensor's name [characters]."""
    path = parameter.partition("model.")[2]
    return len(path) if path and path in tensor else 0


def _put(tensors: dict[str, Tensor], name: str, tensor: Tensor) -> str:
    free = name
    number = 2
    while free in tensors:
        free, number = f"{name} {number}", number + 1
    tensors[free] = tensor
    return free


# ---- and back


def targets(state: TrainingState, shared: Mapping[str, Any], saved: Mapping[str, SavedTensor], name: str) -> Any:
    """Empty tensors on the CPU into which a checkpoint is read; distributed as the live ones are.

    Args:
        state: the live run.
        shared: the checkpoint's shared values.
        saved: what tensors it holds.
        name: its name, for the error.

    Returns:
        name -> tensor.

    Raises:
        ChangedModelError: the live run has other parameters, buffers or optimizers.
    """
    names = Names(state)
    changed = differences(names, state, shared, saved)
    if changed:
        raise ChangedModelError(name, changed)
    twins, made = shared["twins"], {}
    for called, tensor in saved.items():
        like = names.live(called)
        if like is None:
            like = names.parameters.get(twins.get(called) or _owner(names, called) or "")
        made[called] = _empty(tensor, like if like is not None and tuple(like.shape) == tensor.shape else None)
    return made


def _owner(names: Names, name: str) -> str | None:
    """The parameter whose optimizer state this is: it has the same strides."""
    inner = name.split(".", 2)[2] if name.startswith("optimizer.") and name.count(".") >= 2 else ""
    while inner and inner not in names.parameters:
        inner = inner.rpartition(".")[0]
    return inner or None


def _empty(saved: SavedTensor, like: Tensor | None) -> Tensor:
    if like is None:
        return torch.empty(saved.shape, dtype=saved.dtype)
    shard = torch.empty_like(local(like), dtype=saved.dtype, device="cpu")
    return sharding_of(like).whole(shard) if hasattr(like, "to_local") else shard


@dataclass(slots=True)
class _Unpacking:
    state: TrainingState
    portable: Portable
    classes: Classes
    names: Names = field(init=False)
    tensors: list[Tensor] = field(default_factory=list)
    shards: dict[int, Sharding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = Names(self.state)
        self.classes = {"RngState": RngState, **self.classes}

    def snapshot(self) -> Snapshot:
        portable, names = self.portable, self.names
        own = portable.own or {}
        parameters = [p for n, p in names.parameters.items() if n in portable.tensors]
        for n in names.parameters:
            if n in portable.tensors:
                self._add(portable.tensors[n])
        buffers = []
        for n, (module, inner) in names.buffers.items():
            if n in portable.tensors:
                buffers.append((id(module), inner))
                mine = None if portable.own_is_foreign else own.get("buffers", {}).get(n)
                self._add(portable.tensors[n] if mine is None else mine)
        shared_back = self._back(portable.tensors.__getitem__)
        saved = portable.shared["optimizers"]
        layout = [{shared_back(key): self._entry(shared_back(values)) for key, values in o["state"]} for o in saved]
        groups = [
            [
                shared_back(group["settings"]) | {k: live[k] for k in group["kept"] if k in live}
                for group, live in zip(o["groups"], optimizer.param_groups, strict=True)
            ]
            for o, optimizer in zip(saved, self.state.optimizers, strict=True)
        ]
        own_back = self._back(lambda n: own["inline"][n] if n in own["inline"] else portable.tensors[n])
        others = {n: own_back(v) for n, v in own.get("others", {}).items() if n in self.state.others}
        rng = own_back(own["rng"]) if own and not portable.own_is_foreign else RngState.capture()
        return Snapshot(
            portable.tick,
            portable.step,
            self.tensors,
            parameters,
            buffers,
            layout,
            Surroundings(groups, others, rng),
            {n: own_back(v) for n, v in own.get("context", {}).items()},
            finite=portable.shared["finite"],
            shards=self.shards,
        )

    def _back(self, tensors: Callable[[str], Tensor]) -> Callable[[Any], Any]:
        return lambda value: decode(value, tensors, self._object, self.classes)

    def _object(self, name: str) -> Any:
        if name in self.names.parameters:
            return self.names.parameters[name]
        return self.state.optimizers[int(name.removeprefix("optimizer."))]

    def _entry(self, values: dict[Any, Any]) -> dict[Any, Any]:
        return {n: Slot(self._add(v)) if isinstance(v, Tensor) else v for n, v in values.items()}

    def _add(self, tensor: Tensor) -> int:
        if hasattr(tensor, "to_local"):
            self.shards[len(self.tensors)] = sharding_of(tensor)
        self.tensors.append(local(tensor))
        return len(self.tensors) - 1


def to_snapshot(state: TrainingState, portable: Portable, classes: Classes | None = None) -> Snapshot:
    """A snapshot of this process that `TrainingState.restore` puts back, bit for bit.

    Args:
        state: the live run, with the same model and optimizers as when it was saved; their state may not exist yet.
        portable: as loaded into `targets`.
        classes: as for `to_portable`.

    Returns:
        The snapshot. Where the rank has no file of its own, its random states are those of now.
    """
    return _Unpacking(state, portable, classes or {}).snapshot()
