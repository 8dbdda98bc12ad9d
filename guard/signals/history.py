"""What was measured in recent ticks."""

from __future__ import annotations

import math
import statistics
from collections import deque

# tick and step, then loss, grad_norm, lr, lr_effective and loss_scale
Row = tuple[int, int, float, float, float, float, float]

_TICKS = 1000  # kept in memory
_TYPICAL = 128  # ticks that "typical" looks back on


class History:
    """Recent rows, and the ticks in which something was wrong.

    Attributes:
        rows: oldest first.
        flagged: ticks in which a policy's trigger was satisfied.
    """

    def __init__(self) -> None:
        self.rows: deque[Row] = deque(maxlen=_TICKS)
        self.flagged: deque[int] = deque(maxlen=_TICKS)

    def step_of(self, tick: int) -> int | None:
        """The step of a recent tick; None if it is not among them."""
        return next((row[1] for row in reversed(self.rows) if row[0] == tick), None)

    def typical_grad_norm(self, before: int) -> float:
        """Median gradient norm of the last healthy ticks before tick `before`; NaN if there were none."""
        norms = [r[3] for r in self.rows if r[0] < before and r[3] < math.inf and r[0] not in self.flagged]
        return statistics.median(norms[-_TYPICAL:]) if norms else math.nan
