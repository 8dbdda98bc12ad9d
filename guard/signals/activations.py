"""Units that are dead or saturated: counted for each unit, from look to look."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from guard.signals.transfer import read

_LOOKS = 8  # looks in a row that are told apart
_CALLS = 8  # calls of one module in a forward pass that are told apart; of further ones nothing is noted
_SLOPE = 0.01  # share of its largest slope below which a function is flat

_ALMOST_ZERO = 1e-6  # of smooth functions such as GELU

_RELU = frozenset({"ReLU", "ReLU6", "ReLUSquaredActivation", "Hardswish"})
_SMOOTH = frozenset(
    {
        "GELU",
        "SiLU",
        "Mish",
        "Swish",
        "GELUActivation",
        "NewGELUActivation",
        "FastGELUActivation",
        "QuickGELUActivation",
        "SiLUActivation",
        "MishActivation",
    }
)
# What is not flat, by the function's value y: slopes are y(1 - y) of sigmoid, 1 - y^2 of tanh, (1 - |y|)^2 of softsign.
_SATURATING: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "Sigmoid": lambda y, _: y * (1 - y) >= 0.25 * _SLOPE,
    "Tanh": lambda y, _: 1 - y * y >= _SLOPE,
    "Softsign": lambda y, _: (1 - y.abs()).square() >= _SLOPE,
    "Hardtanh": lambda y, m: (y > m.min_val) & (y < m.max_val),
    "Hardsigmoid": lambda y, _: (y > 0) & (y < 1),
    "ReLU6": lambda y, _: y < 6,
}

Test = Callable[[Tensor, Any], Tensor]


def kinds(module: nn.Module) -> dict[str, Test]:
    """What can befall its units (``dead``, ``saturated``), and the test that a value passes if it has not."""
    name = type(module).__name__
    if isinstance(module, nn.RNN):
        return {"saturated": _SATURATING["Tanh"]} if module.nonlinearity == "tanh" else {"dead": _not_zero}
    found: dict[str, Test] = {}
    if name in _RELU:
        found["dead"] = _not_zero
    elif name in _SMOOTH:
        found["dead"] = _not_almost_zero
    if name in _SATURATING:
        found["saturated"] = _SATURATING[name]
    return found


def _not_zero(y: Tensor, _: Any) -> Tensor:
    return y != 0


def _not_almost_zero(y: Tensor, _: Any) -> Tensor:
    return ~(y.abs() <= _ALMOST_ZERO)  # NaN is not dead


def _by_unit(lively: Tensor) -> list[Tensor]:
    """Which units were lively for some sample. A unit is an index of the second dimension (channels of an image) or of
    the last (features of a sequence): nothing tells which, so both are counted, and the more idle one is told."""
    if lively.dim() <= 1:
        return [lively.any().reshape(1)]
    every = range(lively.dim())
    return [lively.any(dim=[d for d in every if d != unit]) for unit in sorted({1, lively.dim() - 1})]


@dataclass(slots=True)
class _Mark:
    """One call of a module in this look.

    Args:
        lively: by way of counting, which units were lively so far.
        values: numbers of a unit so far.
        where: address of the output; it lives until the backward pass.
    """

    lively: list[Tensor]
    values: list[int]
    where: int


class Marks:
    """What activation modules put out during a look, and for how many looks each unit has been idle.

    Attributes:
        hooked: the hooks of this look are on.
    """

    def __init__(self) -> None:
        self.hooked = False
        self._marks: dict[tuple[str, str], _Mark] = {}  # place, kind
        self._idle: dict[tuple[str, str], list[Tensor]] = {}  # looks in a row, by unit
        self._calls: dict[str, int] = {}
        self._outputs: set[str] = set()  # places whose output is the model's

    def forward_begins(self) -> None:
        self._calls.clear()

    def clear(self) -> None:
        self.hooked = False
        self._marks.clear()
        self._calls.clear()

    @torch.no_grad()
    def add(self, name: str, module: nn.Module, output: Any) -> None:
        """Takes one output in. What needs no gradient is not trained, and nothing is noted of it."""
        y = output[0] if isinstance(output, tuple) and output else output
        y = y.data if isinstance(y, PackedSequence) else y
        if not isinstance(y, Tensor) or not y.requires_grad or not y.is_floating_point() or not y.numel():
            return
        if torch._C._current_graph_task_id() != -1 and (name, next(iter(kinds(module)))) in self._marks:
            return  # a checkpoint computes it again during backward
        call = self._calls[name] = self._calls.get(name, 0) + 1
        if call > _CALLS:
            return
        place = name if call == 1 else f"{name}#{call}"
        y = y.detach()
        where = y.untyped_storage().data_ptr()
        for kind, test in kinds(module).items():
            lively = _by_unit(test(y, module))
            numbers = [y.numel() // len(u) for u in lively]
            mark = self._marks.get((place, kind))
            if mark is None or [len(u) for u in mark.lively] != [len(u) for u in lively]:
                self._marks[place, kind] = _Mark(lively, numbers, where)
            else:
                mark.lively = [a | b for a, b in zip(mark.lively, lively, strict=True)]
                mark.values = [a + b for a, b in zip(mark.values, numbers, strict=True)]
                mark.where = where

    def mark_output(self, outputs: Iterable[Tensor]) -> None:
        """These are what the model puts out."""
        addresses = {t.untyped_storage().data_ptr() for t in outputs if t.requires_grad}
        self._outputs |= {place for (place, _), mark in self._marks.items() if mark.where in addresses}

    def take(self) -> dict[str, Any]:
        """Ends the look: by place, units, values, and shares of idle units; see `guard.signals.deep`."""
        asked: list[tuple[str, str, int, int, int]] = []
        shares: list[Tensor] = []
        for (place, kind), mark in self._marks.items():
            before = self._idle.get((place, kind), [])
            now = []
            for i, (lively, numbers) in enumerate(zip(mark.lively, mark.values, strict=True)):
                idle = torch.ones_like(lively, dtype=torch.int32)
                if i < len(before) and before[i].shape == idle.shape and before[i].device == idle.device:
                    idle += before[i]
                idle = idle.masked_fill(lively, 0).clamp_(max=_LOOKS)
                now.append(idle)
                asked.append((place, kind, len(lively), numbers, len(shares)))
                shares += [(idle >= n).float().mean() for n in range(1, _LOOKS + 1)]
            self._idle[place, kind] = now
        numbers_read = read(shares)
        found: dict[str, Any] = {}
        for place, kind, units, count, at in asked:
            row = numbers_read[at : at + _LOOKS]
            entry = found.setdefault(place, {})
            if kind == "saturated" and place in self._outputs:
                continue
            if kind not in entry or row[::-1] > entry[kind][::-1]:
                entry |= {kind: row, "units": units, "values": count}
        self._marks.clear()
        return {place: entry for place, entry in found.items() if entry}
