"""Samples of several batches side by side, for a person to look at."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from guard.doctor.case import Case

_BATCHES, _SAMPLES = 3, 6
_LENGTH = 120  # characters of a text


def pictures(case: Case) -> dict[str, Any]:
    """``samples``: per batch a list of ``{"input": text | [H][W] or [H][W][3] in 0 .. 255, "target": text}``."""
    return {"samples": [_batch(case, batch) for batch in case.batches[:_BATCHES]]}


def _batch(case: Case, batch: Any) -> list[dict[str, Any]]:
    x = next(iter(case.inputs(batch).values()), None)
    y = next(iter(case.targets(batch).values()), None)
    if x is None or not x.dim() or case.dim:
        return []
    shown = []
    for i in range(min(_SAMPLES, len(x))):
        target = "" if y is None or not y.dim() or i >= len(y) else _text(y[i], case if case.per_position else None)
        shown.append({"input": _input(case, x[i]), "target": target})
    return shown


def _input(case: Case, x: Tensor) -> Any:
    if case.setup.decode is not None:
        try:
            return str(case.setup.decode(x.cpu()))[:_LENGTH]
        except Exception as error:  # noqa: BLE001 - a user's function
            return f"decode raised {type(error).__name__}: {error}"[:_LENGTH]
    return _image(x) or _text(x, None)


def _image(x: Tensor) -> list[Any] | None:
    """Pixels, if it looks like an image: [H, W], [C, H, W] with 1 or 3 channels."""
    if x.dim() == 3 and x.shape[0] in (1, 3):
        x = x.permute(1, 2, 0)
    elif x.dim() == 2:
        x = x[..., None]
    else:
        return None
    height, width, channels = x.shape
    if min(height, width) < 6 or max(height, width) > 1024 or channels not in (1, 3):
        return None
    if not x.is_floating_point() and x.dtype != torch.uint8:
        return None
    x = x.detach().float().cpu()
    step = max(1, max(height, width) // 64)
    x = x[::step, ::step]
    low, high = float(x.min()), float(x.max())
    x = ((x - low) / (high - low if high > low else 1.0) * 255).round().clamp(0, 255)
    pixels: list[Any] = (x[..., 0] if channels == 1 else x).to(torch.uint8).tolist()
    return pixels


def _text(x: Tensor, case: Case | None) -> str:
    if case is not None and case.setup.decode is not None and not x.is_floating_point():
        try:
            return str(case.setup.decode(x.cpu()))[:_LENGTH]
        except Exception:  # noqa: BLE001 - targets may hold what decode does not know, such as -100
            pass
    flat = x.reshape(-1)[:12].tolist()
    numbers = " ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in flat)
    return numbers + (" ..." if x.numel() > 12 else "")
