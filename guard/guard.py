"""The guard. The whole flow of one step is readable here: measure, score, decide, act, update, learn, journal."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from guard import patching, wheel
from guard.actions import OTHER, STRENGTH
from guard.bank import Bank, Rules
from guard.checkpoints import Interval, Snapshot, Stateful, Surroundings, keep_that_fits
from guard.clock import Clock
from guard.errors import TrainingStopped, UsageError
from guard.feed import Feed
from guard.incidents import IncidentLog
from guard.incidents.rundir import RunDir, SignalRow
from guard.live import LiveRun
from guard.policy import PolicySet, engine
from guard.policy.schema import ActionSpec, Policy
from guard.reporter import Reporter
from guard.signals import GradientReader, LossMeter, careful_norm, nonfinite_names
from guard.types import Detection, Incident, Mode, Result, Signals

_HISTORY = 1000    # ticks kept in memory
_BORDERS = 16      # passes back over whose beginning a rollback is still exact
_SHOWN = 20        # ticks of signals kept with an incident


class _Slot:
    """One guarded optimizer: its reader, its signals, its detectors with their baselines."""

    __slots__ = ("bank", "called", "loss", "optimizer", "patch", "reader", "signals")

    def __init__(self, optimizer: torch.optim.Optimizer, bank: Bank) -> None:
        self.optimizer, self.bank = optimizer, bank
        self.reader, self.signals, self.loss = GradientReader(optimizer), Signals(), LossMeter()
        self.patch: patching.StepPatch
        self.called = False


class Guard:
    """Protects one training run. Made by `guard.attach`; see there for the arguments.

    Attributes:
        run_dir: where the journal is.
        policies: what was asked for, resolved.
        live: the run as actions see it.
        report: writes the journal.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], policies: PolicySet, *,
                 schedulers: Sequence[Stateful], scaler: Any, run_dir: Path, extra: dict[str, Stateful], mode: Mode,
                 clock: Clock, earlier: IncidentLog) -> None:
        self.run_dir, self.policies = run_dir, policies
        others: dict[str, Stateful] = {f"scheduler {i}": s for i, s in enumerate(schedulers)}
        if scaler is not None:
            others["scaler"] = scaler
        others |= extra
        self._rules = Rules(policies)
        self.live = LiveRun(model, optimizers, others, scaler, policies.checkpoints, self._typical_grad_norm)
        self._slots = [_Slot(o, self._rules.bank()) for o in optimizers]
        self._clock_slot = self._slots[0]
        self._state = engine.State.new(self._rules.policies, mode, opened=len(earlier.incidents))
        self._history: deque[SignalRow] = deque(maxlen=_HISTORY)
        self._flagged: deque[int] = deque(maxlen=_HISTORY)    # ticks in which a policy's trigger was satisfied
        self._metrics: dict[str, float] | None = None
        self._best_value = math.inf
        self._interval = Interval(policies.checkpoints.every, clock)
        self._phase = "start"
        self._boundary_due = True     # the next training forward pass begins an iteration
        self._lenient = False         # so does one in eval mode
        self._history_starts = True   # weights are new to the guard: `start` is to be taken
        self._window_open = self._ticked = False
        self._unclean = False
        self._broken: list[object] = []        # actions that failed
        self._borders: dict[int, Surroundings] = {}    # pass -> what the loop's code between the passes had left
        self._pass_begins = False
        self._discarded: set[_Slot] = set()    # optimizers that have stepped in an iteration that was rolled back
        self._listening = True
        self._closed = False
        self._pid = os.getpid()
        self._files = RunDir(run_dir, clock, lambda: (self.live.tick, self.live.step, self._phase))
        self.report = Reporter(self._files, lambda: (self.live.tick, self.live.step), earlier)
        self._undo: list[Callable[[], None]] = []
        self._watching = False
        self.on_close: list[Callable[[float], object]] = []    # the courier's end
        self._install()

    # ---- what a training loop calls

    def batches(self, source: Iterable[Any] | Callable[[int], Any], steps: int | None = None,
                accumulate: int = 1) -> Iterator[Any]:
        """Yields batches until `steps` steps are done (None: one pass over `source`).

        Args:
            source: a DataLoader or another re-iterable, or a callable ``index -> batch`` (index counts micro-batches).
            steps: total completed steps at which to end; a rolled-back step is not completed.
            accumulate: micro-batches per optimizer step.

        After a rollback it yields the same batches again, or leaves whole accumulation windows out.

        Raises:
            UsageError: `source` is of no such kind, or a callable comes without `steps`.
        """
        feed = self._open_feed(source, steps, accumulate)
        try:
            while True:
                if feed.at_window_start and not self._begin_window(feed, steps):
                    return
                self._phase = "data"
                try:
                    batch = feed.read()
                except StopIteration:
                    if self._verify_end():
                        return
                    continue
                self._phase = "step"
                yield batch
        finally:
            feed.release()

    def autocast(self, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True,
                 cache_enabled: bool | None = None) -> torch.autocast:
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
        self._listening = False
        try:
            scaled.backward()  # type: ignore[no-untyped-call]
        finally:
            self._listening = True

    def record(self, loss: torch.Tensor | float) -> None:
        """Says what the (unscaled, undivided) loss of this micro-batch is, for loops that call backward themselves."""
        for slot in self._slots:
            slot.loss.state(loss)

    def log(self, **metrics: float) -> None:
        """Numbers that detectors can use, e.g. ``val_loss``. The state of the lowest `val_loss` is kept as *best*."""
        values = {k: float(v) for k, v in metrics.items()}
        self._metrics = {**(self._metrics or {}), **values}
        loss = values.get("val_loss", math.nan)
        if loss < self._best_value and self._acting and self.live.went_back is None:
            snapshot = self._capture()
            if snapshot.finite:
                self._best_value = loss
                self.live.ring.set_best(snapshot)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Says what the run does meanwhile (``eval``, ``checkpoint``), for the heartbeat."""
        before, self._phase = self._phase, name
        try:
            yield
        finally:
            self._phase = before

    # ---- what it knows

    @property
    def tick(self) -> int:
        return self.live.tick

    @property
    def step(self) -> int:
        return self.live.step

    @property
    def lr_multiplier(self) -> float:
        """The standing factor on every learning rate; 1.0 unless a `scale_lr` is in force."""
        return self.live.lr_multiplier

    @property
    def incidents(self) -> list[Incident]:
        """All incidents so far, oldest first."""
        return list(self.report.log.incidents.values())

    @property
    def signals(self) -> list[SignalRow]:
        """Recent ticks: (tick, step, loss, grad_norm, lr, lr_effective, loss_scale)."""
        return list(self._history)

    @property
    def mode(self) -> Mode:
        return self._state.mode

    def summary(self) -> dict[str, Any]:
        """The run so far in a few numbers."""
        losses = [row[2] for row in self._history if math.isfinite(row[2])]
        return {"steps": self.step, "ticks": self.tick, "last_loss": losses[-1] if losses else None,
                "best_val_loss": self._best_value if math.isfinite(self._best_value) else None,
                "incidents": len(self.incidents),
                "resolved": sum(i.status == "resolved" for i in self.incidents)}

    # ---- one step, exactly

    def _step(self, slot: _Slot, closure: Callable[[], Any] | None) -> Any:
        """What `optimizer.step` is while the guard is attached."""
        slot.called = True
        result = None if closure is None else self._run_closure(slot, closure)
        try:
            s = self._measure(slot)
            accepted = self._judge(slot, s)
        except TrainingStopped:
            raise
        except Exception as error:  # noqa: BLE001 - a guard that fails must not kill the run
            self._give_up(error)
            accepted = not self._acting or careful_norm(slot.reader.gradients()) < math.inf
            if not accepted:
                self.live.leave_out()    # the gate holds to the last
            return self._update(slot, closure, result) if accepted else result
        if accepted:
            result = self._update(slot, closure, result)
            slot.bank.learn(s)
        self._end_tick(slot, s)
        return result

    def _give_up(self, error: Exception) -> None:
        """The guard itself failed: it says so and lets go of the run, which goes on unguarded."""
        self.report.failure("the guard itself", error)
        self.detach()

    def _run_closure(self, slot: _Slot, closure: Callable[[], Any]) -> Any:
        """Forward and backward happen inside a closure: it runs first, so that there are gradients to judge."""
        with torch.enable_grad():
            loss = closure()
        if loss is not None:
            slot.loss.state(loss)
        return loss

    def _measure(self, slot: _Slot) -> Signals:
        """Reads the gradients once, the loss, the rate and the loss scale."""
        s, live = slot.signals, self.live
        s.tick, s.step = live.tick, live.step
        pending = slot.loss.pending
        s.grad_norm = slot.reader.read(pending)
        s.params = slot.reader.count
        s.overflow = False
        lr = slot.optimizer.param_groups[0].get("lr", math.nan)
        s.lr = lr if type(lr) is float else float(lr)
        s.lr_effective = live.effective_lr(s.lr) if live.scales_lr else s.lr
        s.metrics, self._metrics = self._metrics, None
        if live.scaler is not None:
            self._measure_scaled(slot, s)
        s.loss_known = slot.loss.known
        s.loss = slot.loss.take(s.loss_scale, slot.reader.along or 0.0)
        return s

    def _measure_scaled(self, slot: _Slot, s: Signals) -> None:
        """Under a GradScaler; a fused optimizer gets its gradients still scaled."""
        s.loss_scale = float(self.live.scaler.get_scale())
        still_scaled = getattr(slot.optimizer, "grad_scale", None) is not None and s.loss_scale > 0
        self.live.grad_scale = s.loss_scale if still_scaled else 1.0
        s.grad_norm /= self.live.grad_scale
        found = getattr(slot.optimizer, "found_inf", None)
        s.overflow = found is not None and self._scaling and bool(found)

    def _judge(self, slot: _Slot, s: Signals) -> bool:
        """Scores the signals and does what the policies say; False: this update must not run."""
        live, bank = self.live, slot.bank
        live.left_out = self._is_discarded(slot)
        if live.left_out:
            return False
        hits = bank.flagged = bank.score(s)
        if hits or live.tick >= self._state.due:
            self._respond(hits, self._where_nonfinite(slot, s))
            self._discarded = {slot}
        if bank.failed:
            self._report_failures(bank)
        if self._files.requested():
            wheel.obey(self)
        if not s.grad_norm < math.inf and not live.left_out and self._acting and not (s.overflow and _harmless(s)):
            live.leave_out()    # the gate: whatever the policies say
            self.report.gated(s.grad_norm)
        if live.stopping:
            raise self.report.training_stopped()
        if live.clips and not live.left_out:
            live.clip_standing(s.grad_norm)
        return not live.left_out

    def _is_discarded(self, slot: _Slot) -> bool:
        """Another optimizer of this iteration rolled it back: what this one would do is discarded with it."""
        if self.live.went_back is None:
            return False
        if self.live.feed is None and slot in self._discarded:
            self.live.went_back = None    # a new iteration, although no boundary was seen
            return False
        self._discarded.add(slot)
        return True

    def _respond(self, hits: dict[int, Detection], evidence: dict[str, Any]) -> None:
        """Lets the engine decide, and does what it decides, in its order."""
        live, rules = self.live, self._rules.policies
        fired = self._rules.satisfied(hits)
        nonfinite = any(d.detector == "non_finite" for d in hits.values())
        # A state that is not finite was poisoned by the step before the one that shows it.
        moment = engine.Moment(live.tick, live.step, live.position - (nonfinite and not live.state_finite()))
        if fired:
            self._flagged.append(live.tick)
        self._state, events = engine.advance(self._state, rules, moment, fired, self)
        only_clipped = True
        for event in events:
            match event:
                case engine.Opened():
                    self.report.opened(event, list(self._history)[-_SHOWN:], self._history, evidence)
                case engine.Fired():
                    self.report.fired(event)
                case engine.Attempted(would=True):
                    self.report.attempted(event, moment.step, [self._would(a) for a in event.actions])
                case engine.Attempted():
                    only_clipped = only_clipped and all(a.type == "clip" for a in event.actions)
                    self.report.attempted(event, moment.step, self._act(event))
                case engine.Closed():
                    live.incident_over(event.incident)
                    self.report.closed(event, self._history)
        self._unclean = not only_clipped or any(rules[i].severity != "info" and not _clips(rules[i]) for i in fired)

    def _act(self, event: engine.Attempted) -> list[Result]:
        """Takes the actions of one attempt, strongest first. One that fails is reported and left out."""
        results: list[Result] = []
        self.live.incident = event.incident
        for spec in sorted(event.actions, key=lambda a: STRENGTH.get(a.type, OTHER)):
            try:
                results.append(spec.action.apply(self.live, event.detection))
            except Exception as error:  # noqa: BLE001 - a plug-in that fails must not kill the run
                self._action_failed(spec, error)
        if any(r.type in ("rollback", "scale_lr", "precision") for r in results):
            self.refill_detectors()
        return results

    def _would(self, spec: ActionSpec) -> Result:
        try:
            return Result(spec.type, f"would {spec.action.describe()}")
        except Exception as error:  # noqa: BLE001 - a plug-in that fails must not kill the run
            self._action_failed(spec, error)
            return Result(spec.type, f"would do {spec.type}")

    def _action_failed(self, spec: ActionSpec, error: Exception) -> None:
        """Reported once; from now on it is not available."""
        self._broken.append(spec.action)
        self.report.failure(f"action {spec.type}", error)

    def _update(self, slot: _Slot, closure: Callable[[], Any] | None, loss: Any) -> Any:
        """The real step, under the learning rate multiplier if there is one."""
        real = slot.patch.real
        update = real if closure is None else functools.partial(real, _known_first(closure, loss))
        return self.live.with_scaled_lr(slot.optimizer, update) if self.live.scales_lr else update()

    def _end_tick(self, slot: _Slot, s: Signals) -> None:
        """Rows, probation, counters. The first optimizer is the clock."""
        live = self.live
        if live.left_out:
            slot.optimizer._opt_called = True  # type: ignore[attr-defined] # else schedulers warn about their order
        if slot is not self._clock_slot:
            return
        if live.scales_lr:
            s.lr_effective = live.effective_lr(s.lr)    # an action of this very tick may have changed it
        row = (s.tick, s.step, s.loss, s.grad_norm, s.lr, s.lr_effective, s.loss_scale)
        self._history.append(row)
        self._files.rows.append(row)
        if self._unclean:
            self._unclean = False
            live.ring.count_unclean()
        elif live.ring.candidate is not None and not live.left_out and s.grad_norm < math.inf:
            live.ring.count_clean()
        live.tick += 1
        if live.went_back is None:
            live.step += 1
        if live.ends_override and (ended := live.expire()):
            self.report.notice("info", ended)
        if self._boundary_due and live.feed is None and self._acting and not self._lenient:
            self._look_deeper()
        self._boundary_due = self._ticked = True

    def _look_deeper(self) -> None:
        """An iteration passed without a training forward pass of the model: its parts are called, or it is in eval mode."""
        self._lenient = True
        for child in self.live.model.children():
            for module in patching.entry_modules(child):
                self._undo.append(patching.watch_forward(module, self))

    # ---- iteration boundaries

    def _begin_window(self, feed: Feed, steps: int | None) -> bool:
        """At the start of a window of `batches`; False once `steps` steps are done and verified."""
        live = self.live
        while True:
            if self._window_open and not self._ticked:
                live.step += 1    # the loop left this step out by itself
            self._window_open = self._ticked = self._boundary_due = False
            self._boundary()
            if feed.skipped:
                with contextlib.suppress(StopIteration):
                    live.step += feed.pass_over()
            if steps is None or live.step < steps:
                self._window_open = True
                return True
            if self._verify_end():
                return False

    def _boundary(self) -> None:
        """Between two iterations: restores again after a rollback, takes a snapshot if one is due."""
        live = self.live
        if not self._undo or not self._acting and live.went_back is None:
            return
        try:
            live.boundary()
            if live.feed is not None and live.feed.at_pass_start:
                self._cross_border(live.feed.pass_number)
            if self._acting and (self._history_starts or self._interval.due(live.step)):
                self._take_snapshot()
        except TrainingStopped:
            raise
        except Exception as error:  # noqa: BLE001 - a guard that fails must not kill the run
            self._give_up(error)

    def _cross_border(self, number: int) -> None:
        """A pass begins. In a replay the loop's code between two passes (an epoch's scheduler step) does not run again, so
        what it left the first time is put back."""
        feed = self.live.feed
        if feed is None or feed.passes is None or not self._acting:
            return
        if self._pass_begins:
            self._borders[number] = self.live.state.surroundings()
            self._borders.pop(number - _BORDERS, None)
        elif number in self._borders:
            self.live.state.put_surroundings(self._borders[number])
        self._pass_begins = False

    def _take_snapshot(self) -> None:
        """One that is not finite is a fault of its own, and is undone at once."""
        snapshot = self._interval.measure(self._capture)
        ring = self.live.ring
        if not snapshot.finite:
            self._poisoned()
        elif self._history_starts:
            ring.restart(snapshot)
            self._fit_memory(snapshot)
        else:
            ring.add(snapshot)
        self._history_starts = False
        self._interval.taken(self.live.step)

    def _provisional_start(self) -> None:
        """The state of now, until the first boundary gives a better one: a loop may never show where it begins."""
        with contextlib.suppress(Exception):    # parameters that do not exist yet (lazy modules)
            snapshot = self._capture()
            if snapshot.finite:
                self.live.ring.restart(snapshot)

    def _capture(self) -> Snapshot:
        snapshot = self.live.capture()
        snapshot.context["baselines"] = [slot.bank.state_dict() for slot in self._slots]
        return snapshot

    def _fit_memory(self, snapshot: Snapshot) -> None:
        """Keeps as many snapshots as the memory allowed for them holds."""
        keep = self.policies.checkpoints.keep
        fits = keep_that_fits(snapshot.bytes, keep, self.policies.checkpoints.memory)
        if fits < keep:
            self.live.ring.keep = fits
            self.report.notice("info", f"{fits} instead of {keep} good checkpoints are kept in memory: one takes "
                                       f"{snapshot.bytes / 2**20:.0f} MiB")

    def _verify_end(self) -> bool:
        """The loop is about to end: is the state that it leaves finite? False: it was rolled back, go on."""
        if not self._acting or not self._undo or self.live.state_finite():
            return True
        return not self._poisoned()

    def _poisoned(self) -> bool:
        """Weights or buffers are not finite although losses and gradients were. True: a rollback undid it."""
        live = self.live
        since = live.ring.newest_tick() + 1
        detection = Detection("non_finite", "state", math.nan, 0.0, 0.0, since,
                              f"weights or buffers became NaN or Inf between tick {since - 1} and {live.tick}, "
                              "although losses and gradients were finite")
        self._respond(dict.fromkeys(self._rules.indices("non_finite"), detection), {})
        if live.stopping:
            raise self.report.training_stopped()
        undone = live.went_back is not None
        live.boundary()
        return undone

    # ---- patches call these

    def before_forward(self, module: nn.Module, args: Any) -> Any:
        """A forward pass begins; for a loop that only calls `attach`, a training pass is the iteration boundary."""
        if self._boundary_due and (module.training or self._lenient) and torch.is_grad_enabled():
            self._boundary_due = False
            if self.live.feed is None:
                self._phase = "step"
                self._boundary()
        return self.live.precision.before_forward(module, args)

    def after_forward(self) -> None:
        self.live.precision.after_forward()

    def scaler_step(self, real: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """`scaler.step`; on overflow it does not call `optimizer.step`, and the tick is counted here."""
        slot = next((s for s in self._slots if s.optimizer is optimizer), None)
        if slot is None:
            return real(optimizer, *args, **kwargs)
        slot.called = False
        result = real(optimizer, *args, **kwargs)
        if not slot.called:
            s = self._measure(slot)
            s.overflow = self._scaling
            if self._judge(slot, s):
                slot.bank.learn(s)
            self._end_tick(slot, s)
        return result

    def scaler_update(self, real: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """`scaler.update`, frozen while the precision is overridden."""
        if self._scaling:
            real(*args, **kwargs)
        else:
            self.live.scaler._per_optimizer_states.clear()

    @property
    def _scaling(self) -> bool:
        """The GradScaler is at work, so that an overflow is its ordinary search."""
        return self.live.precision.override is None

    def heard_backward(self, tensors: Any) -> None:
        """Somebody called backward: in a loop that only calls `attach`, this is where the loss shows."""
        if self._listening:
            for tensor in (tensors,) if isinstance(tensors, torch.Tensor) else tensors:
                if tensor.numel() == 1:
                    for slot in self._slots:
                        slot.loss.hear(tensor)

    def reloading(self) -> None:
        """State is about to be loaded: a discarded iteration ends here, so that the load goes on top of what is restored."""
        self.live.boundary()

    def reloaded(self) -> None:
        """Weights or optimizer state were loaded: what was kept belongs to another history."""
        self._history_starts = True

    # ---- the engine's questions (policy.engine.World)

    def unavailable(self, spec: ActionSpec, detection: Detection) -> str | None:
        if any(spec.action is action for action in self._broken):
            return "it failed before"
        try:
            return spec.action.unavailable(self.live, detection)
        except Exception as error:  # noqa: BLE001 - a plug-in that fails must not kill the run
            self._action_failed(spec, error)
            return f"it failed: {error}"

    def state_finite(self) -> bool:
        return self.live.state_finite()

    # ---- a person takes the wheel (guard.wheel)

    def set_mode(self, mode: Mode, policy: str | None) -> None:
        """Observe or enforce, for one policy or (None) for the whole run, from now on."""
        self._state = engine.set_mode(self._state, self._rules.policies, mode, policy)
        if self._acting and not self._watching:
            self._watch_model()
            self._history_starts = True

    def checkpoint_now(self) -> None:
        """A snapshot is taken at the next iteration boundary."""
        self._interval.now()

    def refill_detectors(self) -> None:
        """After a remedy: windows start anew; after a rollback with the baselines of that time."""
        for number, slot in enumerate(self._slots):
            slot.bank.refill(self.live.went_back, number)
        if self.live.went_back is not None:
            self._interval.taken(self.live.step)

    @property
    def policy_names(self) -> list[str]:
        return [p.name for p in self._rules.policies]

    # ---- coming and going

    def detach(self) -> None:
        """Puts everything back as it was; the guard sees no further step."""
        self.live.precision.release()
        while self._undo:
            self._undo.pop()()

    def close(self, timeout: float = 5.0, *, crashed: bool = False) -> None:
        """Last check, flush, run marked finished. The courier gets `timeout` [s] and no longer. May be called twice.

        Args:
            timeout: for the courier [s].
            crashed: the run ends because of an exception.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._phase = "end"
        if self._acting and not self.live.stopping and not crashed and self._undo:
            self._verify_close()
        self._state, events = engine.end_all(self._state, self._rules.policies)
        for event in events:
            if isinstance(event, engine.Closed):
                self.report.closed(event, self._history)
            elif isinstance(event, engine.Fired):
                self.report.fired(event)
        if self.live.feed is not None:
            self.live.feed.release()
        status = "stopped" if self.live.stopping else "crashed" if crashed else "finished"
        self.report.finished(status, self.summary())
        self.detach()
        for end in self.on_close:
            end(timeout)
        self._files.close(timeout)

    def _verify_close(self) -> None:
        """The last update is checked too; nothing that comes of it may raise here."""
        try:
            self._boundary()
            self._verify_end()
        except TrainingStopped:
            pass    # it is over anyway, and journaled
        except Exception as error:  # noqa: BLE001 - a guard that fails must not kill the run
            self._give_up(error)

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(crashed=kind is not None)

    # ---- the rest

    @property
    def _acting(self) -> bool:
        return self._state.mode == "enforce"

    def _install(self) -> None:
        for slot in self._slots:
            slot.patch = patching.StepPatch(slot.optimizer, functools.partial(self._step, slot))
            self._undo.append(slot.patch.undo)
        if self.live.scaler is not None:
            self._undo.append(patching.watch_scaler(self.live.scaler, self))
        self._undo.append(patching.listen_to_backward(self.heard_backward))
        if self._acting:
            self._watch_model()

    def _watch_model(self) -> None:
        self._watching = True
        self._provisional_start()
        for module in patching.entry_modules(self.live.model):
            self._undo.append(patching.watch_forward(module, self))
        self._undo.append(patching.watch_loading(self.live.model, self))
        for optimizer in self.live.optimizers:
            self._undo.append(patching.watch_loading(optimizer, self))

    def _open_feed(self, source: Any, steps: int | None, accumulate: int) -> Feed:
        """A feed for `source`; one that goes on where it was if the same source is read again, pass by pass."""
        feed = self.live.feed
        if feed is None or feed.source is not source or feed.accumulate != accumulate:
            feed = self.live.feed = Feed(source, accumulate, on_pass=self._cross_border)
            self._history_starts = True    # places in another source mean nothing here
            if not feed.can_go_back:
                self.report.notice("info", "the data source can be read only once, so a rollback goes on with fresh data")
        if steps is None:
            if not feed.iterable:
                raise UsageError("g.batches needs `steps` with a callable source: it has no end of its own")
            feed.passes = feed.pass_number + 1
            self._pass_begins = True
        else:
            feed.passes = None
        self._window_open = False
        return feed

    def _where_nonfinite(self, slot: _Slot, s: Signals) -> dict[str, Any]:
        return {} if s.grad_norm < math.inf else {"nonfinite_gradients": nonfinite_names(self.live.model)}

    def _typical_grad_norm(self, before: int) -> float:
        """Median of the last 128 ticks before tick `before` in which nothing was wrong."""
        norms = [row[3] for row in self._history if row[0] < before and row[3] < math.inf and row[0] not in self._flagged]
        return statistics.median(norms[-128:]) if norms else math.nan

    def _report_failures(self, bank: Bank) -> None:
        for name, error in bank.failed:
            self.report.failure(f"detector {name}", error)
        bank.failed.clear()


def _known_first(closure: Callable[[], Any], loss: Any) -> Callable[[], Any]:
    """A closure for the real step: its first call is already done and known; later ones (LBFGS) really run."""
    known = [loss]
    return lambda: known.pop() if known else closure()


def _harmless(s: Signals) -> bool:
    """An overflow is the loss scaler's ordinary search, unless the loss itself was not finite: then buffers may hold NaN."""
    return not s.loss_known or s.loss - s.loss == 0.0


def _clips(policy: Policy) -> bool:
    return bool(policy.attempts) and all(a.type == "clip" for rung in policy.attempts for a in rung)
