"""How often a run is started again: as long as it gets somewhere."""

from __future__ import annotations

DEFAULT = 3  # restarts in a row without progress
_FIRST, _LONGEST = 5.0, 300.0  # [s] before the first restart, and at most


class Budget:
    """Counts restarts since the run last got further than ever before.

    Args:
        restarts: how many in a row without progress.
        new_steps: how many steps beyond the furthest are progress.
        spent, best: as an earlier supervisor of the run has left them.

    Attributes:
        spent: restarts since the last progress.
        best: the furthest step, or -1.
    """

    def __init__(self, restarts: int, new_steps: int = 1, spent: int = 0, best: int = -1) -> None:
        self.restarts, self.new_steps = restarts, new_steps
        self.spent, self.best = spent, best

    def spend(self, step: int | None) -> bool:
        """A life has ended. True: another one is due.

        Args:
            step: the furthest that it was; None: it was never heard of.
        """
        if step is not None and step >= self.best + self.new_steps:
            self.spent, self.best = 0, step
        if self.spent >= self.restarts:
            return False
        self.spent += 1
        return True

    def pause(self, random: float) -> float:
        """Seconds to wait before the restart that was just granted: doubled each time, capped, and jittered, lest many
        runs that a file server has ended all come back in the same moment.

        Args:
            random: in [0, 1).
        """
        return min(_LONGEST, _FIRST * 2.0 ** min(self.spent - 1, 30)) * (0.5 + random / 2)
