"""The guard. The whole flow of one step is readable here: measure, score, decide, act, update, learn, journal."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from guard import ending, patching, wheel
from guard.attachment import Attachment
from guard.bank import Bank, Rules
from guard.boundary import Boundary
from guard.checkpoints import Stateful
from guard.clock import Clock
from guard.durable import Durable
from guard.errors import GuardError, RankLostError, TrainingStopped
from guard.examining import Examining
from guard.incidents import IncidentLog
from guard.incidents.rundir import RunDir
from guard.policy import PolicySet
from guard.preemption import Preemption
from guard.ranks import Ranks
from guard.reporter import Reporter
from guard.responder import Responder
from guard.run.errands import Errands
from guard.run.iteration import Iteration
from guard.run.live import LiveRun
from guard.signals import Deep, History, Row, careful_norm, nonfinite_names
from guard.slot import Slot
from guard.summary import summarise
from guard.supply import Supply
from guard.together import Together
from guard.types import Incident, Mode, Signals


class Guard:
    """Protects one training run. Made by `guard.attach`; see there for the arguments.

    Attributes:
        run_dir: where the journal is.
        policies: what was asked for, resolved.
        policy_names: the policies in force.
        live: the run as actions see it.
        report: writes the journal.
        responder: what is done about detections.
        boundary: what happens between two iterations.
        resumed_from: name of the checkpoint on disk that the run went on from; None: it began at its beginning.
        refused: ``(name, why)`` of checkpoints that could not be used.
        attachment: the patches; supply: hands out the batches.
        slots: one per optimizer; deep: looks inside the model, None if no policy asks for it.
        together: agrees with the other ranks; None: there are none.
        files, history: where the run is journaled, and its recent ticks.
        doing: for the heartbeat: start, data, step, paused, end, or what the loop says.
        inquiry: finds the cause of a fault; examining: the loop's part in that; diverted: steps are its own.
        closed, pid: it has ended; the process it belongs to.
        preemption: listens for SIGTERM where checkpoints go to disk; else None.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        policies: PolicySet,
        *,
        schedulers: Sequence[Stateful],
        scaler: Any,
        run_dir: Path,
        extra: dict[str, Stateful],
        mode: Mode,
        clock: Clock,
        earlier: IncidentLog,
        ranks: Ranks,
    ) -> None:
        self.run_dir, self.policies = run_dir, policies
        others: dict[str, Stateful] = {f"scheduler {i}": s for i, s in enumerate(schedulers)}
        if scaler is not None:
            others["scaler"] = scaler
        others |= extra
        rules, self.history = Rules(policies), History()
        self.policy_names = [p.name for p in rules.policies]
        self.live = LiveRun(
            model,
            optimizers,
            others,
            scaler=scaler,
            checkpoints=policies.checkpoints,
            usual_grad_norm=self.history.typical_grad_norm,
            step_of=self.history.step_of,
        )
        self.live.ranks = ranks
        self.slots = [Slot(o, rules.bank(curves=len(optimizers) == 1), ranks.world) for o in optimizers]
        needs = rules.needs()
        replicas_every = needs.pop("replicas", None)
        self.deep = Deep(model, patching.entry_modules(model), optimizers, needs, clock) if needs else None
        self._clock_slot = self.slots[0]
        self.doing = "start"
        self.files = RunDir(run_dir, clock, lambda: (self.live.tick, self.live.step, self.doing), ranks.rank)
        self.report = Reporter(self.files, lambda: (self.live.tick, self.live.step), earlier)
        banks = [slot.bank for slot in self.slots]
        self.clock = clock
        self.examining = Examining(self, self._clock_slot)
        self.inquiry = self.examining.inquiry
        self.responder = Responder(
            rules,
            self.live,
            self.report,
            banks,
            self.history,
            mode=mode,
            opened=len(earlier.incidents),
            inquiry=self.inquiry,
        )
        disk = policies.checkpoints.disk if mode == "enforce" else None
        self.boundary = Boundary(
            self.live,
            self.responder,
            self.report,
            rules,
            banks,
            checkpoints=policies.checkpoints,
            clock=clock,
            durable=Durable(disk, run_dir, self.live, self.report, clock) if disk else None,
        )
        self.resumed_from: str | None = None
        self.refused: list[tuple[str, str]] = []
        self.preemption: Preemption | None = None
        self.together = Together(self, ranks, replicas_every) if ranks.world > 1 else None
        self.live.errands = Errands(run_dir, clock, self.report.facts)
        captures = any(a.type == "capture" for p in rules.policies for rung in p.attempts for a in rung)
        if captures or (self.acting and self.responder.examines):
            self.live.iteration = Iteration(everything=captures)
        self._metrics: dict[str, float] | None = None
        self._discarded: set[Slot] = set()  # optimizers that have stepped in an iteration that was rolled back
        self._leaving = self._scaler_disagrees = self.diverted = False
        self.closed = False
        self.pid = os.getpid()
        self.supply = Supply(self)
        self.on_close: list[Callable[[float], object]] = []  # the courier's end
        self.attachment = Attachment(self)
        self.attachment.install()
        if self.acting:
            self.attachment.watch_model()
        if disk is not None:
            self.preemption = Preemption(
                functools.partial(ending.save_late, self),
                functools.partial(wheel.ask_for_checkpoint, self),
                disk.signal,
            )

    # ---- what a training loop calls

    def batches(
        self, source: Iterable[Any] | Callable[[int], Any], steps: int | None = None, accumulate: int = 1
    ) -> Iterator[Any]:
        """Yields batches until `steps` steps are done (None: one pass over `source`).

        Args:
            source: a DataLoader or another re-iterable, or a callable ``index -> batch`` (index counts micro-batches).
            steps: total completed steps at which to end; a rolled-back step is not completed.
            accumulate: micro-batches per optimizer step.

        After a rollback it yields the same batches again, or leaves whole accumulation windows out.

        Raises:
            UsageError: `source` is of no such kind, or a callable comes without `steps`.
        """
        return self.supply.serve(source, steps, accumulate)

    def autocast(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> torch.autocast:
        """`torch.autocast`, except that a `precision` action can change its dtype. Same arguments."""
        return self.live.precision.region(device_type, dtype, enabled, cache_enabled)

    def backward(self, loss: torch.Tensor, accumulate: int | None = None) -> None:
        """Records the loss, divides it by `accumulate`, scales it if there is a scaler, and runs backward.

        Args:
            loss: scalar tensor, the undivided loss of one micro-batch.
            accumulate: micro-batches per step; default: what `batches` was given, else 1.
        """
        self.record(loss)
        n = accumulate or (self.live.feed.accumulate if self.live.feed else 1)
        scaled = loss / n if n > 1 else loss
        if self.live.scaler is not None:
            scaled = self.live.scaler.scale(scaled)
        self.attachment.listening = False
        try:
            scaled.backward()  # type: ignore[no-untyped-call]
        finally:
            self.attachment.listening = True

    def record(self, loss: torch.Tensor | float) -> None:
        """Says what the (unscaled, undivided) loss of this micro-batch is, for loops that call backward themselves."""
        for slot in self.slots:
            slot.loss.state(loss)

    def log(self, **metrics: float) -> None:
        """Numbers that detectors can use, e.g. ``val_loss``. The state of the lowest `val_loss` is kept as *best*."""
        if self.supply.taking_up or self.examining.quiet:
            return  # of a pass that an earlier process has made, or of an experiment
        values = {k: float(v) for k, v in metrics.items()}
        self._metrics = {**(self._metrics or {}), **values}
        if self.together is None:  # else once all ranks have said what they logged
            self.boundary.keep_best(values.get("val_loss", math.nan))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Says what the run does meanwhile (``eval``, ``checkpoint``), for the heartbeat."""
        before, self.doing = self.doing, name
        try:
            yield
        finally:
            self.doing = before

    # ---- what it knows

    @property
    def tick(self) -> int:
        return self.live.tick

    @property
    def step(self) -> int:
        return self.live.step

    @property
    def lr_multiplier(self) -> float:
        """The factor on every learning rate now; 1.0 unless a `scale_lr` or a `warmup_lr` is in force."""
        return self.live.lr_factor

    @property
    def incidents(self) -> list[Incident]:
        """All incidents so far, oldest first."""
        return list(self.report.log.incidents.values())

    @property
    def signals(self) -> list[Row]:
        """Recent ticks: (tick, step, loss, grad_norm, lr, lr_effective, loss_scale)."""
        return list(self.history.rows)

    @property
    def mode(self) -> Mode:
        return self.responder.mode

    @property
    def acting(self) -> bool:
        """It may change the run."""
        return self.responder.acting

    @property
    def attached(self) -> bool:
        """It has not let go of the run."""
        return self.attachment.on

    def summary(self) -> dict[str, Any]:
        """The run so far: steps, losses, incidents by cause, what was repaired, recent gradient norms."""
        return summarise(self)

    # ---- one step, exactly

    def take_step(self, slot: Slot, closure: Callable[[], Any] | None) -> Any:
        """What `optimizer.step` is while the guard is attached."""
        slot.called = True
        if self.diverted:
            return self.examining.take_step(closure)
        result = None if closure is None else self._run_closure(slot, closure)
        try:
            s = self._measure(slot)
            accepted = self._judge(slot, s)
        except (TrainingStopped, RankLostError):
            raise
        except Exception as error:  # noqa: BLE001 - a guard that fails must not kill the run
            self.give_up(error)
            bad = self.together is not None and self.together.agreed.bad_ranks  # on any rank: none may take it
            accepted = not self.acting or (not bad and careful_norm(slot.reader.gradients()) < math.inf)
            if not accepted:
                self.live.leave_out()  # the gate holds to the last
            return self._update(slot, closure, result) if accepted else result
        if accepted:
            result = self._update(slot, closure, result)
            slot.bank.learn(s)
        elif self.responder.holds():
            return result  # the tick ends when its cause is known
        self._end_tick(slot, s)
        return result

    def take_overflow(self, slot: Slot) -> None:
        """A tick in which the loss scaler left the step out."""
        if self.diverted:
            self.examining.take_step(None, overflow=True)
            return
        try:
            s = self._measure(slot, overflow=self.live.scaling)
            if self._judge(slot, s):
                slot.bank.learn(s)
            if not self.responder.holds():
                self._end_tick(slot, s)
        except (TrainingStopped, RankLostError):
            raise
        except Exception as error:  # noqa: BLE001 - a guard that fails must not kill the run
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """The guard itself failed: it says so and lets go of the run, which goes on unguarded; on all ranks."""
        if not self._leaving:
            self.report.failure("the guard itself", error)
        if self.together is not None and not self.together.asked:
            self.together.leave()
        if self.together is None or self.together.agreed.leaving:
            self.detach()
        else:
            self._leaving = True  # the others wait for this rank's word in the next tick

    def _run_closure(self, slot: Slot, closure: Callable[[], Any]) -> Any:
        """Forward and backward happen inside a closure: it runs first, so that there are gradients to judge."""
        self.inquiry.by_closure = True
        with torch.enable_grad():
            loss = closure()
        if loss is not None:
            slot.loss.state(loss)
        return loss

    def _measure(self, slot: Slot, *, overflow: bool | None = None) -> Signals:
        """This tick's signals; with several ranks, those of all.

        Args:
            overflow: the loss scaler left the step out; None: as the optimizer knows.
        """
        together = self.together
        if together is not None:
            together.asked = False
            if self._leaving:
                raise GuardError("it had failed before")
        metrics, self._metrics = self._metrics, None
        s = slot.measure(self.live, metrics)
        if overflow is not None:
            s.overflow = overflow
        if self.deep is not None and slot is self._clock_slot:
            self._look_inside(self.deep, s)
        guess = self.attachment.guess
        if guess is not None and guess.end_step(s.loss_scale):
            s.guess, self.attachment.guess = guess.value, None
        if together is not None:
            skipped = s.overflow
            together.agree(slot, s, clock=slot is self._clock_slot)
            self._scaler_disagrees = s.overflow and not skipped
        return s

    def _look_inside(self, deep: Deep, s: Signals) -> None:
        """What policies want to know beyond the global numbers. If that fails, the run is guarded without it."""
        try:
            s.deep = deep.collect(s.loss, s.grad_norm, s.lr_effective, self.live.grad_scale)
        except Exception as error:  # noqa: BLE001 - a guard that fails must not kill the run
            s.deep = self.deep = None
            deep.stop()
            self.report.failure("the look inside the model", error)

    def _judge(self, slot: Slot, s: Signals) -> bool:
        """Scores the signals and does what the policies say; False: this update must not run."""
        live, bank = self.live, slot.bank
        live.left_out = self._is_discarded(slot)
        if live.left_out:
            return False
        if self.together is not None and self.together.agreed.leaving:
            raise GuardError(f"the guard of rank {self.together.agreed.leaving[0]} has let go of the run")
        hits = bank.flagged = bank.score(s)
        if hits or live.tick >= self.responder.due:
            if not self.responder.respond(hits, self._where_nonfinite(s), s.loss, may_wait=True):
                self.examining.hold(s)
                return False
            self._discarded = {slot}
        if bank.failed:
            self._report_failures(bank)
        if self.together is None and self.files.requested():
            wheel.obey(self, wheel.taken(self))
        if live.paused_for is not None:
            self._pause()
        if not s.grad_norm < math.inf and not live.left_out and self.acting and not (s.overflow and _harmless(s)):
            live.leave_out()  # the gate: whatever the policies say
            self.report.gated(s.grad_norm)
        if self._scaler_disagrees and not live.left_out:
            live.leave_out()  # another rank's scaler leaves this step out
        if live.stopping:
            raise self.report.training_stopped()
        if live.clips and not live.left_out:
            live.clip_standing(s.grad_norm)
        return not live.left_out

    def end_held_tick(self, slot: Slot, s: Signals) -> None:
        """A tick that has waited for its cause, and was decided, is over.

        Raises:
            TrainingStopped: that was the decision.
        """
        self._discarded = {slot}
        if slot.bank.failed:
            self._report_failures(slot.bank)
        if self.live.paused_for is not None:
            self._pause()
        if self.live.stopping:
            raise self.report.training_stopped()
        self._end_tick(slot, s)

    def _is_discarded(self, slot: Slot) -> bool:
        """Another optimizer of this iteration rolled it back: what this one would do is discarded with it."""
        if self.live.went_back is None:
            return False
        if self.live.feed is None and slot in self._discarded:
            self.live.went_back = None  # a new iteration, although no boundary was seen
            return False
        self._discarded.add(slot)
        return True

    def _update(self, slot: Slot, closure: Callable[[], Any] | None, loss: Any) -> Any:
        """The real step, under the learning rate multiplier if there is one."""
        if self.live.accumulation.on and not self.live.accumulation.due(slot.optimizer, self.live.tick):
            slot.optimizer._opt_called = True  # type: ignore[attr-defined] # as for a step left out
            return loss
        real = slot.patch.real
        update = real if closure is None else functools.partial(real, _known_first(closure, loss))
        return self.live.with_scaled_lr(slot.optimizer, update) if self.live.scales_lr else update()

    def _end_tick(self, slot: Slot, s: Signals) -> None:
        """Rows, probation, counters. The first optimizer is the clock."""
        live = self.live
        if live.left_out:
            slot.optimizer._opt_called = True  # type: ignore[attr-defined] # else schedulers warn about their order
        if len(self.slots) > 1:
            for other in self.slots:
                other.loss.forget_heard()
        if slot is not self._clock_slot:
            return
        if live.scales_lr:
            s.lr_effective = live.effective_lr(s.lr)  # an action of this very tick may have changed it
        row = (s.tick, s.step, s.loss, s.grad_norm, s.lr, s.lr_effective, s.loss_scale)
        self.history.rows.append(row)
        self.files.rows.append(row)
        if self.responder.unclean:
            self.responder.unclean = False
            live.ring.count_unclean()
        elif live.ring.candidate is not None and not live.left_out and s.grad_norm < math.inf:
            live.ring.count_clean()
        live.tick += 1
        if live.went_back is None:
            live.step += 1
        if self.deep is not None:
            self.deep.next_tick(live.tick, updated=not (live.left_out or live.accumulation.held or s.overflow))
        if live.ends_override and (ended := live.expire()):
            self.report.notice("info", ended)
        if live.errands.done:
            self.report_errands()
        self.attachment.look_deeper()
        self.supply.ticked = True

    # ---- iteration boundaries

    def cross_boundary(self) -> None:
        """Between two iterations: restores again after a rollback, takes a snapshot if one is due."""
        if not self.attachment.on:
            return  # detached: the guard has let go of the run
        self.attachment.boundary_due = self.supply.taking_up = False
        try:
            self.boundary.cross()
            if self.preemption is not None and (self.together or self.preemption).preempted:
                ending.end_preempted(self, self.preemption)
        except (TrainingStopped, RankLostError):
            raise
        except Exception as error:  # noqa: BLE001 - a guard that fails must not kill the run
            self.give_up(error)

    def saw(self, batch: Any) -> None:
        """The loop gets `batch` now."""
        if self.deep is not None:
            self.deep.saw(batch)

    def verify_end(self) -> bool:
        """The loop is about to end: is its state sound? False: it was rolled back, go on."""
        return not self.attachment.on or self.boundary.verify()

    # ---- a person takes the wheel (guard.wheel)

    @property
    def reachable(self) -> bool:
        """A person's requests can be read: the disk answers."""
        return self.files.answers

    @property
    def asked_for(self) -> bool:
        """A person has asked for something since this was last asked."""
        return self.files.requested()

    def set_mode(self, mode: Mode, policy: str | None) -> None:
        """Observe or enforce, for one policy or (None) for the whole run, from now on."""
        self.responder.set_mode(mode, policy)
        if self.acting and not self.attachment.watching:
            self.attachment.watch_model()
            self.boundary.history_starts = True
            if self.responder.examines and self.live.iteration is None:
                self.live.iteration = Iteration(everything=False)

    # ---- coming and going

    def detach(self) -> None:
        """Puts everything back as it was; the guard sees no further step."""
        self.attachment.undo()
        if self.preemption is not None:
            self.preemption.release()

    def close(self, timeout: float = 5.0, *, crashed: BaseException | bool = False, preempted: bool = False) -> None:
        """Last check, flush, run marked finished. The courier gets `timeout` [s] and no longer. May be called twice.

        Args:
            timeout: for the courier [s].
            crashed: the exception because of which the run ends, or True if which is not known.
            preempted: it ends because the machine is taken away; a checkpoint is written first.
        """
        if not self.closed and os.getpid() == self.pid:
            self.closed = True
            ending.close(self, timeout, crashed=crashed, preempted=preempted)

    def let_go(self) -> None:
        """The run does not begin after all: everything is put back, and the directory is free again."""
        self.closed = True
        ending.let_go(self)

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self.close(crashed=error or kind is not None)

    # ---- the rest

    def _where_nonfinite(self, s: Signals) -> Mapping[str, Any]:
        if s.grad_norm < math.inf and s.loss - s.loss == 0.0:
            return {}
        names = nonfinite_names(self.live.model)
        return self.together.where(names) if self.together is not None else {"nonfinite_gradients": names}

    def _pause(self) -> None:
        """A `pause` was done and journaled: the step waits here."""
        before, self.doing = self.doing, "paused"
        try:
            wheel.wait_for_resume(self)
        finally:
            self.doing, self.live.paused_for = before, None

    def report_errands(self) -> None:
        """Journals what came of work in the background."""
        done = self.live.errands.done
        while done:
            incident, name, outcome = done.popleft()
            if incident:
                self.report.write("incident_evidence", incident=incident, evidence={name: outcome})

    def _report_failures(self, bank: Bank) -> None:
        for name, error in bank.failed:
            self.report.failure(f"detector {name}", error)
        bank.failed.clear()


def _known_first(closure: Callable[[], Any], loss: Any) -> Callable[[], Any]:
    """A closure for the real step: its first call is already done and known; later ones (LBFGS) really run."""
    known = [loss]
    return lambda: known.pop() if known else closure()


def _harmless(s: Signals) -> bool:
    """An overflow is the loss scaler's ordinary search, unless the loss itself was not finite: then buffers may
    hold NaN.
    """
    return not s.loss_known or s.loss - s.loss == 0.0
