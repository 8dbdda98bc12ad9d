"""The run as actions see it: the one place where the guard changes tensors, rates and data."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from guard.checkpoints import ChangedBuffers, Ring, Snapshot, Stateful, TrainingState
from guard.errors import UnavailableError
from guard.incidents.journal import encode
from guard.policy.schema import Checkpoints
from guard.ranks import Ranks
from guard.run import command as commands
from guard.run import evidence, optimizer_state, replicas
from guard.run.accumulation import Accumulation
from guard.run.clipping import shorten
from guard.run.errands import Errands
from guard.run.feed import Feed, Place
from guard.run.iteration import Iteration
from guard.run.loss_scale import LossScale
from guard.run.precision import Precision


class LiveRun:
    """What `guard.actions.Run` asks for: state, data, rate and precision of a run in progress.

    Attributes:
        tick, step: as in DESIGN §2; written by the guard.
        incident: whose actions are being taken.
        left_out: the tick's update must not run (skip, rollback or stop).
        went_back: the snapshot a rollback of this tick restored; it is restored again at the next iteration boundary,
            so that what the rest of the loop's body still does to the discarded iteration leaves no trace.
        stopping: a `stop` was done; the guard raises once the journal is safe.
        grad_scale: what this tick's gradients are still multiplied with (a fused optimizer under a GradScaler).
        errands: what goes on in the background; set by the guard.
        ranks: the processes that train together; set by the guard where there are several. What all of them must find
            or do alike asks them, so all of them call it.
        wants_snapshot: one is to be taken at the next boundary.
        paused_for: a `pause` is to begin, or goes on [s].
        resumed_by: the person who ended it.
        skipped_before: windows that were left out before this process began; the first feed leaves them out too.
        iteration: its batches are kept, because a policy may want them as evidence or for a diagnosis; else None.
    """

    errands: Errands

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        others: dict[str, Stateful],
        *,
        scaler: Any,
        checkpoints: Checkpoints,
        usual_grad_norm: Callable[[int], float],
        step_of: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        self.model, self.optimizers, self.scaler = model, list(optimizers), scaler
        self.ranks = Ranks.alone()
        self.state = TrainingState(model, optimizers, others)
        self.ring = Ring(checkpoints.keep, checkpoints.probation, self.state.recycle)
        self.precision = Precision(model, optimizers)
        self.feed: Feed | None = None
        self.skipped_before: frozenset[int] = frozenset()
        self.tick = self.step = 0
        self.left_out = False
        self.went_back: Snapshot | None = None
        self.incident = ""
        self._left_out_by: dict[str, set[int]] = {}
        self.stopping = False
        self._to: Place | None = None
        self._used: int | None = None
        self._multiplier, self._min_lr = 1.0, 0.0
        self._recover: tuple[int, int] | None = None
        self._from: tuple[int, float] | None = None  # step from which the multiplier holds, and what it was before
        self._clip: tuple[float, str | None, int] | None = None  # max_norm, pattern, tick at which it ends
        self.grad_scale = 1.0
        self.accumulation, self.loss_scale = Accumulation(), LossScale(scaler)
        self.iteration: Iteration | None = None
        self.wants_snapshot = False
        self.paused_for: float | None = None
        self.resumed_by: str | None = None
        self._warmup: tuple[int, int, float] | None = None  # first tick, ticks, factor at its beginning
        self._reset: bool | None = None  # the optimizer was reset in this iteration (True: everything)
        self._state_made_early = [bool(o.state) for o in optimizers]
        self._once: set[tuple[str, str]] = set()
        self._names = {id(p): n for n, p in model.named_parameters()}
        self._buffers = ChangedBuffers(model)
        self._usual_grad_norm, self._step_of = usual_grad_norm, step_of

    # ---- what actions ask for

    @property
    def lr_multiplier(self) -> float:
        """The standing multiplier, on its way back to 1 if it recovers."""
        if self._from is not None and self.step < self._from[0]:
            return self._from[1]
        if self._recover is None:
            return self._multiplier
        start, steps = self._recover
        share = min(1.0, (self.tick - start) / steps)
        return self._multiplier + (1.0 - self._multiplier) * share

    def typical_grad_norm(self, before: int) -> float:
        return self._usual_grad_norm(before)

    @torch.no_grad()
    def clip(self, max_norm: float, pattern: str | None, lasts: int | None) -> float:
        if lasts is not None:
            self._clip = (max_norm, pattern, self.tick + lasts)
        chosen = [
            p
            for o in self.optimizers
            for g in o.param_groups
            for p in g["params"]
            if pattern is None or fnmatch.fnmatch(self._names.get(id(p), ""), pattern)
        ]
        groups = [chosen] if pattern is None else [[p] for p in chosen]
        return shorten(groups, max_norm * self.grad_scale, self.ranks)

    def skip_step(self) -> None:
        self.leave_out()
        if self.can_replay():  # what is left out stays left out when another incident goes back
            self._left_out_by.setdefault(self.incident, set()).add(self.position)
            self.feed.skipped.add(self.position)  # type: ignore[union-attr]

    def leave_out(self) -> None:
        """No update in this tick; what the forward pass did to buffers is undone."""
        self.left_out = True
        self._buffers.put_back()
        self._clear_gradients()

    def can_scale_lr(self) -> str | None:
        return (
            None
            if all("lr" in g for o in self.optimizers for g in o.param_groups)
            else "the optimizer has no learning rate"
        )

    def scale_lr(self, multiplier: float, min_lr: float, recover: int | None, since: int | None = None) -> None:
        step = None if since is None else self._step_of(since)
        self._from = None if step is None else (step, self._multiplier)
        self._multiplier, self._min_lr = multiplier, min_lr
        self._recover = (self.tick, recover) if recover else None

    def can_rollback(self, to: str, since: int) -> str | None:
        return None if self.ring.pick(to, since, self._used) else "there is no checkpoint yet"

    def can_replay(self) -> bool:
        return self.feed is not None and self.feed.can_go_back

    def rollback(self, to: str, data: str, since: int) -> dict[str, Any]:
        snapshot = self.ring.pick(to, since, self._used)
        if snapshot is None:
            raise UnavailableError("there is no checkpoint yet")
        here, window = self.step, self.position
        self._to = None
        skipped: list[int] = []
        if data != "advance" and self.feed is not None:
            self._to = snapshot.context["place"]
            if data == "replay":  # this incident's own skips did not help: its data is innocent
                self.feed.skipped -= self._left_out_by.pop(self.incident, set())
            first = window if data == "skip_offending" else self._to.position // self.feed.accumulate
            skipped = list(range(first, window + 1)) if data != "replay" else []
            self.feed.skipped.update(skipped)
        self._used = snapshot.tick
        self._restore(snapshot)
        self.left_out, self.went_back = True, snapshot
        self.ring.rewind(snapshot)
        changes: dict[str, Any] = {"from_step": here, "to_step": snapshot.step, "skipped_windows": len(skipped)}
        kept = self._not_restored()
        return {**changes, "not_restored": kept} if kept else changes

    def can_set_precision(self, dtype: str) -> str | None:
        return self.precision.why_not(dtype)

    def set_precision(self, dtype: str, lasts: int | None) -> None:
        self.precision.set(dtype, self.tick + lasts if lasts else None)

    def stop(self, restore: Literal["best", "last_good", "none"], since: int) -> dict[str, Any]:
        self.left_out = self.stopping = True
        snapshot = self.ring.pick(restore, since, None) if restore != "none" else None
        if snapshot is None:
            return {}
        here = self.step
        self._restore(snapshot)
        return {"from_step": here, "to_step": snapshot.step}

    def can_reset_optimizer(self) -> str | None:
        return optimizer_state.why_not(self.optimizers, self._state_made_early)

    def reset_optimizer(self, *, everything: bool) -> int:
        self._reset = everything
        return optimizer_state.reset(self.optimizers, everything=everything)

    def can_rebroadcast(self) -> str | None:
        return replicas.why_not(self.state, self.ranks)

    def rebroadcast(self, source: Literal["majority", "first"], since: int) -> dict[str, Any]:
        changes = replicas.rebroadcast(self.state, self.ranks, source)
        sound = self.ring.pick("last_good", since, None)
        if sound is not None:
            self.ring.rewind(sound)
        if self.ring.best is not None and self.ring.best.tick > since:
            self.ring.best = None
        self.wants_snapshot = True
        return changes

    def warmup_lr(self, steps: int, start: float) -> int:
        first = self.tick + self.left_out
        self._warmup = (first, steps, start)
        return first + steps

    def can_accumulate(self, factor: int, most: int) -> str | None:
        if any(isinstance(o, torch.optim.LBFGS) for o in self.optimizers):
            return "LBFGS computes its gradients anew within a step; use a larger batch"
        if self.grad_scale != 1.0:
            return "a fused optimizer gets its gradients still scaled, each by another scale; use a larger batch"
        if self.accumulation.factor * factor > most:
            return f"an update takes {self.accumulation.factor} windows already; use a larger batch"
        return None

    def accumulate(self, factor: int) -> tuple[int, int]:
        before = self.accumulation.factor
        self.accumulation.set(before * factor, self.tick + 1)
        return before, before * factor

    def can_change_loss_scale(self) -> str | None:
        if self.scaler is None:
            return "the run has no loss scaler"
        return "the loss scaler is frozen while the precision is overridden" if self.precision.override else None

    def change_loss_scale(
        self, value: float | None, growth_interval: int | None, floor: float | None
    ) -> dict[str, Any]:
        return self.loss_scale.change(value, growth_interval, floor)

    def checkpoint(self) -> None:
        self.wants_snapshot = True

    def pause(self, timeout: float) -> None:
        self.paused_for, self.resumed_by = timeout, None

    def once(self, what: str) -> bool:
        key = (self.incident, what)
        new = key not in self._once
        self._once.add(key)
        return new

    def capture_evidence(self, max_bytes: int) -> dict[str, Any]:
        assert self.iteration is not None, "made where a policy has a `capture`"
        table = evidence.layer_table(self.model, self.grad_scale)
        payload, why = self.iteration.copy(max_bytes, {"tick": self.tick, "step": self.step})
        name = self.incident if not self.ranks.rank else f"{self.incident}-rank{self.ranks.rank}"
        folder = self.errands.run_dir / "evidence" / name
        self.errands.start(self.incident, "captured", lambda _: evidence.write(folder, table, payload, max_bytes))
        return {"folder": f"evidence/{name}"} | ({"no_batch": why} if why else {})

    def run_command(self, name: str, command: Sequence[str], timeout: float, *, wait: bool) -> dict[str, Any]:
        if self.ranks.world > 1 and wait:  # rank 0 runs it, the others wait with it
            return self.ranks.broadcast({} if self.ranks.rank else self._run_here(name, command, timeout, wait=True))
        return {} if self.ranks.rank else self._run_here(name, command, timeout, wait=wait)

    def _run_here(self, name: str, command: Sequence[str], timeout: float, *, wait: bool) -> dict[str, Any]:
        errands, incident = self.errands, self.incident
        if errands.busy:
            return {"failed": "too many others are under way"}
        text = encode(
            {"run_dir": str(errands.run_dir), "tick": self.tick, "step": self.step, "incident": errands.facts(incident)}
        )

        def work(enough: Any) -> dict[str, Any]:
            return commands.run(command, text, errands.run_dir, timeout=timeout, clock=errands.clock, enough=enough)

        if wait:
            return errands.wait(work, timeout)
        errands.start(incident, f"command {name}", work)
        return {}

    # ---- what the guard asks for

    @property
    def lr_factor(self) -> float:
        """What all learning rates are multiplied with now: the standing multiplier, and a warm-up on top of it."""
        if self._warmup is None:
            return self.lr_multiplier
        first, steps, start = self._warmup
        share = min(1.0, max(0, self.tick - first) / steps)
        return self.lr_multiplier * (start + (1.0 - start) * share)

    @property
    def scales_lr(self) -> bool:
        return self._multiplier != 1.0 or self._warmup is not None

    @property
    def position(self) -> int:
        """Index of the window whose data this step used; where data cannot come back, every tick's is new."""
        return self.feed.window_read if self.feed is not None and self.feed.can_go_back else self.tick

    @property
    def ends_override(self) -> bool:
        """Something in force is to last for some time only."""
        return (
            self._recover is not None
            or self._clip is not None
            or self._warmup is not None
            or self.precision.until is not None
        )

    @property
    def scaling(self) -> bool:
        """The GradScaler is at work, so that an overflow is its ordinary search; it is frozen under an override."""
        return self.precision.override is None

    @property
    def clips(self) -> bool:
        """A clip is standing."""
        return self._clip is not None

    def clip_standing(self, grad_norm: float) -> None:
        """Clips this step as a standing clip wants it, where the gradient is longer.

        Args:
            grad_norm: global norm of this step's gradient, unscaled.
        """
        assert self._clip is not None
        max_norm, pattern, _ = self._clip
        if pattern is not None or grad_norm > max_norm:
            self.clip(max_norm, pattern, None)

    def undo_clip(self) -> None:
        self._clip = None

    def undo_warmup(self) -> None:
        self._warmup = None

    def undo_accumulation(self, factor: int) -> None:
        """Takes one incident's factor out; what is held goes into the next update."""
        self.accumulation.set(max(1, self.accumulation.factor // factor), self.tick)

    def effective_lr(self, lr: float) -> float:
        """The rate that is really used where the schedule says `lr`."""
        if not self.scales_lr:
            return lr
        return max(lr * self.lr_factor, min(lr, self._min_lr))

    def with_scaled_lr(self, optimizer: torch.optim.Optimizer, update: Any, share: float = 1.0) -> Any:
        """Runs the real step under the multiplier, at that share of it; every rate is put back exactly, also after an
        exception.
        """
        groups = [g for g in optimizer.param_groups if "lr" in g]
        saved = [g["lr"].clone() if isinstance(g["lr"], torch.Tensor) else g["lr"] for g in groups]
        for group in groups:
            lr = group["lr"]
            if isinstance(lr, torch.Tensor):
                lr.fill_(share * self.effective_lr(float(lr)))
            else:
                group["lr"] = share * self.effective_lr(lr)
        try:
            return update()
        finally:
            for group, lr in zip(groups, saved, strict=True):
                if isinstance(lr, torch.Tensor):
                    group["lr"].copy_(lr)
                else:
                    group["lr"] = lr

    def undo_lr(self, factor: float) -> None:
        """Takes one incident's factor out of the multiplier."""
        self.scale_lr(self._multiplier / factor, self._min_lr, None)

    def expire(self) -> str | None:
        """Ends what was to last for some time only; says so."""
        if self._recover is not None and self.tick >= sum(self._recover):
            self.scale_lr(1.0, 0.0, None)
            return "the learning rate is back at the schedule's"
        if self._clip is not None and self.tick >= self._clip[2]:
            self._clip = None
            return "the standing clip has ended"
        if self._warmup is not None and self.tick >= sum(self._warmup[:2]):
            self._warmup = None
            return "the learning rate has warmed up"
        if self.precision.until is not None and self.tick >= self.precision.until:
            self.precision.clear()
            return "the precision override has ended"
        return None

    def capture(self) -> Snapshot:
        taken: list[Snapshot] = []

        def take() -> bool:
            taken.append(self.state.capture(self.tick, self.step))
            return self.state.verify(taken[0])

        finite = self.ranks.together(take)
        (snapshot,) = taken
        snapshot.finite = finite
        snapshot.context["place"] = self.feed.mark() if self.feed else Place()
        snapshot.context["held"] = self.accumulation.state()
        return snapshot

    def capture_start(self) -> Snapshot:
        """The state with which the iteration under way began, if its update has not been made; torch's random states
        are those, the others of now.
        """
        with self._buffers.as_remembered():
            snapshot = self.state.capture(self.tick, self.step)
        began = self.iteration.rng if self.iteration is not None else None
        if began is not None:
            around = snapshot.surroundings
            snapshot.surroundings = replace(around, rng=replace(around.rng, cpu=began.cpu, cuda=began.cuda))
        snapshot.context["held"] = self.accumulation.state()
        return snapshot

    def put(self, snapshot: Snapshot) -> None:
        """For an experiment: the run is in that state, at an iteration boundary; the data stays where it is."""
        self._restore(snapshot)
        if self.scaler is not None:
            self.scaler._per_optimizer_states.clear()
        self._buffers.remember()

    def resume(self, snapshot: Snapshot) -> None:
        """Goes to where another process was; restored once more at the first boundary, like a rollback."""
        self.tick, self._to = snapshot.tick, snapshot.context["place"]
        self._restore(snapshot)
        self.went_back = snapshot
        self._buffers.remember()

    @property
    def to_pass(self) -> int:
        """The pass over the data that the run goes back to at the next boundary."""
        return 0 if self._to is None else self._to.pass_number

    def state_finite(self) -> bool:
        return self.ranks.together(self.state.finite)

    def start_finite(self) -> bool:
        """The same for the state with which this iteration began: what its forward did to buffers can be undone."""
        with self._buffers.as_remembered():
            return self.state_finite()

    def boundary(self) -> bool:
        """An iteration begins: buffers are remembered, and what the rest of a discarded iteration did is undone
        (True).
        """
        restores = self.went_back is not None
        if self.went_back is not None:
            snapshot, self.went_back = self.went_back, None
            self._restore(snapshot)
            if self.scaler is not None:
                self.scaler._per_optimizer_states.clear()
            if self.feed is not None and self._to is not None:
                self.feed.restore(self._to)
            if self._reset is not None:
                optimizer_state.reset(self.optimizers, everything=self._reset)
            self.loss_scale.settle()
        self._reset = None
        self._buffers.remember()
        return restores

    def incident_over(self, incident: str) -> None:
        """`previous` counts from the next incident's own checkpoints again; what it left out stays left out."""
        self._used = None
        self._left_out_by.pop(incident, None)
        self._once = {key for key in self._once if key[0] != incident}

    def _restore(self, snapshot: Snapshot) -> None:
        self.state.restore(snapshot)
        self.step = snapshot.step
        self.accumulation.load(snapshot.context["held"])
        self._clear_gradients()

    def _clear_gradients(self) -> None:
        """Zeroed in place: a loop that never clears them would carry the poison on, and 0 * NaN is NaN."""
        for p in self.state.parameters():
            if p.grad is not None:
                p.grad = None if p.grad.is_sparse else p.grad.detach().zero_()

    def _not_restored(self) -> list[str]:
        kept = []
        if self._multiplier != 1.0:
            kept.append(f"learning rate multiplier {self.lr_multiplier:.3g}")
        if self._clip is not None:
            kept.append(f"clip to norm {self._clip[0]:.3g}")
        if self._warmup is not None:
            kept.append("warm-up of the learning rate")
        if self.accumulation.factor > 1:
            kept.append(f"{self.accumulation.factor} windows per update")
        if self.precision.override:
            kept.append(f"precision {self.precision.override}")
        if self.feed is not None and self.feed.skipped:
            kept.append(f"{len(self.feed.skipped)} windows of data left out")
        return kept
