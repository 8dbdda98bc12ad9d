"""The processes that write and read checkpoints together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from guard.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Crew:
    """All ranks of a run, or one process alone.

    Args:
        rank, world: which of how many.
        group: a gloo process group of all ranks that nothing else uses; None if `world` is 1.
    """

    rank: int = 0
    world: int = 1
    group: Any = None

    def tell(self, value: Any) -> list[Any]:
        """Every rank's `value`, by rank; all ranks call it."""
        if self.world == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.group)
        return values

    def agree(self, problem: str | None) -> None:
        """Goes on only if no rank has a problem; all ranks call it.

        Raises:
            CheckpointError: names the first rank that has one.
        """
        for rank, found in enumerate(self.tell(problem)):
            if found is not None:
                raise CheckpointError(found if self.world == 1 else f"rank {rank}: {found}")
