"""A look inside the model: what some detectors want to know and the global numbers do not say.

Only the parts that a policy's detectors need are measured, and those only on the ticks that are looked at. What it
gives (`Signals.deep`, plain numbers; a part that was not looked at in a tick is not there):

    seconds       float: wall time since the last guarded step [s].
    inputs        finite, zero (the largest tensor is), ignored (every label is -100): bool; peak: largest finite |x|.
    layers        by trained tensor: size, dims: int; grad: L2 norm or None; norm; peak: max |w|; spread: max - min.
    updates       of the look one tick before: tick: int, lr: float, and layers, by trained tensor: dims: int; rms;
                  ratio: |dw| / |w|; grad: float or None.
    activations   by module (and "#n" for its n-th call): units: int; values: int, numbers of a unit in this look; and
                  dead, saturated: 8 floats, the n-th the share of units that were so in the last n looks.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from guard.clock import Clock
from guard.signals.activations import Marks, kinds
from guard.signals.gradients import values
from guard.signals.transfer import read

_SAMPLE = 2**18  # numbers of a tensor that are copied to see its update; of larger ones a regular sample
_SMALL = 1_000_000  # floating-point numbers of a batch that is looked at in every tick
_TENSORS = 64  # of a batch, at most
_BATCHES = 256  # of a step, at most
_IGNORED = -100  # torch's `ignore_index`


class Deep:
    """Measures what `needs` names, on the ticks that it names.

    Args:
        model: whose parameters and activations.
        entries: the modules that the loop calls.
        optimizers: their parameters are the trained ones.
        needs: parts, and each one's interval [ticks].
        clock: for `seconds`.

    Attributes:
        asleep: forward passes are somebody else's, and not looked at.
    """

    def __init__(
        self,
        model: nn.Module,
        entries: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        needs: Mapping[str, int],
        clock: Clock,
    ) -> None:
        self._model, self._entries, self._optimizers = model, entries, optimizers
        self._needs, self._clock = dict(needs), clock
        self._tick = 0
        self._last = math.nan  # time
        self._before: _Before | None = None
        self._training: bool | None = None  # is the model in training mode when it trains? None: not known yet
        self._fed = False  # batches come from the feed
        self._batches: list[_Batch] = []  # of this step, at most `_BATCHES`
        self._late: _Batch | None = None  # a large one, for the case that the step turns out to be bad
        self._marks = Marks()
        self._armed = self._inside = self.asleep = False
        self._standing: list[Callable[[], None]] = []  # undo what tells of a forward pass
        self._passing: list[Callable[[], None]] = []  # and what was put on for this look
        self._error: Exception | None = None

    # ---- what the guard calls

    def start(self) -> None:
        """Begins to watch; the first tick is one to look at."""
        if "inputs" in self._needs or "activations" in self._needs:  # for good: a compiled model notices each change
            self._standing = [
                _watch(_ENTRIES, m, self, m.register_forward_pre_hook(_enter, with_kwargs=True)) for m in self._entries
            ]
        self._armed = self._due("activations")

    def stop(self) -> None:
        """Takes every hook off and lets go of all tensors."""
        self._disarm()
        while self._standing:
            self._standing.pop()()
        self._needs.clear()
        self._batches.clear()
        self._late = self._before = None

    def saw(self, batch: Any) -> None:
        """A batch was handed to the loop."""
        if "inputs" in self._needs:
            self._fed = True
            try:
                self._note_batch(batch)
            except Exception as error:  # noqa: BLE001 - raised again where the guard can switch this off
                self.failed(error)

    def collect(self, loss: float, grad_norm: float, lr: float, scale: float) -> dict[str, Any] | None:
        """Everything that is due in this tick, or None. Called before the update.

        Args:
            loss, grad_norm: of this step; if one is not finite, the batch is looked at whatever its size.
            lr: effective learning rate.
            scale: what the gradients are still multiplied with.

        Raises:
            Exception: whatever a hook ran into since the last call.
        """
        if self._error is not None:
            raise self._error
        deep: dict[str, Any] = {}
        self._training = self._model.training
        if "seconds" in self._needs:
            now = self._clock.monotonic()
            if self._last == self._last:
                deep["seconds"] = now - self._last
            self._last = now
        with torch.no_grad():
            if self._before is not None:
                deep["updates"], self._before = self._before.compare(), None
            if self._due("updates"):
                self._before = _Before(self._trained(), self._tick, lr, scale)
            if self._due("layers"):
                deep["layers"] = _layers(self._trained(), scale)
            if self._armed and (found := self._marks.take()):
                deep["activations"] = found
            if "inputs" in self._needs and (inputs := self._inputs(loss - loss != 0.0 or grad_norm - grad_norm != 0.0)):
                deep["inputs"] = inputs
        self._disarm()
        return deep or None

    def next_tick(self, tick: int, *, updated: bool) -> None:
        """A tick is over.

        Args:
            tick: the next one.
            updated: the update ran, and nothing was restored.
        """
        self._tick = tick
        if not updated:
            self._before = None
        self._armed = self._due("activations")

    # ---- inside

    def _due(self, need: str) -> bool:
        return need in self._needs and self._tick % self._needs[need] == 0

    def _disarm(self) -> None:
        self._armed = self._inside = False
        while self._passing:
            self._passing.pop()()
        self._marks.clear()

    def _trained(self) -> list[tuple[str, Tensor]]:
        names = {id(p): n for n, p in self._model.named_parameters()}
        found = {id(p): p for o in self._optimizers for g in o.param_groups for p in g["params"]}
        return [
            (names.get(key, f"parameter {i}"), p)
            for i, (key, p) in enumerate(found.items())
            if not nn.parameter.is_lazy(p) and p.numel()
        ]

    def forward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], module: nn.Module) -> None:
        """An entry's forward pass begins; only those that train are looked at."""
        self._inside = torch.is_grad_enabled() and self._training in (None, module.training) and not self.asleep
        if not self._inside:
            return
        if "inputs" in self._needs and not self._fed:
            self._note_batch((args, kwargs))
        if self._armed:
            self._marks.forward_begins()
            self._hook()

    def _hook(self) -> None:
        """Puts the hooks on, once a look."""
        if self._marks.hooked:
            return
        self._marks.hooked = True
        for name, module in _open_modules(self._model):
            if kinds(module):
                self._passing.append(_watch(_UNITS, module, (self, name), module.register_forward_hook(_note)))
        self._passing += [m.register_forward_hook(_leave).remove for m in self._entries]

    def note(self, name: str, module: nn.Module, output: Any) -> None:
        """An activation module has put something out."""
        if self._inside:
            self._marks.add(name, module, output)

    def forward_ends(self, output: Any) -> None:
        """An entry's forward pass is over."""
        if self._inside:
            self._marks.mark_output(t for t in _tensors(output))

    def failed(self, error: Exception) -> None:
        """A hook, or a look at a batch, raised; `collect` says so."""
        self._error = error

    def _note_batch(self, batch: Any) -> None:
        found = _Batch(list(_tensors(batch)))
        if found.numbers <= _SMALL or self._due("inputs"):
            found.measure()
            self._batches.append(found)
            del self._batches[:-_BATCHES]  # a loop that never steps must not gather them
        else:
            self._late = found

    def _inputs(self, suspicious: bool) -> dict[str, Any] | None:
        batches, late = self._batches, self._late
        self._batches, self._late = [], None
        if suspicious and late is not None:
            late.measure()
            batches.append(late)
        told = [t for batch in batches if (t := batch.tell()) is not None]
        if not told:
            return None
        return {
            "finite": all(t["finite"] for t in told),
            "peak": max(t["peak"] for t in told),
            "zero": any(t["zero"] for t in told),
            "ignored": any(t["ignored"] for t in told),
        }


_Table = dict[int, tuple[weakref.ref[Any], Any]]

# ---- hooks: module-level functions that find their collector by the module's identity, so that a copy's are inert

_ENTRIES: _Table = {}
_UNITS: _Table = {}


def _watch(table: _Table, module: nn.Module, value: Any, handle: Any) -> Callable[[], None]:
    entry = table[id(module)] = (weakref.ref(module), value)

    def undo() -> None:
        handle.remove()
        if table.get(id(module)) is entry:
            del table[id(module)]

    return undo


def _find(table: _Table, module: nn.Module) -> Any:
    entry = table.get(id(module))
    return entry[1] if entry is not None and entry[0]() is module else None


def _enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not torch.compiler.is_compiling() and (deep := _find(_ENTRIES, module)) is not None:
        try:
            deep.forward_begins(args, kwargs, module)
        except Exception as error:  # noqa: BLE001 - raised again where the guard can switch this off
            deep.failed(error)


def _note(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG001 - torch's signature
    if not torch.compiler.is_compiling() and (found := _find(_UNITS, module)) is not None:
        try:
            found[0].note(found[1], module, output)
        except Exception as error:  # noqa: BLE001 - raised again where the guard can switch this off
            found[0].failed(error)


def _leave(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG001 - torch's signature
    if not torch.compiler.is_compiling() and (deep := _find(_ENTRIES, module)) is not None:
        try:
            deep.forward_ends(output)
        except Exception as error:  # noqa: BLE001 - raised again where the guard can switch this off
            deep.failed(error)


def _open_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """All modules by name, but those inside a compiled one: a hook there would mean another compilation, or nothing."""
    found, closed = [], ["\0"]
    for name, module in model.named_modules():
        if name.startswith(tuple(closed)):
            continue
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            closed.append(f"{name}." if name else "")
        else:
            found.append((name, module))
    return found


# ---- tensors -> numbers


def _plain(t: Tensor) -> Tensor:
    """Its numbers as one dense local real tensor of at least single precision."""
    t = t.detach()
    t = values(t.to_local() if hasattr(t, "to_local") else t)
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.float() if t.element_size() < 4 else t


def _norm(t: Tensor) -> Tensor:
    return torch.linalg.vector_norm(t) if t.numel() else torch.zeros((), device=t.device)


def _layers(trained: Sequence[tuple[str, Tensor]], scale: float) -> dict[str, Any]:
    parts: list[Tensor] = []
    for _, p in trained:
        w = _plain(p)
        low, high = torch.aminmax(w) if w.numel() else (torch.zeros(()), torch.zeros(()))
        parts += [_norm(w), low, high, _norm(_plain(p.grad)) if p.grad is not None else low]
    numbers = iter(read(parts))
    layers = {}
    for name, p in trained:
        norm, least, most, grad = next(numbers), next(numbers), next(numbers), next(numbers)
        layers[name] = {
            "size": p.numel(),
            "dims": p.dim(),
            "grad": None if p.grad is None else grad / scale,
            "norm": norm,
            "peak": max(-least, most),
            "spread": most - least,
        }
    return layers


class _Before:
    """Weights before an update, to be compared with those of the next tick."""

    def __init__(self, trained: Sequence[tuple[str, Tensor]], tick: int, lr: float, scale: float) -> None:
        self._trained, self._tick, self._lr = trained, tick, lr
        self._copies = [_sample(p).clone() for _, p in trained]
        norms = iter(read([_norm(_plain(p.grad)) for _, p in trained if p.grad is not None]))
        self._gradients = [None if p.grad is None else next(norms) / scale for _, p in trained]

    def compare(self) -> dict[str, Any]:
        parts: list[Tensor] = []
        kept = []
        for (name, p), before, grad in zip(self._trained, self._copies, self._gradients, strict=True):
            after = _sample(p)
            if after.shape == before.shape and after.device == before.device and before.numel():
                parts += [_norm(_plain(after) - _plain(before)), _norm(_plain(before))]
                kept.append((name, p.dim(), before.numel(), grad))
        numbers = iter(read(parts))
        layers = {}
        for name, dims, size, grad in kept:
            change, norm = next(numbers), next(numbers)
            ratio = change / norm if norm > 0.0 else math.inf if change else 0.0
            layers[name] = {"dims": dims, "rms": norm / math.sqrt(size), "ratio": ratio, "grad": grad}
        return {"tick": self._tick, "lr": self._lr, "layers": layers}


def _sample(p: Tensor) -> Tensor:
    """All of a small tensor, at most `_SAMPLE` evenly spaced numbers of a large one."""
    t = p.detach()
    t = t.to_local() if hasattr(t, "to_local") else t
    stride = -(-t.numel() // _SAMPLE) | 1  # odd: not in step with rows of an even length
    return t if stride == 1 else t.flatten()[::stride]


class _Batch:
    """Tensors of one batch, and what they say. Those on a CPU are asked at once, others when the step asks."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = [t for t in tensors if t.numel() and (t.is_floating_point() or t.dtype == torch.int64)]
        self.numbers = sum(t.numel() for t in self._tensors if t.is_floating_point())
        self._ends: list[Tensor] = []  # smallest and largest number of each
        self._told: dict[str, Any] | None = None

    @torch.no_grad()
    def measure(self) -> None:
        self._ends = [end for t in self._tensors for end in torch.aminmax(t.detach())]
        if all(t.is_cpu for t in self._tensors):
            self.tell()

    def tell(self) -> dict[str, Any] | None:
        """What is in it; None if there is nothing to look at."""
        if self._tensors:
            self._told = self._look()
            self._tensors, self._ends = [], []
        return self._told

    def _look(self) -> dict[str, Any]:
        numbers = read(self._ends)
        ends = list(zip(self._tensors, numbers[::2], numbers[1::2], strict=True))
        floats = [(t, low, high) for t, low, high in ends if t.is_floating_point()]
        wrong = [t for t, low, high in floats if not (low > -math.inf and high < math.inf) and not _is_mask(t)]
        largest = max(floats, key=lambda f: f[0].numel(), default=None)
        peaks = [max(-low, high) for _, low, high in floats if low > -math.inf and high < math.inf]
        return {
            "finite": not wrong,
            "peak": max(peaks, default=0.0),
            "zero": largest is not None and largest[0].numel() > 1 and largest[1] == largest[2] == 0.0,
            "ignored": any(low == high == _IGNORED for t, low, high in ends if t.dtype == torch.int64),
        }


def _is_mask(t: Tensor) -> bool:
    """An additive attention mask: 0 where one may look, -Inf elsewhere."""
    return bool(((t == 0) | (t == -math.inf)).all())


def _tensors(thing: Any, depth: int = 4) -> Iterable[Tensor]:
    """Tensors in tuples, lists and mappings, in order; those that are called a mask are left out."""
    stack, found = [(thing, depth)], 0
    while stack and found < _TENSORS:
        thing, depth = stack.pop()
        if isinstance(thing, Tensor):
            if thing.layout == torch.strided:
                found += 1
                yield thing
        elif depth and isinstance(thing, Mapping):
            stack += [(v, depth - 1) for k, v in reversed(list(thing.items())) if "mask" not in str(k).lower()]
        elif depth and isinstance(thing, (tuple, list)):
            stack += [(v, depth - 1) for v in reversed(thing[:_TENSORS])]
