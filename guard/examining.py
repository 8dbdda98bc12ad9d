"""Where a diagnosis touches the run: its experiments are iterations of the loop that count for nothing."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from guard.diagnosis import Inquiry
from guard.errors import RankLostError, TrainingStopped
from guard.incidents.diagnose import Diagnosis
from guard.types import Signals

if TYPE_CHECKING:
    from guard.guard import Guard
    from guard.slot import Slot


class Examining:
    """The diagnoses of one guard.

    Args:
        guard: whose run it is.
        slot: its optimizer; the first, of several.

    Attributes:
        inquiry: makes them.
        quiet: one is being made: what the run does is not its own.
    """

    def __init__(self, guard: Guard, slot: Slot) -> None:
        self._guard, self._slot = guard, slot
        self._held: Signals | None = None
        self.quiet = False
        self.inquiry = Inquiry(
            guard.live,
            guard.clock,
            read=self._read,
            real_update=self._update,
            quiet=self._quietly,
            failed=guard.report.failure,
        )

    def hold(self, s: Signals) -> None:
        """The step is left out, and its tick goes on until its cause is known."""
        guard = self._guard
        guard.live.leave_out()
        self._slot.optimizer._opt_called = True  # type: ignore[attr-defined] # as for any step left out
        guard.supply.ticked = guard.diverted = True
        self._held = copy.copy(s)

    def examine(self) -> Generator[Any, None, None]:
        """Between two iterations: the failing step is tried again through the loop, which is handed what this yields.
        Then what waited for its cause is decided.

        Raises:
            TrainingStopped: that is what was decided.
        """
        guard = self._guard
        before, guard.doing, guard.diverted = guard.doing, "diagnosis", True
        diagnosis = None
        try:
            diagnosis = yield from self.inquiry.through_loop()
        except GeneratorExit:  # the loop was left within an experiment
            self.give_up()
            raise
        except Exception as error:  # noqa: BLE001 - fail open
            guard.report.failure("the diagnosis", error)
        finally:
            guard.doing = before
        self._conclude(diagnosis)

    def take_step(self, closure: Callable[[], Any] | None, *, overflow: bool = False) -> Any:
        """The loop has come to its update, in an experiment, or once more in an iteration that is left out."""
        loss = None if closure is None else closure()
        if self.inquiry.busy:
            self.inquiry.take_step(overflow=overflow)
        return loss

    def give_up(self) -> None:
        """The loop is over: what waits for a cause is decided without one."""
        self.inquiry.drop()
        with contextlib.suppress(TrainingStopped):
            self._conclude(None)

    def _conclude(self, diagnosis: Diagnosis | None) -> None:
        """The cause is known, or will not be."""
        guard, held = self._guard, self._held
        self._held, guard.diverted = None, False
        try:
            guard.responder.conclude(diagnosis)
            if held is not None:
                guard.end_held_tick(self._slot, held)
        except (TrainingStopped, RankLostError):
            raise
        except Exception as error:  # noqa: BLE001 - a guard that fails must not kill the run
            guard.give_up(error)

    def _update(self) -> None:
        self._slot.patch.real()

    def _read(self) -> tuple[float, float]:
        """Loss and global gradient norm of an experiment's step, unscaled."""
        s = self._slot.signals
        kept = copy.copy(s)
        self._slot.measure(self._guard.live, None)
        found = s.loss, s.grad_norm
        for name in Signals.__slots__:
            setattr(s, name, getattr(kept, name))
        return found

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """Nothing that the run does inside is taken for its own."""
        attachment, deep = self._guard.attachment, self._guard.deep
        guess, attachment.guess = attachment.guess, None
        self.quiet = True
        if deep is not None:
            deep.asleep = True
        try:
            yield
        finally:
            self.quiet, attachment.guess = False, guess
            self._slot.loss.take(1.0)  # of an experiment that did not come to its step
            if deep is not None:
                deep.asleep = False
