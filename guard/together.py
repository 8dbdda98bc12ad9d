"""Several ranks, one decision: what they tell each other in every tick before anything is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from guard import wheel
from guard.boundary import Wishes
from guard.errors import GuardError
from guard.incidents import control
from guard.ranks import CALM, Agreed, Ranks, beyond, merged_looks, merged_metrics
from guard.signals.gradients import shares
from guard.signals.replicas import Replicas
from guard.types import Signals

if TYPE_CHECKING:
    from guard.guard import Guard
    from guard.slot import Slot


class More(NamedTuple):
    """What one rank has to say beyond the numbers of a tick; gathered only if some rank has anything.

    Args:
        metrics: what the loop logged on this rank.
        looks: what was seen inside the model.
        requests: what people asked for; rank 0's.
        wishes: what is due; rank 0's counts.
        writing: a save is under way, so that another cannot begin.
        preempted: this rank has got SIGTERM.
    """

    metrics: dict[str, float] | None
    looks: dict[str, Any] | None
    requests: Sequence[control.Request | str]
    wishes: Wishes
    writing: bool
    preempted: bool


class Together:
    """Makes this rank's signals those of all ranks.

    Args:
        guard: of this rank.
        ranks: more than one.
        replicas_every: how often replicated parameters are compared [ticks]; None: nobody asks for it.

    Attributes:
        agreed: what the last tick's agreement said.
        asked: the agreement of this tick is made, or the others have been told that there will be none.
        preempted: some rank got SIGTERM: all end at the next boundary.
    """

    def __init__(self, guard: Guard, ranks: Ranks, replicas_every: int | None) -> None:
        self._guard, self.ranks = guard, ranks
        self._replicas = Replicas(guard.live.model, ranks, replicas_every) if replicas_every else None
        self._shares = shares(guard.live.model, ranks.world)
        self.agreed: Agreed = CALM
        self.asked = self.preempted = False

    def agree(self, slot: Slot, s: Signals, *, clock: bool) -> None:
        """One small sum over all ranks; afterwards `s` is the same on all of them.

        Args:
            slot: whose signals they are.
            clock: it is the one whose ticks count.

        Raises:
            RankLostError: another rank has ended, or does not answer.
        """
        more = self._more(s) if clock else None
        self.agreed = self.ranks.agree(
            s,
            norm_squared=s.grad_norm * s.grad_norm * slot.reader.share,
            leaving=False,
            has_more=more is not None,
        )
        self.asked = True
        if self.agreed.more:
            self._take(s, self.ranks.gather(more or self._nothing(s)))
        if clock and self._replicas is not None and self._replicas.due(s.tick) and not self.agreed.leaving:
            try:
                s.deep = {**(s.deep or {}), "replicas": self._replicas.look()}
            except GuardError as error:  # the same on all ranks
                self._replicas = None
                self._guard.report.failure("the comparison of the ranks' parameters", error)

    def leave(self) -> None:
        """This rank's guard lets go; the others learn of it in what would be the next agreement."""
        self.agreed, self.asked = self.ranks.leave(), True

    def where(self, names: Sequence[str]) -> dict[str, Any]:
        """Evidence of a non-finite tick: which ranks, and which gradients on any of them."""
        found = self.ranks.gather(list(names))
        known = list(dict.fromkeys(name for part in found for name in part))
        ranks = sorted({*self.agreed.bad_ranks, *self.agreed.bad_loss_ranks})
        return {"nonfinite_gradients": known, "ranks": ranks}

    def _more(self, s: Signals) -> More | None:
        more = self._nothing(s)
        telling = more.metrics or more.looks or more.requests or more.preempted
        return more if telling or (more.wishes.disk and not more.writing) or more.wishes.snapshot else None

    def _nothing(self, s: Signals) -> More:
        guard, preemption = self._guard, self._guard.preemption
        durable = guard.boundary.durable
        wish = guard.boundary.wish if guard.boundary.by_clock or durable is not None else Wishes()
        if not guard.boundary.by_clock:
            wish = wish._replace(snapshot=False)  # what counts steps is the same on all ranks anyway
        return More(
            s.metrics,
            beyond(s.deep),
            wheel.taken(guard) if guard.asked_for else [],
            wish,
            durable is not None and durable.store.writing,
            preemption is not None and preemption.preempted,
        )

    def _take(self, s: Signals, told: list[More]) -> None:
        guard, first = self._guard, told[0]
        s.metrics = merged_metrics([more.metrics for more in told])
        if any(more.looks for more in told):
            s.deep = {**(s.deep or {}), **merged_looks([more.looks for more in told], self._shares)}
        if s.metrics is not None and "val_loss" in s.metrics:
            guard.boundary.keep_best(s.metrics["val_loss"])
        busy = any(more.writing for more in told)
        guard.boundary.wishes = Wishes(first.wishes.snapshot, first.wishes.disk and not busy)
        self.preempted = self.preempted or any(more.preempted for more in told)
        wheel.obey(guard, first.requests)
