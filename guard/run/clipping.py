"""Gradients scaled down to a norm, by the same factor on all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from guard.ranks import Ranks
from guard.signals import careful_norm
from guard.signals.gradients import share_of, values


def shorten(groups: Sequence[Sequence[Any]], max_norm: float, ranks: Ranks) -> float:
    """Scales the gradients of each group of parameters down to `max_norm`, in place; all ranks call it.

    Args:
        groups: parameters with and without gradients, as many groups on each rank.
        max_norm: of a group, > 0.

    Returns:
        The smallest factor, 1.0 if nothing was to be done.
    """
    norms, shares = [], []
    for group in groups:
        kinds: dict[float, list[Any]] = {}
        for p in group:
            if p.grad is not None:
                kinds.setdefault(share_of(p.grad, 1.0 / ranks.world), []).append(values(p.grad))
        parts = {share: careful_norm(tensors) for share, tensors in kinds.items()}
        norm = math.hypot(*parts.values())
        norms.append(norm)
        known = 0.0 < norm < math.inf
        shares.append(sum(share * (part / norm) ** 2 for share, part in parts.items()) if known else 1.0)
    factors = [min(1.0, max_norm / (norm + 1e-12)) for norm in ranks.norms(norms, shares)]
    for group, factor in zip(groups, factors, strict=True):
        if factor < 1.0:
            for p in group:
                if p.grad is not None:
                    p.grad.mul_(factor)
    return min(factors, default=1.0)
