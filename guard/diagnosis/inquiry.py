"""What the guard calls: notes the failing step, examines it, and puts everything back as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import torch

from guard.checkpoints.interval import free_memory
from guard.clock import Clock
from guard.diagnosis import samples
from guard.diagnosis.aside import AsideBench
from guard.diagnosis.bench import LoopBench
from guard.diagnosis.functions import of_node
from guard.diagnosis.models import without_a_step
from guard.diagnosis.plan import examine, no_epsilon
from guard.diagnosis.subject import Subject
from guard.incidents.diagnose import SLOW, SUDDEN, Diagnosis, Evidence, diagnose
from guard.policy.schema import Policy
from guard.run import standing
from guard.run.live import LiveRun
from guard.types import Detection

_NODES = 64  # of a loss's graph that are named
_SHARE = 0.5  # of the free memory that the two states kept for a diagnosis may take


class Inquiry:
    """Diagnoses of one run, one at a time.

    Args:
        live: the run.
        clock: injected.
        read: ``(loss, grad_norm)`` of the step under way, unscaled.
        real_update: the optimizer's own step.
        quiet: a context in which nothing else of the guard listens to what the run does.
        failed: told of an exception; the diagnosis is given up, the run goes on.

    Attributes:
        waits: a failing step is noted, and is to be examined through the loop.
        by_closure: forward and backward happen inside of the optimizer's step.
    """

    def __init__(
        self,
        live: LiveRun,
        clock: Clock,
        *,
        read: Callable[[], tuple[float, float]],
        real_update: Callable[[], Any],
        quiet: Callable[[], contextlib.AbstractContextManager[None]],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._live, self._clock = live, clock
        self._read, self._real_update, self._quiet, self._failed = read, real_update, quiet, failed
        self._subject: Subject | None = None
        self._bench: LoopBench | None = None
        self._ops: list[str] = []  # functions behind the model, from the loss backwards
        self.by_closure = self.waits = False

    @property
    def busy(self) -> bool:
        """The step that the loop makes now is an experiment's."""
        return self._bench is not None

    def meet(self, loss: torch.Tensor) -> None:
        """One of the first losses, before its backward pass: the functions that made it."""
        if not self._ops and loss.grad_fn is not None:
            todo: list[Any] = [loss.grad_fn]
            while todo and len(self._ops) < _NODES:
                node = todo.pop(0)
                self._ops.append(of_node(type(node).__name__))
                todo += [n for n, _ in node.next_functions if n is not None]

    def can_wait(self) -> bool:
        """The failing step can be tried again through the loop."""
        live = self._live
        replays = live.feed is not None and live.feed.can_go_back and not self.by_closure
        return replays and live.ranks.world == 1 and len(live.optimizers) == 1

    def note(self, policy: Policy, detection: Detection, loss: float, *, poisoned: bool) -> Subject | None:
        """Takes down the failing step, as long as it can be: within it, or at the boundary after it. None: nothing that
        could be examined."""
        live = self._live
        if self._subject is not None or self.busy or detection.detector not in SUDDEN | SLOW:
            return None
        try:
            local_only = live.ranks.world > 1 or len(live.optimizers) > 1
            state = None
            if not local_only and self._fits():
                state = live.capture_start()
            kept = live.iteration
            batches = list(kept.batches) if kept is not None and live.feed is not None else []
            calls = list(kept.calls) if kept is not None and live.feed is None else []
            subject = Subject(
                policy,
                detection,
                live.tick,
                live.step,
                state,
                batches,
                calls,
                live.position,
                loss,
                poisoned,
                without_a_step(live.model) if poisoned else None,
                standing.to_plain(live),
                live.typical_grad_norm(detection.since),
                self._ops,
            )
        except Exception as error:  # noqa: BLE001 - fail open
            self._failed("the diagnosis", error)
            return None
        return subject

    def keep(self, subject: Subject) -> None:
        """It is examined when the loop asks for its next batch."""
        self._subject, self.waits = subject, True

    def drop(self) -> None:
        """It is not examined."""
        self._subject, self.waits = None, False

    def aside(self, subject: Subject) -> Diagnosis | None:
        """Examines at once, without the loop."""
        if subject.state is None or (not subject.calls and not subject.poisoned):
            return self._local(subject)
        live = self._live
        bench = AsideBench(live, subject, self._clock, subject.policy.max_seconds)
        try:
            with self._quiet(), self._as_it_was(subject, boundary=False):
                try:
                    evidence = _drained(examine(bench, live, subject))
                except Exception as error:  # noqa: BLE001 - fail open
                    self._failed("the diagnosis", error)
                    return None
            return diagnose(evidence)
        except Exception as error:  # noqa: BLE001 - fail open
            self._failed("the diagnosis", error)
            return None

    def through_loop(self) -> Generator[Any, None, Diagnosis | None]:
        """Examines what waits: yields the batches that the loop is to be handed for it."""
        subject, self._subject, self.waits = self._subject, None, False
        assert subject is not None
        if subject.state is None or not (subject.batches or subject.poisoned):
            return self._local(subject)
        live = self._live
        bench = LoopBench(
            live, subject, read=self._read, update=self._update, clock=self._clock, seconds=subject.policy.max_seconds
        )
        evidence: Evidence | None = None
        with self._quiet(), self._as_it_was(subject, boundary=True):
            self._bench = bench
            try:
                evidence = yield from examine(bench, live, subject)
            except Exception as error:  # noqa: BLE001 - fail open
                self._failed("the diagnosis", error)
            finally:
                self._bench = None
        return None if evidence is None else diagnose(evidence)

    def take_step(self, *, overflow: bool = False) -> None:
        """The loop has come to its update, in an experiment."""
        assert self._bench is not None
        try:
            self._bench.take_step(overflow=overflow)
        except Exception as error:  # noqa: BLE001 - fail open
            self._failed("the diagnosis", error)

    def _update(self, share: float, grad_norm: float, clip: float | None) -> None:
        """The real update of an experiment."""
        live, (optimizer,) = self._live, self._live.optimizers
        if live.clips:
            live.clip_standing(grad_norm)
        if clip is not None and grad_norm > clip:
            live.clip(clip, None, None)
        self._live.with_scaled_lr(optimizer, self._real_update, share)

    @contextlib.contextmanager
    def _as_it_was(self, subject: Subject, *, boundary: bool) -> Iterator[None]:
        """Whatever happens inside, the run goes on as if it had not: state, random states, gradients, steps.

        Args:
            subject: what was in force when it failed is in force inside.
            boundary: this is between two iterations; else within one, which may still be left out.
        """
        live = self._live
        went_back, live.went_back = live.went_back, None
        left_out, taken = live.left_out, live.iteration
        base = live.state.capture(live.tick, live.step)
        base.context["held"] = live.accumulation.state()
        gradients = [(p, p.grad, None if p.grad is None else p.grad.clone()) for p in live.state.parameters()]
        modes = [(m, m.training) for m in live.model.modules()]
        live.iteration = None
        try:
            with standing.as_of(live, subject.standing):
                yield
        finally:
            if boundary:
                live.put(base)
            else:
                live.state.restore(base)
            with torch.no_grad():
                for p, grad, value in gradients:
                    p.grad = grad
                    if grad is not None and value is not None:
                        grad.copy_(value)
            for m, training in modes:
                m.training = training
            live.went_back, live.left_out, live.iteration = went_back, left_out, taken

    def _fits(self) -> bool:
        live = self._live
        state = [*live.state.parameters(), *live.state.buffers().values()]
        size = sum(t.numel() * t.element_size() for t in state)
        size += sum(
            v.numel() * v.element_size()
            for o in live.optimizers
            for values in o.state.values()
            for v in values.values()
            if isinstance(v, torch.Tensor)
        )
        return 2 * size < _SHARE * free_memory()

    # ---- without any experiment

    def _local(self, subject: Subject) -> Diagnosis:
        """Only what can be looked at without touching anything: batch, weights, buffers, gradients."""
        live = self._live
        why = (
            "several ranks train together, so no experiment is made"
            if live.ranks.world > 1
            else "several optimizers play a game, so no experiment is made"
            if len(live.optimizers) > 1
            else "there is not enough memory for a second state, so no experiment is made"
            if subject.state is None
            else "nothing is kept of the failing step that could be tried again"
        )
        words, rows = samples.flaws(subject.batches)
        e = Evidence(
            subject.fault,
            without_a_step(live.model),
            flaws=tuple(words),
            samples=tuple(sorted(rows)),
            poisoned=subject.poisoned,
            no_epsilon=no_epsilon(live),
            notes=(why,),
        )
        found = diagnose(e)
        return found if live.ranks.world == 1 else replace(found, remedy="")  # what one rank sees, not all may do


def _drained(steps: Generator[Any, None, Evidence]) -> Evidence:
    """Runs a generator that yields nothing."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
