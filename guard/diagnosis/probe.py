"""Watches one forward and backward pass, and says where the first tensor that is not finite was born.

Every torch function is seen with its inputs and outputs (a `TorchFunctionMode`, which is transparent to what it
watches), with the module in whose forward it was called. A mask of -inf is nothing bad: what counts is what flows into
the loss, so the way back from there is followed to where all inputs were in order. What is born backward is found at
the nodes of the graph: the first whose incoming gradients are finite and whose outgoing ones are not.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from guard.diagnosis import functions
from guard.diagnosis.looks import look, sound, span, tensors
from guard.diagnosis.models import bare, eager, is_mask
from guard.incidents.diagnose import Look, Origin, Role

_SHOWN = 5  # looks before the first bad one
_MOST = 50_000  # functions that are remembered
_INPUTS = 4  # of a function that are looked at
_OUTSIDE = "\0"  # in place of a module's path: not in the model


@dataclass(slots=True)
class _Call:
    """One function whose output is not finite.

    Args:
        index: how many looks there were before it.
        parents: calls that made its bad inputs; leaves: bad inputs that no call made.
        masks: its only non-finite elements are -inf or +inf, put there on purpose.
    """

    look: Look
    index: int
    output: Tensor
    given: tuple[Tensor, ...]
    parents: list[_Call] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)
    masks: bool = False
    outside: bool = False


class Probe(TorchFunctionMode):
    """For one step; `start`, let it run, `stop`, `origin`.

    Args:
        model: as it was given to the guard.
        given: what the step is made from, with names.
    """

    def __init__(self, model: nn.Module, given: Iterable[tuple[str, Tensor]]) -> None:
        super().__init__()
        self._model = bare(model)
        self._names = {m: name for name, m in self._model.named_modules(remove_duplicate=True)}
        self._batches = list(given)
        self._stack: list[str] = []
        self._undo: list[Callable[[], None]] = []
        self._looks: list[Look] = []
        self._made: dict[int, _Call] = {}
        self._kept: list[Any] = []  # else an identity could be used again
        self._where: dict[Any, tuple[str, str]] = {}  # node of the graph -> module, function
        self._backward: tuple[Any, str, str, tuple[Tensor, ...], Tensor] | None = None
        self._fed: set[int] = set()
        self._sound: set[int] = set()
        self._chains: dict[tuple[str, str], list[float]] = {}
        self._inside = self._looking = False
        self._found: Origin | None = None
        self._birth: Tensor | None = None
        self.outputs: list[Tensor] = []
        self.loss: Tensor | None = None
        self.on = self._pushed = False

    # ---- coming and going

    def start(self) -> None:
        """From now on everything is seen."""
        for module, name in self._names.items():
            self._undo.append(module.register_forward_pre_hook(self._enter(name), with_kwargs=True).remove)
            self._undo.append(module.register_forward_hook(self._leave(name), always_call=True).remove)
        self._undo.append(eager())
        self._look_at_what_stands()
        self.on = self._pushed = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def on_step(self) -> None:
        """The step has come: nothing more is looked at, but gradients still are what backward left."""
        with self._aside():
            self._found = self.origin()
        self.stop()

    def stop(self) -> None:
        """Takes everything off; may be called twice."""
        self.on = False
        top = _get_current_function_mode()  # type: ignore[no-untyped-call]
        if self._pushed and top is self:  # else somebody's own is on top: once more, later
            self._pushed = False
            self.__exit__(None, None, None)
        while self._undo:
            self._undo.pop()()

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
            self._stack.append(name)
            self._inside = True
            if not name and not self._looking:
                self._fed |= {t.data_ptr() for _, t in tensors((args, kwargs))}

        return enter

    def _leave(self, name: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            with self._aside():
                self._left(name, module, args, output)
            if self._stack:
                self._stack.pop()

        return leave

    def _left(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        """A module is done. What a scripted or a foreign one did inside was not seen."""
        if not name:
            self.outputs = [t.detach() for _, t in tensors(output)]
        for _, t in tensors(output):
            if t.grad_fn is not None:
                self._where.setdefault(t.grad_fn, (name, ""))
            if id(t) not in self._made and not sound(t):
                self._note(type(module).__name__.lower(), name, [t], [t for _, t in tensors(args)])

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """What happens inside is the probe's own."""
        before, self._looking = self._looking, True
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it belongs to somebody's training step
            self._kept.append(error)
        finally:
            self._looking = before

    # ---- forward

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        try:
            if self.on and not self._looking and len(self._looks) < _MOST and (name := functions.called(func)):
                self._see(name, args, kwargs or {}, out)
        except Exception:  # noqa: BLE001 - what cannot be looked at is not seen; it belongs to somebody's training step
            self._kept.append(func)
        return out

    def _see(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        made = [t for _, t in tensors(args[0] if functions.in_place(name) and args else out)]
        given = [t for _, t in tensors((args, kwargs))]
        self._note(functions.told(name), self._stack[-1] if self._stack else "", made, given)

    def _note(self, op: str, path: str, made: list[Tensor], given: list[Tensor]) -> None:
        """A function was called; what it made is looked at."""
        outside = not self._stack
        role: Role = "loss" if outside and self._inside else "output"
        for t in made:
            found = span(t)
            if found is None:
                continue
            if t.grad_fn is not None:
                self._where[t.grad_fn] = (_OUTSIDE if outside else path, op)
            if op not in functions.MOVES:
                self._chains.setdefault((path, op), []).append(max(abs(found[0]), abs(found[1])))
            if math.isfinite(found[0]) and math.isfinite(found[1]):
                self._looks.append(look(role, path, t, op, found))
                continue
            call = _Call(look(role, path, t, op), len(self._looks), t.detach(), tuple(given[:_INPUTS]), outside=outside)
            for source in given:
                maker = self._made.get(id(source))
                if (source is t and maker is None) or source.data_ptr() in self._sound or sound(source):
                    continue
                if maker is not None:
                    call.parents.append(maker)
                else:
                    call.leaves.append(source)
            call.masks = not any(map(math.isnan, found)) and (op in functions.MASKS or self._still_mask(op, call))
            self._kept.append(t)
            self._made[id(t)] = call

    def _still_mask(self, op: str, call: _Call) -> bool:
        """Its infinities come from masks, and are carried on only."""
        whole = all(p.masks for p in call.parents) and all(self._is_mask(leaf) for leaf in call.leaves)
        return op in functions.KEEPS_MASKS and bool(call.parents or call.leaves) and whole

    def _is_mask(self, leaf: Tensor) -> bool:
        """Infinities of a buffer or of a constant, without NaN: they are meant."""
        found = span(leaf)
        given = isinstance(leaf, nn.Parameter) or any(leaf.data_ptr() == t.data_ptr() for _, t in self._batches)
        return found is not None and not any(map(math.isnan, found)) and not given

    # ---- backward

    def before_backward(self, given: Any) -> None:
        """Backward is about to run: watches the nodes of its graph."""
        if self.on:
            with self._aside():
                self._watch(given)

    def _watch(self, given: Any) -> None:
        found = [t for _, t in tensors(given)]
        self.loss = found[0] if len(found) == 1 else self.loss
        todo = [(t.grad_fn, (_OUTSIDE, "")) for t in found if t.grad_fn is not None]
        seen: set[Any] = set()
        while todo:
            node, place = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            place = self._where.get(node, place)
            self._undo.append(node.register_hook(self._passed(node, place)).remove)
            todo += [(n, place) for n, _ in node.next_functions if n is not None and hasattr(n, "register_hook")]
        self._kept.append(seen)

    def _passed(self, node: Any, place: tuple[str, str]) -> Callable[..., None]:
        name = type(node).__name__

        def passed(outgoing: Any, incoming: Any) -> None:
            if self._backward is None and name != "AccumulateGrad":
                with self._aside():
                    look_at(outgoing, incoming)

        def look_at(outgoing: Any, incoming: Any) -> None:
            bad = next((g for g in outgoing if isinstance(g, Tensor) and not sound(g)), None)
            came = tuple(g for g in incoming if isinstance(g, Tensor))
            if bad is not None and all(map(sound, came)):
                self._backward = (node, place[0], functions.of_node(name), came, bad.detach())

        return passed

    # ---- what stands still

    def _look_at_what_stands(self) -> None:
        """Batch, weights, buffers, as they are before the step."""
        named: list[tuple[Role, str, Tensor]] = [("input", n, t) for n, t in self._batches]
        named += [("weight", n, p) for n, p in self._model.named_parameters() if not nn.parameter.is_lazy(p)]
        named += [("buffer", n, b) for n, b in self._model.named_buffers()]
        for role, name, t in named:
            found = span(t)
            if found is None:
                continue
            fine = math.isfinite(found[0]) and math.isfinite(found[1])
            self._looks.append(look(role, name, t, "", found if fine else None))
            if fine and role != "input":
                self._sound.add(t.data_ptr())  # whatever a forward pass makes of a buffer

    # ---- the verdict

    def origin(self) -> Origin | None:
        """Where the first bad tensor came from; None: nothing bad reached loss or gradients."""
        if self._found is not None:
            return self._found
        if self.loss is not None and not sound(self.loss):
            made = self._made.get(id(self.loss))
            return self._leaf([self.loss]) if made is None else self._follow(made)
        if self._backward is not None:
            odd = next(((n, t) for n, t in self._batches if not sound(t) and not is_mask(t)), None)
            return self._of_backward(*self._backward) if odd is None else self._leaf([odd[1]])
        bad = [
            c
            for t in self.outputs
            if (c := next((m for m in self._made.values() if m.output.data_ptr() == t.data_ptr()), None))
        ]
        if self.loss is None and bad:
            return self._follow(bad[0])
        for name, p in self._model.named_parameters():
            if p.grad is not None and not sound(p.grad):
                return Origin(look("gradient", name, p.grad), backward=True, before=self._before(len(self._looks)))
        return None

    def bad_rows(self, size: int) -> list[int]:
        """Samples of a batch of `size` whose numbers are not finite where it was born; empty: not known, or all."""
        t = self._birth
        if t is None or not t.dim() or not t.shape[0] or t.shape[0] % size:
            return []
        rows = ~torch.isfinite(t.reshape(size, -1)).all(1)
        chosen = [int(i) for i in rows.nonzero().flatten().tolist()]
        return chosen if len(chosen) < size else []

    def _follow(self, call: _Call) -> Origin:
        """Back to the call whose inputs were all in order, or to a bad tensor that no call made."""
        seen: set[int] = set()
        while True:
            seen.add(id(call))
            leaves = [t for t in call.leaves if not self._is_mask(t)]
            if leaves:
                return self._leaf(leaves)
            earlier = [p for p in call.parents if not p.masks and id(p) not in seen]
            if not earlier:
                break
            call = min(earlier, key=lambda c: c.index)
        self._birth = call.output
        inputs = tuple(look("input", "", t) for t in call.given if span(t) is not None)
        calls, growth = self._loop(call.look)
        return Origin(call.look, False, inputs, self._before(call.index), calls, growth, call.outside)

    def _leaf(self, found: list[Tensor]) -> Origin:
        """A bad tensor that was there before the step: of the batch, a weight, a buffer."""
        for t in found:
            for name, of_batch in self._batches:
                if of_batch.data_ptr() == t.data_ptr():
                    given: Role = "input" if t.data_ptr() in self._fed or not self._fed else "target"
                    self._birth = of_batch
                    return Origin(look(given, name, of_batch), before=self._before_named(name))
            state: list[tuple[Role, str, Tensor]] = [("weight", n, p) for n, p in self._model.named_parameters()]
            state += [("buffer", n, b) for n, b in self._model.named_buffers()]
            for role, name, standing in state:
                if standing.data_ptr() == t.data_ptr():
                    return Origin(look(role, name, standing), before=self._before_named(name))
        t = found[0]
        self._birth = t
        return Origin(look("input", "a tensor from elsewhere", t), before=self._before(0))

    def _of_backward(self, node: Any, path: str, op: str, came: tuple[Tensor, ...], bad: Tensor) -> Origin:
        self._birth = bad
        outside = path == _OUTSIDE
        called = self._where.get(node, ("", ""))[1]
        first = look("loss" if outside else "output", "" if outside else path, bad, called or op)
        inputs = tuple(look("gradient", "", g) for g in came[:_INPUTS])
        return Origin(first, True, inputs, self._before(len(self._looks)), outside=outside)

    def _loop(self, first: Look) -> tuple[int, float]:
        """How often the function was called in this module, and how much its output grew each time."""
        peaks = [p for p in self._chains.get((first.name, first.op), []) if 0.0 < p < math.inf]
        if len(peaks) < 3:
            return len(peaks) + 1, 1.0
        late = peaks[len(peaks) // 2 :]
        steps = max(1, len(late) - 1)
        growth = (late[-1] / late[0]) ** (1.0 / steps) if late[0] > 0.0 else 1.0
        return len(peaks) + 1, growth if sorted(late) == late else 1.0

    def _before(self, index: int) -> tuple[Look, ...]:
        return tuple(self._looks[max(0, index - _SHOWN) : index])

    def _before_named(self, name: str) -> tuple[Look, ...]:
        index = next((i for i, seen in enumerate(self._looks) if seen.name == name), len(self._looks))
        return self._before(index)
