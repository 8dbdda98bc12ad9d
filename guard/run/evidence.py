"""What a fault looked like from inside: the batch, the random states, statistics of every layer."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor, nn

from guard.signals.gradients import values

COLUMNS = (
    "name",
    "shape",
    "dtype",
    *(f"{of}_{what}" for of in ("weight", "gradient") for what in ("min", "max", "mean", "nonfinite")),
)


class TooLargeError(Exception):
    """More bytes than allowed."""


@torch.no_grad()
def layer_table(model: nn.Module, grad_scale: float) -> str:
    """CSV, a row per parameter and buffer; minimum (inf if none), maximum and mean are those of the finite elements.

    Args:
        grad_scale: what the gradients are still multiplied with.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    tensors = [t for _, p in named for t in (p.detach(), p.grad)]
    numbers = iter(_read([_statistics(t) for t in tensors]))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name, p in named:
        weight, gradient = next(numbers), next(numbers)
        scaled = [v / grad_scale for v in gradient[:3]] + gradient[3:]
        writer.writerow(
            [name, "x".join(map(str, p.shape)), str(p.dtype).removeprefix("torch."), *_cells(weight), *_cells(scaled)]
        )
    return out.getvalue()


def _cells(row: list[float]) -> list[str]:
    return [f"{v:.7g}" for v in row] or [""] * 4  # no element: nothing to say


def _statistics(tensor: Tensor | None) -> Tensor | None:
    if tensor is None or tensor.numel() == 0:
        return None
    x = values(tensor.coalesce() if tensor.is_sparse else tensor)
    x = torch.view_as_real(x) if x.is_complex() else x
    x = x if x.is_floating_point() and x.element_size() >= 4 else x.float()
    if x.numel() == 0:
        return None
    finite = torch.isfinite(x)
    count = finite.sum()
    zero = torch.where(finite, x, 0.0)
    return (
        torch.stack(
            [
                torch.where(finite, x, torch.inf).amin(),
                torch.where(finite, x, -torch.inf).amax(),
                zero.sum() / count.clamp(min=1),
                1.0 - count / x.numel(),
            ]
        )
        .cpu()
        .double()
    )


def _read(rows: Sequence[Tensor | None]) -> list[list[float]]:
    return [[] if row is None else row.tolist() for row in rows]


def write(folder: Path, table: str, payload: dict[str, Any] | None, max_bytes: int) -> dict[str, Any]:
    """Writes ``layers.csv`` and ``batch.pt``, readable by their owner only; returns the names, or why not.

    Raises:
        OSError: the disk cannot.
    """
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    with _private(folder / "layers.csv") as file:
        file.write(table.encode())
    if payload is None:
        return {"files": ["layers.csv"]}
    try:
        with _private(folder / "batch.pt") as file:
            torch.save(payload, cast("IO[bytes]", _Bounded(file, max_bytes)))
    except Exception as error:  # noqa: BLE001 - a batch may hold anything; the statistics are safe
        (folder / "batch.pt").unlink(missing_ok=True)
        why = (
            f"it is larger than {max_bytes} bytes"
            if isinstance(error, TooLargeError) or isinstance(error.__context__, TooLargeError)
            else f"{type(error).__name__}: {error}"[:200]
        )
        return {"files": ["layers.csv"], "no_batch": why}
    return {"files": ["layers.csv", "batch.pt"]}


def _private(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


class _Bounded(io.RawIOBase):
    """Passes writes on until there are too many bytes."""

    def __init__(self, file: Any, left: int) -> None:
        super().__init__()
        self._file, self._left = file, left

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise TooLargeError
        return int(self._file.write(data))
