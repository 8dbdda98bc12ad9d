"""The ranks of a run, over a gloo process group of their own.

It moves nothing but CPU memory, so it never waits for a stream of an accelerator, and what it does cannot get mixed up
with the collectives of the training.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from guard.errors import GuardError, RankLostError
from guard.ranks.agreement import CALM, Agreed, Packer
from guard.types import Signals

_LOOK = 0.05  # [s] between looks at whether a rank has ended

TIMEOUT = 1800.0  # [s] that a rank waits for the others, by default

T = TypeVar("T")


class Ranks:
    """One process among those that train together. Every method is to be called by all of them, in the same order.

    A rank that has ended makes the others raise within moments, one that hangs when `timeout` is over.

    Args:
        rank, world: which of how many.
        group: gloo process group of all ranks that nothing else uses; None if `world` is 1.
    """

    def __init__(self, rank: int, world: int, group: Any) -> None:
        self.rank, self.world, self._group = rank, world, group
        self._packer = Packer(rank, world)
        self._vector = torch.frombuffer(self._packer.vector, dtype=torch.float64)  # shares its memory
        self._options = None if group is None else torch.distributed.AllreduceOptions()  # a sum, the group's timeout
        self._where: list[tuple[str, int]] = []
        self._lost: RankLostError | None = None

    @classmethod
    def alone(cls) -> Ranks:
        """A process that has nobody to ask: every method gives back what it was given."""
        return cls(0, 1, None)

    @classmethod
    def attach(cls, timeout: float = TIMEOUT) -> Ranks:
        """All ranks of the default process group; alone if there is none, or only this one.

        Args:
            timeout: how long a rank waits for the others [s].

        Raises:
            RankLostError: not all ranks attach.
        """
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return cls.alone()
        try:
            group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout))
        except RuntimeError as error:
            raise RankLostError(f"not all ranks have attached a guard: {error}") from error
        ranks = cls(dist.get_rank(), dist.get_world_size(), group)
        ranks._where = ranks.gather((platform.node(), os.getpid()))
        return ranks

    def another_group(self) -> Any:
        """A gloo group of all ranks for one other use; None if there is only one. All ranks call it."""
        if self.world == 1:
            return None
        import torch.distributed as dist

        return dist.new_group(backend="gloo")

    def close(self) -> None:
        """Lets go of the process group. Asks nobody; afterwards this rank can ask nobody any more."""
        if self._group is not None:
            import torch.distributed as dist

            group, self._group = self._group, None
            self._lost = self._lost or RankLostError("the ranks have parted: this one's guard is closed")
            with contextlib.suppress(RuntimeError, ValueError):  # everything was taken down already
                dist.destroy_process_group(group)

    # ---- once a tick

    def agree(self, s: Signals, *, norm_squared: float, leaving: bool, has_more: bool) -> Agreed:
        """One sum over all ranks, after which `s` holds the same on each of them.

        Args:
            s: as measured on this rank; `loss`, `loss_known`, `grad_norm`, `overflow`, `params`, `guess`, `lr`,
                `lr_effective`, `loss_scale` and, of `deep`, `seconds` and `inputs` are overwritten: loss, guess and
                seconds with the mean over the ranks that know one, gradient norm with the root of the summed squares,
                both non-finite if any rank's is; overflow if any; rates and loss scale are rank 0's.
            norm_squared: this rank's share in the global squared norm, unscaled: the square of its norm times
                `GradientReader.share`.
            leaving: the guard of this rank lets go of the run; its signals do not count.
            has_more: this rank has something to `gather`.

        Raises:
            RankLostError: another rank has ended, or does not answer within the timeout.
        """
        if self.world == 1:
            return Agreed(has_more, (0,)) if leaving else Agreed(has_more) if has_more else CALM
        self._packer.write(s, norm_squared, leaving=leaving, more=has_more)
        self._sum(self._vector, "in the agreement of a tick")
        return self._packer.read(self._vector.tolist(), s)

    def leave(self) -> Agreed:
        """Takes part in one last agreement, with nothing but the word that this rank's guard lets go of the run."""
        return self.agree(Signals(), norm_squared=0.0, leaving=True, has_more=False)

    # ---- now and then

    def gather(self, thing: T) -> list[T]:
        """Every rank's `thing` (anything that can be pickled), by rank."""
        if self.world == 1:
            return [thing]
        import torch.distributed as dist

        things: list[Any] = [None] * self.world
        self._try("gathering", lambda: dist.all_gather_object(things, thing, group=self._group))
        return things

    def broadcast(self, thing: T, source: int = 0) -> T:
        """The `thing` of rank `source` (anything that can be pickled)."""
        if self.world == 1:
            return thing
        import torch.distributed as dist

        things = [thing]
        self._try("broadcasting", lambda: dist.broadcast_object_list(things, src=source, group=self._group))
        return things[0]

    def all(self, ok: bool) -> bool:
        """Every rank says yes."""
        return ok if self.world == 1 else self.worst(0 if ok else 1) == 0

    def together(self, check: Callable[[], bool]) -> bool:
        """Every rank's `check` says yes. One that fails fails on all ranks, so that none waits for another.

        Raises:
            GuardError: it raised on another rank.
            Exception: whatever it raised here.
        """
        if self.world == 1:
            return check()
        code, error = 2, None
        try:
            code = 0 if check() else 1
        except Exception as found:  # noqa: BLE001 - raised again once the others know
            error = found
        code = self.worst(code)
        if error is not None:
            raise error
        if code > 1:
            raise GuardError("another rank failed at what all do together")
        return code == 0

    def worst(self, code: int) -> int:
        """The largest code of any rank."""
        return code if self.world == 1 else int(self.largest(torch.tensor([code], dtype=torch.int64))[0])

    def largest(self, numbers: Tensor) -> Tensor:
        """Element by element the largest of any rank.

        Args:
            numbers: int64 on the CPU, of the same shape on all ranks; overwritten and returned.
        """
        if self.world > 1:
            import torch.distributed as dist

            maximum = dist.ReduceOp.MAX
            self._try("comparing", lambda: dist.all_reduce(numbers, maximum, group=self._group))
        return numbers

    def norms(self, local: Sequence[float], shares: Sequence[float]) -> list[float]:
        """Global L2 norms of what is spread over the ranks; infinite where any rank's is not finite.

        Args:
            local: this rank's norms, as many on each rank.
            shares: of each one's square, the part that counts in the sum over ranks; in a world of one all of it.
        """
        if self.world == 1:
            return list(local)
        squares = [x * x * share for x, share in zip(local, shares, strict=True)]
        finite = [square < math.inf for square in squares]
        numbers = [square if ok else 0.0 for square, ok in zip(squares, finite, strict=True)]
        total = torch.tensor([*numbers, *(float(not ok) for ok in finite)], dtype=torch.float64)
        self._sum(total, "in the agreement on norms")
        values = total.tolist()
        return [
            math.inf if bad else math.sqrt(square)
            for square, bad in zip(values[: len(squares)], values[len(squares) :], strict=True)
        ]

    def copy_from(self, source: int, tensors: Sequence[Tensor]) -> None:
        """Overwrites tensors with those of rank `source`, by way of the CPU.

        Args:
            tensors: of the same shapes and dtypes on all ranks, on any device.
        """
        if self.world == 1:
            return
        import torch.distributed as dist

        for data in (t.detach() for t in tensors if t.numel()):
            flat = data.to("cpu", copy=True).contiguous().reshape(-1).view(torch.uint8)
            self._try("copying state", partial(dist.broadcast, flat, source, group=self._group))
            if self.rank != source:
                data.copy_(flat.view(data.dtype).view(data.shape))

    # ---- inside

    def _sum(self, numbers: Tensor, what: str) -> None:
        """Adds up in place; without `torch.distributed.all_reduce`, which spends a fifth of the time on its own log."""
        if self._lost is not None:
            raise self._lost
        try:
            self._group.allreduce([numbers], self._options).wait()
        except RuntimeError as error:
            raise self._lose(what, error) from error

    def _try(self, what: str, collective: Callable[[], Any]) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            collective()
        except RuntimeError as error:
            raise self._lose(what, error) from error

    def gone(self, patience: float = 0.0) -> str:
        """Which other ranks have ended, as far as this host can tell, e.g. ``rank 1 (process 7 on node3) has ended``;
        empty if none. Asks nobody.

        Args:
            patience: how long to wait for one [s]: a process that ends closes its connections before it is gone.
        """
        here, until = platform.node(), time.monotonic() + patience
        while True:
            gone = [
                f"rank {rank} (process {pid} on {host})"
                for rank, (host, pid) in enumerate(self._where)
                if rank != self.rank and host == here and has_ended(pid)
            ]
            if gone or self.world == 1 or time.monotonic() >= until:
                break
            time.sleep(_LOOK)
        verb = "has" if len(gone) == 1 else "have"
        return f"{', '.join(gone)} {verb} ended" if gone else ""

    def _lose(self, what: str, error: RuntimeError) -> RankLostError:
        """What is known; from now on nothing can be agreed on."""
        who = self.gone() or "another rank does not answer"
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        self._lost = RankLostError(f"rank {self.rank} of {self.world} is alone {what}: {who}. gloo says: {said}")
        return self._lost


def has_ended(pid: int) -> bool:
    """A process of this host is no more, even if nobody has fetched its exit status yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return False
