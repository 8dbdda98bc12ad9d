"""A standing override of autocast's dtype: FP16 turned out too narrow, so the run goes on in BF16 or FP32.

An inner autocast beats an outer one, so an unmodified loop is reached through its model's forward hooks. The inner one
keeps no weight cache: autocast crashes if one cached weight serves two dtypes in one outer region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from guard import patching

_LOOK = 16  # training forward passes between looks; asking costs as much as a detector
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Precision:
    """What the run computes in, and what it is told to.

    Attributes:
        override: ``bf16``, ``fp32`` or None.
        until: tick at which the override ends; None: it stays.
        autocast: dtype of the autocast region the model was last seen in, or None.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._model, self._optimizers = model, list(optimizers)
        self.override: str | None = None
        self.until: int | None = None
        self.autocast: torch.dtype | None = None
        parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
        self.device = parameter.device.type if parameter is not None else "cpu"
        self._inner: list[Any] = []
        self._ends: list[Callable[[], None]] = []
        self._look = 0
        self._was_half = False

    def before_forward(self, module: nn.Module, args: Any) -> Any:
        """A forward pass begins: looks now and then whether it runs under autocast; puts the override in force.

        Returns:
            Inputs in the dtype of converted weights, or None: as they are.
        """
        if self.override is not None:
            return self._enter(args)
        if module.training:
            self._look -= 1
            if self._look < 0:
                self._look = _LOOK
                on = torch.is_autocast_enabled(self.device)
                self.autocast = torch.get_autocast_dtype(self.device) if on else None
        return None

    def after_forward(self) -> None:
        """A forward pass under an override ends, perhaps with an exception."""
        if self._inner:
            self._inner.pop().__exit__(None, None, None)

    def why_not(self, dtype: str) -> str | None:
        """Why the override would change nothing, or None."""
        if self.override == dtype:
            return f"the run is already in {dtype.upper()}"
        half = self._model_dtype()
        if self.autocast is None and half is None:
            return "the run computes in FP32: there is no autocast to change"
        if half is not None and half is not torch.float16 and self.autocast is None:
            return f"the model's own weights are {_name(half)}"
        if self.override is None and self.autocast is DTYPES[dtype]:
            return f"the run is already in {dtype.upper()}"
        return None

    def set(self, dtype: str, until: int | None) -> None:
        self.override, self.until = dtype, until
        if not self._ends:
            self._ends = [patching.watch_forward_end(m) for m in patching.entry_modules(self._model)]
        if self._model_dtype() is torch.float16:
            self._was_half = True
            self._convert(torch.float16, DTYPES[dtype])

    def clear(self) -> None:
        """Ends the override."""
        if self._was_half and self.override is not None:
            self._convert(DTYPES[self.override], torch.float16)
        self.release()
        self._was_half = False

    def release(self) -> None:
        """Lets go of the model: no override any more; converted weights stay as they are."""
        self.override, self.until = None, None
        while self._ends:
            self._ends.pop()()

    def region(
        self, device_type: str, dtype: torch.dtype | None, enabled: bool, cache_enabled: bool | None
    ) -> torch.autocast:
        """`torch.autocast` with the override in force."""
        if enabled:
            self.autocast = dtype or torch.get_autocast_dtype(device_type)
            if self.override == "fp32":
                enabled = False
            elif self.override is not None:
                dtype = DTYPES[self.override]
        return torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def _enter(self, args: Any) -> Any:
        dtype = DTYPES[self.override or "fp32"]
        on = torch.is_autocast_enabled(self.device) and self.override == "bf16"
        region = torch.autocast(self.device, dtype=dtype if on else None, enabled=on, cache_enabled=False)
        region.__enter__()  # type: ignore[no-untyped-call]
        self._inner.append(region)
        return _cast(args, dtype) if self._was_half else None

    def _model_dtype(self) -> torch.dtype | None:
        """The dtype of half-precision weights, or None."""
        return next((p.dtype for p in self._model.parameters() if p.is_floating_point() and p.element_size() < 4), None)

    @torch.no_grad()
    def _convert(self, old: torch.dtype, new: torch.dtype) -> None:
        for t in (*self._model.parameters(), *self._model.buffers()):
            if t.dtype is old:
                t.grad = None
                t.data = t.data.to(new)
        for optimizer in self._optimizers:
            for values in optimizer.state.values():
                for name, value in values.items():
                    if isinstance(value, torch.Tensor) and value.dtype is old and value.dim():
                        values[name] = value.to(new)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype is torch.float16 else value
    if isinstance(value, tuple):
        return tuple(_cast(v, dtype) for v in value)
    return value


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
