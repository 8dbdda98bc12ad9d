"""Where the guard touches the run: patches and hooks, what they hear, and how everything is put back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from guard import patching
from guard.signals import GuessMeter

if TYPE_CHECKING:
    from guard.guard import Guard


class Attachment:
    """The patches of one guard.

    Args:
        guard: who is called.

    Attributes:
        on: something is patched; false once the guard has let go.
        watching: forward passes and loads are noticed.
        boundary_due: the next training forward pass begins an iteration, in a loop that only calls `attach`.
        listening: a backward pass that is heard now is the loop's own.
        guess: looks at the first targets; None once it knows, or cannot.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard, self._live = guard, guard.live
        self._undo: list[Callable[[], None]] = []
        self.watching = self._lenient = False  # lenient: a forward pass in eval mode begins an iteration too
        self.boundary_due = self.listening = True
        self.guess: GuessMeter | None = GuessMeter() if len(guard.slots) == 1 else None

    @property
    def on(self) -> bool:
        return bool(self._undo)

    def install(self) -> None:
        """Stands in front of every step, and listens."""
        guard = self._guard
        for slot in guard.slots:
            slot.patch = patching.StepPatch(slot.optimizer, functools.partial(guard.take_step, slot))
            self._undo.append(slot.patch.undo)
        if self._live.scaler is not None:
            self._undo.append(patching.watch_scaler(self._live.scaler, self))
        self._undo.append(patching.listen_to_backward(self._heard_backward))
        if self.guess is not None:
            self._undo.append(patching.listen_to_backward(self._look_at_targets, before=True))
        if guard.deep is not None:
            guard.deep.start()
            self._undo.append(guard.deep.stop)

    def watch_model(self) -> None:
        """From now on forward passes and loads are noticed."""
        self.watching = True
        self._guard.boundary.provisional_start()
        for module in patching.entry_modules(self._live.model):
            self._undo.append(patching.watch_forward(module, self))
        self._undo.append(patching.watch_loading(self._live.model, self))
        for optimizer in self._live.optimizers:
            self._undo.append(patching.watch_loading(optimizer, self))

    def look_deeper(self) -> None:
        """A tick ends. If the iteration passed without a training forward pass of the model, its parts are called, or
        it is in eval mode.
        """
        if self.boundary_due and self._live.feed is None and self._guard.acting and not self._lenient:
            self._lenient = True
            for child in self._live.model.children():
                for module in patching.entry_modules(child):
                    self._undo.append(patching.watch_forward(module, self))
        self.boundary_due = True

    def undo(self) -> None:
        """Puts everything back as it was."""
        self._live.precision.release()
        while self._undo:
            self._undo.pop()()

    # ---- patches call these

    def before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A forward pass begins; for a loop that only calls `attach`, a training pass is the iteration boundary."""
        live = self._live
        if self.boundary_due and (module.training or self._lenient) and torch.is_grad_enabled():
            if live.feed is None and not self._guard.examining.quiet:
                self._guard.doing = "step"
                self._guard.cross_boundary()
                if live.iteration is not None:
                    live.iteration.begin()
            self.boundary_due = False
        if live.feed is None and live.iteration is not None and torch.is_grad_enabled():
            live.iteration.called(module, args, kwargs)
        inputs = live.precision.before_forward(module, args)
        return None if inputs is None else (inputs, kwargs)

    def after_forward(self) -> None:
        self._live.precision.after_forward()

    def scaler_step(self, real: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """`scaler.step`; on overflow it does not call `optimizer.step`, and the tick is counted here."""
        slot = next((s for s in self._guard.slots if s.optimizer is optimizer), None)
        if slot is None:
            return real(optimizer, *args, **kwargs)
        slot.called = False
        result = real(optimizer, *args, **kwargs)
        if not slot.called:
            self._guard.take_overflow(slot)
        return result

    def scaler_update(self, real: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """`scaler.update`, frozen while the precision is overridden."""
        if self._live.scaling:
            real(*args, **kwargs)
        else:
            self._live.scaler._per_optimizer_states.clear()
        if self._live.went_back is None and not self._guard.examining.quiet:  # else it is restored again, then settled
            self._live.loss_scale.settle()

    def _heard_backward(self, tensors: Any) -> None:
        """Somebody called backward: in a loop that only calls `attach`, this is where the loss shows."""
        if self.listening:
            for tensor in (tensors,) if isinstance(tensors, torch.Tensor) else tensors:
                if tensor.numel() == 1:
                    for slot in self._guard.slots:
                        slot.loss.hear(tensor)

    def _look_at_targets(self, tensors: Any) -> None:
        """Somebody is about to call backward: in the first steps, what would a guess that knows nothing lose?"""
        if self.guess is not None:
            for tensor in (tensors,) if isinstance(tensors, torch.Tensor) else tensors:
                self.guess.look(tensor)
                self._guard.inquiry.meet(tensor)

    def reloading(self) -> None:
        """State is about to be loaded: a discarded iteration ends here, so that the load goes on top of what is
        restored.
        """
        self._live.boundary()

    def reloaded(self) -> None:
        """Weights or optimizer state were loaded: what was kept belongs to another history."""
        self._guard.boundary.history_starts = True
