"""The batch of the iteration that is under way, and the random states with which it began: should it fail, it is
evidence, and can be tried again.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from guard.checkpoints import RngState

_LOOKS = 4  # iterations


class Iteration:
    """What the loop was given in this iteration, by reference.

    Torch's random state is kept only if the iterations draw from it, which the first ones tell.

    Args:
        everything: all random states are wanted, in any case; they cost fifty times as much as torch's.

    Attributes:
        batches: its micro-batches so far.
        calls: ``(module, args, kwargs)`` of the model's calls in a loop that only calls `attach`.
        rng: the random states before the first of them was given out; None: nothing draws from them.
    """

    def __init__(self, *, everything: bool) -> None:
        self.batches: list[Any] = []
        self.calls: list[tuple[nn.Module, Any, Any]] = []
        self.rng: RngState | None = None
        self._capture = RngState.capture if everything else RngState.of_torch
        self._looks, self._draws = 0 if everything else _LOOKS, True
        self._new = True

    def keep(self, batch: Any, first: bool) -> None:
        """A micro-batch; the `first` of an iteration lets go of the one before."""
        if not first:
            self.batches.append(batch)
            return
        self.batches = [batch]
        if self._draws:
            self._begin()

    def begin(self) -> None:
        """Another iteration begins, in a loop that does not say what its batches are."""
        self._new = True

    def called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The model is called in such a loop."""
        if not self._new:
            self.calls.append((module, args, kwargs))
            return
        self._new, self.calls = False, [(module, args, kwargs)]
        if self._draws:
            self._begin()

    def _begin(self) -> None:
        if self._looks and self.rng is not None:
            self._look(self.rng)
        if self._draws:
            self.rng = self._capture()

    def _look(self, began: RngState) -> None:
        """An iteration is over: has anything been drawn in it?"""
        self._looks -= 1
        if not began.alike(RngState.of_torch()):
            self._looks = 0
        elif not self._looks:
            self._draws, self.rng = False, None

    def copy(self, max_bytes: int, moment: dict[str, int]) -> tuple[dict[str, Any] | None, str | None]:
        """What ``batch.pt`` is to hold, or None and why not.

        Args:
            max_bytes: no more than so much.
            moment: numbers to go with it.
        """
        if not max_bytes:
            return None, "a batch is not wanted"
        if not self.batches or self.rng is None:
            return None, "the loop does not take its batches from g.batches"
        size = sum(map(size_of, self.batches))
        if size > max_bytes:
            return None, f"the batch takes {size} bytes, more than {max_bytes}"
        try:
            return {"batches": [clone(b) for b in self.batches], "rng": _plain(self.rng), **moment}, None
        except Exception as error:  # noqa: BLE001 - a batch may hold anything
            return None, f"the batch cannot be copied ({type(error).__name__}: {error})"[:300]


def size_of(value: Any) -> int:
    """Bytes of the tensors in a batch."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(size_of, value))
    return int(getattr(value, "nbytes", 0))


def clone(value: Any) -> Any:
    """A copy in host memory that nobody else writes to."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {k: clone(v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: clone(v) for name, v in zip(value._fields, value, strict=True)}
    if isinstance(value, (list, tuple)):
        return [clone(v) for v in value]
    return copy.deepcopy(value)


def _plain(rng: RngState) -> dict[str, Any]:
    """As numbers and tensors only, which `torch.load` reads with `weights_only=True`."""
    numpy = None if rng.numpy is None else [rng.numpy[0], rng.numpy[1].tolist(), *rng.numpy[2:]]
    return {"python": rng.python, "numpy": numpy, "cpu": rng.cpu.clone(), "cuda": [s.clone() for s in rng.cuda]}
