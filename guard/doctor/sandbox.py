"""Everything a check does, it does here: on copies, from the same start, with the same random numbers."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from guard.checkpoints.rng import RngState
from guard.doctor.setup import Setup

_HALF = (torch.float16, torch.bfloat16)
_TABLES = ("_parameters", "_buffers", "_modules")


class Sandbox:
    """Copies of model, loss function and optimizer that can be trained and put back as often as one likes.

    A model that cannot be copied, or that the loss function holds on to by itself, is worked on in place; when the
    sandbox closes it is as it was, bit for bit.

    Attributes:
        model, loss, optimizer: to work with. The optimizer is always a copy; the set-up's own is never stepped.
        in_place: the model is the user's own.
        given: the set-up brought an optimizer; else it is AdamW at 1e-3.
    """

    def __init__(self, setup: Setup, seed: int = 0) -> None:
        self.setup, self.seed = setup, seed
        self._outside = RngState.capture()
        self.given = setup.optimizer is not None
        self.in_place = holds(setup.loss, setup.model)
        if not self.in_place:
            try:
                self.model, self.loss, self.optimizer, self.scheduler = copy.deepcopy(
                    (setup.model, setup.loss, setup.optimizer, setup.scheduler)
                )
            except Exception:  # noqa: BLE001 - hooks, locks, graphs: whatever cannot be copied
                self.in_place = True
        if self.in_place:
            memo: dict[int, Any] = {id(t): t for t in _tensors_of(setup.model, setup.loss)}
            self.model, self.loss = setup.model, setup.loss
            self.optimizer, self.scheduler = copy.deepcopy((setup.optimizer, setup.scheduler), memo)
        self._kept = _Kept(self.model, self.loss)
        try:
            if not self.in_place and any(p.dtype in _HALF for p in self.model.parameters()):
                self.model.float()
                self._kept = _Kept(self.model, self.loss)
            if self.optimizer is None:
                trained = [p for p in self.model.parameters() if p.requires_grad]
                self.optimizer = torch.optim.AdamW(trained, lr=1e-3) if trained else None
            self._optimizer_state = copy.deepcopy(self.optimizer.state_dict()) if self.optimizer else None
            for p in self.model.parameters():
                p.grad = None
        except BaseException:
            self.close()
            raise

    @property
    def device(self) -> torch.device:
        return next((t.device for t in self.model.parameters()), torch.device("cpu"))

    @property
    def floating(self) -> torch.dtype | None:
        """What half-precision inputs are turned into, because the parameters were."""
        half = not self.in_place and any(p.dtype in _HALF for p in self.setup.model.parameters())
        return torch.float32 if half else None

    @contextlib.contextmanager
    def trial(self, *, quiet: bool = False) -> Iterator[nn.Module]:
        """The model at its start, with fixed random numbers; put back afterwards.

        Args:
            quiet: without dropout; batch normalisation still uses its batch.
        """
        self.reset()
        self.still(self.model) if quiet else self.model.train()
        try:
            with torch.enable_grad():
                yield self.model
        finally:
            self.reset()

    def reset(self) -> None:
        """Weights, buffers, optimizer state and random numbers as at the start; no gradients."""
        self._kept.restore()
        for p in self.model.parameters():
            p.grad = None
        if self.optimizer is not None and self._optimizer_state is not None:
            self.optimizer.state.clear()
            self.optimizer.load_state_dict(copy.deepcopy(self._optimizer_state))
        torch.manual_seed(self.seed)

    @staticmethod
    def still(model: nn.Module) -> None:
        """Evaluation mode, but batch normalisation and recurrent layers as in training, the latter without dropout."""
        model.eval()
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.train()
            elif isinstance(module, nn.RNNBase):
                module.train()
                module.dropout = 0.0

    def close(self) -> None:
        """Nothing of the user's has changed after this."""
        if self.in_place:
            self._kept.restore(grads=True)
        self._outside.restore()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Kept:
    """Values of all tensors of some modules, and their other attributes: modes, counters, hidden states."""

    def __init__(self, *owners: Any) -> None:
        self._modules = [m for owner in owners if isinstance(owner, nn.Module) for m in owner.modules()]
        self._tensors: list[tuple[Tensor, Tensor]] = [(t, t.detach().clone()) for t in _tensors_of(*owners)]
        self._slots = [(m, dict(m._parameters), dict(m._buffers)) for m in self._modules]
        self._plain = [(m, {k: v for k, v in vars(m).items() if k not in _TABLES}) for m in self._modules]
        self._requires = [(t, t.requires_grad) for t, _ in self._tensors if t.is_leaf]
        self._grads = [(t, t.grad) for t, _ in self._tensors if t.is_leaf]

    @torch.no_grad()
    def restore(self, *, grads: bool = False) -> None:
        for module, parameters, buffers in self._slots:
            module._parameters.update(parameters)
            module._buffers.update(buffers)
        for tensor, value in self._tensors:
            if tensor.shape == value.shape:
                tensor.copy_(value)
            else:
                tensor.data = value.clone()
        for tensor, requires in self._requires:
            tensor.requires_grad_(requires)
        for module, plain in self._plain:
            now = vars(module)
            for name in [n for n in now if n not in plain and n not in _TABLES]:
                del now[name]
            now.update(plain)
        if grads:
            for tensor, grad in self._grads:
                tensor.grad = grad


def _tensors_of(*owners: Any) -> list[Tensor]:
    """Parameters and buffers, each once."""
    found: dict[int, Tensor] = {}
    for owner in owners:
        if isinstance(owner, nn.Module):
            found |= {id(t): t for t in (*owner.parameters(), *owner.buffers())}
    return list(found.values())


def holds(function: Callable[..., Any] | None, model: nn.Module) -> bool:
    """A loss function that refers to the model by itself, as a closure or global, would not see a copy."""
    if function is None or isinstance(function, nn.Module):
        return False
    function = inspect.unwrap(function)
    seen: list[Any] = []
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            seen.append(cell.cell_contents)
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    seen += [names[n] for n in getattr(code, "co_names", ()) if n in names]
    inside = {id(m) for m in model.modules()} | {id(p) for p in model.parameters()}
    return any(id(v) in inside for v in seen)
