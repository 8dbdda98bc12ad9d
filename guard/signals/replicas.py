"""Are the parameters that every rank holds still the same on all of them?

One exact integer checksum per parameter; a single flipped bit always changes it, which a floating-point norm would
often not show. Ranks compare them by one maximum of ``[x, -x]``; only if they differ is every rank's list gathered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from guard.errors import GuardError
from guard.ranks import Ranks
from guard.signals.gradients import is_sharded

_LARGEST = 2**63 - 1
_SAME_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes of a number


class Replicas:
    """Compares the replicated parameters of a model over the ranks; distributed ones (FSDP2) are no replicas.

    What a look gives (`Signals.deep["replicas"]`, the same on all ranks):

        equal    bool: nothing differs.
        count    int: parameters that differ.
        name     str: the first of them, in the model's order; empty if none does.
        ranks    list of int: those that do not hold what most hold; where that is a tie, those that do not hold what
                 the lowest rank of the tie does.
        most     bool: more ranks agree with each other than with any of `ranks`.

    Args:
        model: whose parameters.
        ranks: who is asked; in a world of one there is nothing to compare.
        every: interval [ticks].
    """

    def __init__(self, model: nn.Module, ranks: Ranks, every: int) -> None:
        self._model, self._ranks, self._every = model, ranks, every
        self._names: list[str] | None = None  # of what is compared, once all ranks have said the same

    def due(self, tick: int) -> bool:
        """A look is to be taken in this tick; the same on all ranks."""
        return self._ranks.world > 1 and tick % self._every == 0

    def look(self) -> dict[str, Any] | None:
        """Compares; all ranks call it. None: there are no replicated parameters.

        Raises:
            GuardError: some rank could not read its parameters, or holds others than the others; so on all ranks.
            RankLostError: a rank has ended.
        """
        ranks = self._ranks
        if self._names is None:
            self._names = self._agree_on_names()
        names, error = self._names, None
        if not names:
            return None
        sums = torch.zeros(len(names), dtype=torch.int64)
        try:
            sums = checksums(self._replicated(names))
        except Exception as found:  # noqa: BLE001 - the others wait for this rank's word
            error = found
        total = ranks.largest(torch.cat([sums, -sums, torch.tensor([int(error is not None)])]))
        if total[-1]:
            raise GuardError(f"the parameters of the ranks cannot be compared any more: {error or 'another rank'}")
        if torch.equal(total[: len(names)], -total[len(names) : -1]):
            return {"equal": True, "count": 0, "name": "", "ranks": [], "most": True}
        rows = ranks.gather(tuple(sums.tolist()))
        differing = [name for name, values in zip(names, zip(*rows, strict=True), strict=True) if len(set(values)) > 1]
        holder, most_hold = majority(rows)
        others = [rank for rank, row in enumerate(rows) if row != rows[holder]]
        return {"equal": False, "count": len(differing), "name": differing[0], "ranks": others, "most": most_hold}

    def _agree_on_names(self) -> list[str]:
        names = [n for n, p in self._model.named_parameters() if is_replicated(p)]
        if any(other != names for other in self._ranks.gather(names)):
            raise GuardError("the parameters of the ranks cannot be compared: they are not the same ones on all ranks")
        return names

    def _replicated(self, names: Sequence[str]) -> list[Tensor]:
        found = {n: p for n, p in self._model.named_parameters() if is_replicated(p)}
        return [found[name] for name in names]


def majority(rows: Sequence[Any]) -> tuple[int, bool]:
    """The lowest rank among those that hold what most hold, and whether more hold it than anything else.

    Args:
        rows: by rank, what it holds (hashable).
    """
    counts = Counter(rows)
    most = max(counts.values())
    largest = [row for row, count in counts.items() if count == most]  # in the order of their lowest ranks
    return rows.index(largest[0]), len(largest) == 1


def is_replicated(tensor: Tensor) -> bool:
    """Every rank is to hold all of it, with the same values."""
    return not is_sharded(tensor) and not nn.parameter.is_lazy(tensor) and not tensor.is_meta and tensor.numel() > 0


@torch.no_grad()
def checksums(tensors: Iterable[Tensor]) -> Tensor:
    """int64 on the CPU, one number per tensor; one transfer for each device."""
    parts = [_checksum(t.detach()).to(torch.int64) for t in tensors]
    result = torch.zeros(len(parts), dtype=torch.int64)
    for device in {part.device for part in parts}:
        where = [i for i, part in enumerate(parts) if part.device == device]
        result[where] = torch.stack([parts[i] for i in where]).cpu()
    return result.clamp_(min=-_LARGEST)  # so that it has a negative


def _checksum(t: Tensor) -> Tensor:
    """The sum of its numbers' bits, read as integers, modulo a power of two; whatever the order of summation."""
    t = torch.view_as_real(t) if t.is_complex() else t
    t = t.view(torch.uint8) if t.dtype is torch.bool else t
    size = t.element_size()
    if size < 4 and t.is_contiguous() and t.data_ptr() % 4 == 0 and t.storage_offset() % (4 // size) == 0:
        flat, per = t.view(-1), 4 // size  # as 32-bit integers, which are added up ten times as fast
        whole = flat.numel() // per * per
        rest = flat[whole:].view(_SAME_SIZE[size]).sum(dtype=torch.int32)
        return flat[:whole].view(torch.int32).sum(dtype=torch.int32) + rest
    integers = t.view(_SAME_SIZE[size])
    return integers.sum(dtype=torch.int64 if size == 8 else torch.int32)
