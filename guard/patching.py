"""Patching a run, and undoing it. Instances only, never a class; the one process-wide patch is
`torch.autograd.backward`.

What is put on an instance survives deepcopy and pickle: optimizers leave instance attributes out of their state, and
what hangs on scalers and modules are module-level functions that look their guard up and are inert on a copy.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class StepPatch:
    """Puts `guarded` in front of an optimizer's `step`.

    Args:
        guarded: called as ``guarded(closure)``; calls `real` for the update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, guarded: Callable[[Any], Any]) -> None:
        self.optimizer = optimizer
        self._own = optimizer.__dict__.get("step")  # a scheduler's or another tool's wrapper, if there is one
        self.real: Callable[..., Any] = optimizer.step
        self.active = True
        real = self.real
        patch = self

        @functools.wraps(real.__func__ if isinstance(real, types.MethodType) else real)
        def step(self: torch.optim.Optimizer, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
            if patch.active and not args and not kwargs and self is optimizer:
                return guarded(closure)
            return real(*(() if closure is None else (closure,)), *args, **kwargs)

        self._patched = types.MethodType(step, optimizer)
        optimizer.step = self._patched  # type: ignore[method-assign]

    def undo(self) -> None:
        """Removes the patch; one that was wrapped since (a scheduler made later) is switched off where it is."""
        self.active = False
        if self.optimizer.__dict__.get("step") is self._patched:
            if self._own is None:
                del self.optimizer.step
            else:
                self.optimizer.step = self._own  # type: ignore[method-assign]


# ---- GradScaler: on overflow `scaler.step` never calls `optimizer.step`, so the tick is seen from here

_SCALERS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _scaler_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    watcher = _SCALERS.get(self)
    step = functools.partial(type(self).step, self)
    return (
        step(optimizer, *args, **kwargs) if watcher is None else watcher.scaler_step(step, optimizer, *args, **kwargs)
    )


def _scaler_update(self: Any, *args: Any, **kwargs: Any) -> Any:
    watcher = _SCALERS.get(self)
    update = functools.partial(type(self).update, self)
    return update(*args, **kwargs) if watcher is None else watcher.scaler_update(update, *args, **kwargs)


# A bound method pickles as the attribute of that name: on a copy, the class's own method.
_scaler_step.__name__, _scaler_update.__name__ = "step", "update"


def watch_scaler(scaler: Any, watcher: Any) -> Callable[[], None]:
    """Calls ``watcher.scaler_step(real, optimizer, ...)`` and ``watcher.scaler_update(real, ...)``; returns the
    undo.
    """
    _SCALERS[scaler] = watcher
    scaler.step = types.MethodType(_scaler_step, scaler)
    scaler.update = types.MethodType(_scaler_update, scaler)

    def undo() -> None:
        if _SCALERS.get(scaler) is watcher:
            del _SCALERS[scaler]
            scaler.__dict__.pop("step", None)
            scaler.__dict__.pop("update", None)

    return undo


# ---- the model's forward pass: where an iteration begins, and where precision can be changed

# By identity, which is quicker than a weak dictionary; the weak reference tells a reused identity from the module.
_MODELS: dict[int, tuple[weakref.ref[Any], Any]] = {}


def _watcher_of(owner: Any) -> Any:
    """Who watches this module or optimizer; None for a copy of one that is watched."""
    entry = _MODELS.get(id(owner))
    return entry[1] if entry is not None and entry[0]() is owner else None


def _watch(owner: Any, watcher: Any, handle: Any) -> Callable[[], None]:
    _MODELS[id(owner)] = (weakref.ref(owner), watcher)

    def undo() -> None:
        handle.remove()
        if _watcher_of(owner) is watcher:
            del _MODELS[id(owner)]

    return undo


def _before_forward(module: nn.Module, args: Any, kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return None  # inside a graph that is being captured there is no guard
    watcher = _watcher_of(module)
    return None if watcher is None else watcher.before_forward(module, args, kwargs)


def _after_forward(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG001 - torch's signature
    if not torch.compiler.is_compiling() and (watcher := _watcher_of(module)) is not None:
        watcher.after_forward()


def _before_load(owner: Any, *_: Any) -> None:
    watcher = _watcher_of(owner)
    if watcher is not None:
        watcher.reloading()


def _after_load(owner: Any, *_: Any) -> None:
    watcher = _watcher_of(owner)
    if watcher is not None:
        watcher.reloaded()


def entry_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that a loop calls: the model, or what it contains if it is a mere container (a GAN's ModuleList)."""
    if getattr(type(model).forward, "__name__", "") != "_forward_unimplemented":
        return [model]
    return [m for child in model.children() for m in entry_modules(child)]


def watch_forward(module: nn.Module, watcher: Any) -> Callable[[], None]:
    """Calls ``watcher.before_forward(module, args, kwargs)``; its result ``(args, kwargs)`` replaces the inputs unless
    it is None.
    """
    handle = module.register_forward_pre_hook(_before_forward, prepend=True, with_kwargs=True)
    return _watch(module, watcher, handle)


def watch_forward_end(module: nn.Module) -> Callable[[], None]:
    """Calls ``watcher.after_forward()`` at the end of a watched module's forward passes, also after an exception."""
    return module.register_forward_hook(_after_forward, always_call=True).remove


def watch_loading(owner: nn.Module | torch.optim.Optimizer, watcher: Any) -> Callable[[], None]:
    """Calls ``watcher.reloading()`` before and ``watcher.reloaded()`` after `load_state_dict`."""
    before = owner.register_load_state_dict_pre_hook(_before_load)
    undo = _watch(owner, watcher, owner.register_load_state_dict_post_hook(_after_load))

    def undo_both() -> None:
        before.remove()
        undo()

    return undo_both


# ---- torch.autograd.backward: where a loop that only calls `attach` shows its loss

_BEFORE: list[Callable[[Any], None]] = []
_AFTER: list[Callable[[Any], None]] = []
_real_backward: Callable[..., Any] | None = None


def listen_to_backward(listener: Callable[[Any], None], *, before: bool = False) -> Callable[[], None]:
    """Calls `listener` with the tensors of every backward pass, after it, or `before` it, when the graph is still
    there. The patch lives as long as there is a listener.
    """
    global _real_backward  # noqa: PLW0603 - the one process-wide patch has one process-wide memory
    if not (_BEFORE or _AFTER):
        real = _real_backward = torch.autograd.backward

        @functools.wraps(real)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            for listen in _BEFORE:
                listen(tensors)
            result = real(tensors, *args, **kwargs)
            for listen in _AFTER:
                listen(tensors)
            return result

        torch.autograd.backward = backward
    listeners = _BEFORE if before else _AFTER
    listeners.append(listener)

    def undo() -> None:
        if listener in listeners:
            listeners.remove(listener)
            if not (_BEFORE or _AFTER) and _real_backward is not None:
                torch.autograd.backward = _real_backward

    return undo
