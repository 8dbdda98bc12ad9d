"""Buffers as they were at the iteration boundary, so that a step that is left out leaves nothing of its forward pass.

Buffers require no gradient, so none of this needs `torch.no_grad`, which costs more than the rest of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

_Place = tuple[dict[str, Tensor | None], str]  # a module's buffers, and the name of one


class ChangedBuffers:
    """Remembers what forward passes change.

    Torch counts in-place changes (`_version`), so buffers that never change are copied once and then only counted.
    Normalisation layers change their statistics without counting: those are copied whenever such a layer trains.

    Args:
        model: its buffers of now; layers that are added later are not looked at.
    """

    def __init__(self, model: nn.Module) -> None:
        self._norms = [m for m in model.modules() if isinstance(m, _NormBase)]
        statistics = [(m._buffers, n, b) for m in self._norms for n, b in m._buffers.items() if b is not None]
        self._silent = [
            _Together([(owner, n) for owner, n, b in statistics if b.is_floating_point() is floating])
            for floating in (True, False)
        ]
        self._counted = [
            _Counted(m._buffers, n)
            for m in model.modules()
            if not isinstance(m, _NormBase)
            for n, b in m._buffers.items()
            if b is not None
        ]

    def remember(self) -> None:
        """Copies what has changed since the last call."""
        if self._norms and (not self._silent[0].live or any(m.training for m in self._norms)):
            for together in self._silent:
                together.remember()
        for counted in self._counted:
            counted.remember()

    @contextlib.contextmanager
    def as_remembered(self) -> Iterator[None]:
        """For a moment they are as they were at the iteration boundary."""
        parts: list[_Together | _Counted] = [*self._silent, *self._counted]
        now = [(b, b.detach().clone()) for part in parts for b in part.now()]
        self.put_back()
        try:
            yield
        finally:
            for buffer, value in now:
                buffer.copy_(value)

    def put_back(self) -> None:
        """Undoes what the forward passes of this iteration did."""
        parts: list[_Together | _Counted] = [*self._silent, *self._counted]
        for part in parts:
            part.put_back()


class _Together:
    """Buffers of one kind that are copied together."""

    def __init__(self, where: list[_Place]) -> None:
        self.where = where
        self.live: list[Any] = []
        self.copies: list[Tensor] = []

    def remember(self) -> None:
        live = [owner[name] for owner, name in self.where]
        if live and all(map(is_, live, self.live)) and len(live) == len(self.live):
            torch._foreach_copy_(self.copies, live)  # type: ignore[arg-type]
        else:
            self.live, self.copies = live, [b.detach().clone() for b in live]  # type: ignore[union-attr]

    def now(self) -> list[Tensor]:
        """The live ones that `put_back` changes."""
        return [b for owner, name in self.where[: len(self.copies)] if (b := owner[name]) is not None]

    def put_back(self) -> None:
        for (owner, name), copy in zip(self.where, self.copies, strict=False):
            owner[name].copy_(copy)  # type: ignore[union-attr]


class _Counted:
    """One buffer whose changes torch counts."""

    __slots__ = ("copy", "name", "owner", "seen", "version")

    def __init__(self, owner: dict[str, Tensor | None], name: str) -> None:
        self.owner, self.name = owner, name
        self.seen: Tensor | None = None
        self.version = -1
        self.copy: Tensor | None = None

    def remember(self) -> None:
        buffer = self.owner[self.name]
        if buffer is None or (buffer is self.seen and buffer._version == self.version):
            return
        if self.copy is None or self.copy.shape != buffer.shape or self.copy.dtype != buffer.dtype:
            self.copy = buffer.detach().clone()
        else:
            self.copy.copy_(buffer)
        self.seen, self.version = buffer, buffer._version

    def now(self) -> list[Tensor]:
        """The live one, if `put_back` may change it."""
        buffer = self.owner[self.name]
        return [] if buffer is None or self.copy is None else [buffer]

    def put_back(self) -> None:
        buffer = self.owner[self.name]
        if (
            buffer is not None
            and self.copy is not None
            and (buffer is not self.seen or buffer._version != self.version)
        ):
            buffer.copy_(self.copy)
