"""Experiments through the loop itself: it is handed the failing batch again, and does with it what it always does.

So forward, loss and backward are the loop's own, whatever they are. Every experiment begins in the state, and with
torch's random state, of the failing iteration; the update is not made unless the experiment is about updates; and in
the end everything is put back as it was.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from guard.checkpoints import RngState, Snapshot, Surroundings
from guard.clock import Clock
from guard.diagnosis import samples
from guard.diagnosis.looks import look, sound, tensors
from guard.diagnosis.models import as_the_loop_does, bare
from guard.diagnosis.probe import Probe
from guard.diagnosis.subject import Subject
from guard.incidents.diagnose import Look, Origin, Trial
from guard.patching import entry_modules, listen_to_backward
from guard.run.feed import Feed, Place
from guard.run.live import LiveRun

Steps = Generator[Any, None, Trial]
NO_TIME = "the time for it was over"


@dataclass(slots=True)
class Reading:
    """What a step of an experiment measured, and whether it was reached at all."""

    loss: float = math.nan
    grad_norm: float = math.nan
    overflow: bool = False
    stepped: bool = False


class LoopBench:
    """Makes experiments by handing the loop its batches.

    Args:
        live: the run.
        subject: the failing step.
        read: ``read(overflow) -> (loss, grad_norm)`` of the step that is under way, unscaled.
        update: ``update(factor, grad_norm, clip)`` makes the real update at that share of its rate, clipped if asked.
        clock: injected.
        seconds: after which no further experiment begins.

    Attributes:
        reading: of the step under way; None between experiments.
        origin: what the probe found.
        gathers: gradients of the step before were still there when backward began.
        rows: samples of the batch that were not finite where it found that.
    """

    def __init__(
        self,
        live: LiveRun,
        subject: Subject,
        *,
        read: Callable[[], tuple[float, float]],
        update: Callable[[float, float, float | None], None],
        clock: Clock,
        seconds: float,
    ) -> None:
        self._live, self._subject, self._clock = live, subject, clock
        self._read, self._update = read, update
        self.until = clock.monotonic() + seconds
        self.reading: Reading | None = None
        self._factor: float | None = None  # of the rate; None: no update
        self._group = 1  # windows per update
        self._clip: float | None = None  # norm
        self._held: list[list[torch.Tensor | None]] = []
        self._schedule: Surroundings | None = None
        self._probe: Probe | None = None
        self.origin: Origin | None = None
        self.output: Look | None = None
        self.rows: list[int] = []
        self._another: list[Any] | None = None
        self._calls: list[tuple[nn.Module, Any, Any]] = []  # of the model, in the failing step
        self._first_backward = self.gathers = False

    # ---- what the plan asks

    def late(self) -> bool:
        """No further experiment may begin."""
        return self._clock.monotonic() >= self.until

    def again(self, name: str = "again", *, probe: bool = False, precision: str | None = None) -> Steps:
        """The failing step, as it was or in another precision."""
        if precision is not None and (why := self._rehearse(precision)):
            return _not_tried(name, why)
        return self._step(name, self._subject.state, self._subject.batches, probe=probe, precision=precision)

    def without(self, rows: Sequence[int]) -> Steps:
        """The failing step with clean samples in place of those."""
        size = samples.size_of(self._subject.batches)
        batches = [samples.without(b, rows, size) for b in self._subject.batches]
        return self._step("without_samples", self._subject.state, batches)

    def another_batch(self) -> Steps:
        """The same state with another batch."""
        try:
            batches = self.another()
        except Exception as error:  # noqa: BLE001 - a source may refuse
            return _not_tried("another_batch", f"the data source: {type(error).__name__}: {str(error)[:80]}")
        return self._step("another_batch", self._subject.state, batches)

    def checkpoint(self, snapshot: Snapshot | None) -> Steps:
        """The failing batch in an earlier state."""
        if snapshot is None:
            return _not_tried("checkpoint", "there is none")
        return self._step("checkpoint", snapshot, self._subject.batches)

    def rerun(self, name: str, snapshot: Snapshot | None, factor: float, *, clip: float | None = None) -> Steps:
        """Trains from a checkpoint to the failing step again, at that share of its rate."""
        if snapshot is None:
            return _not_tried(name, "there is no checkpoint")
        place: Place = snapshot.context["place"]
        feed = self._feed()
        windows = [
            w for w in range(place.position // feed.accumulate, self._subject.window + 1) if w not in feed.skipped
        ]
        if feed.iterable and place.pass_number != feed.pass_number:
            return _not_tried(name, "a pass over the data ends in between")
        return self._train(name, snapshot, self._windows(place, windows), factor, until_back=True, clip=clip)

    def short_run(
        self, name: str, snapshot: Snapshot, windows: Sequence[int], *, factor: float = 1.0, group: int = 1
    ) -> Steps:
        """Some steps from a checkpoint, to see how the loss goes."""
        if self._feed().iterable:
            return _not_tried(name, "the data source cannot be read at any place")
        return self._train(
            name, snapshot, self._windows(snapshot.context["place"], windows), factor, until_back=False, group=group
        )

    def another(self) -> list[Any]:
        """The batches of another window, read once."""
        if self._another is None:
            feed, n = self._feed(), self._feed().accumulate
            window = self._subject.window - 1 if self._subject.window else 1
            if not feed.iterable:
                self._another = [feed.source(window * n + m) for m in range(n)]  # type: ignore[operator]
            else:
                self._another = self._read_another(feed, n)
        return self._another

    # ---- how it is done

    @torch.no_grad()
    def _rehearse(self, precision: str) -> str:
        """Why the model cannot be run in that precision, or "". Found out without the loop, which would end of an
        exception; of a model whose own weights are converted it is not known."""
        if self._live.precision.autocast is None:
            return ""
        assert self._subject.state is not None
        self._begin(self._subject.state)
        try:
            for module, args, kwargs in self._calls:
                with as_the_loop_does(self._live.precision, precision):
                    bare(module)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a model may be written for one precision alone
            return f"the model does not run in it: {type(error).__name__}: {str(error)[:80]}"
        return ""

    def _feed(self) -> Feed:
        assert self._live.feed is not None, "the loop takes its batches from it"
        return self._live.feed

    def _read_another(self, feed: Feed, n: int) -> list[Any]:
        """The first window of the pass, or its second if the failing one is the first."""
        start = feed.pass_start
        first = start.position - start.in_pass
        place = Place(first, start.pass_number, 0, None, start.generators, fresh=start.fresh)
        aside = feed.aside(place)
        feed.release()
        if self._subject.window * n == first:
            for _ in range(n):
                aside.read()
        batches = [aside.read() for _ in range(n)]
        aside.restore(place)
        return batches

    def _windows(self, place: Place, windows: Sequence[int]) -> Iterator[list[Any]]:
        """Their batches, one window after the other; a callable source may be asked for any."""
        feed, n = self._feed(), self._feed().accumulate
        if not feed.iterable:
            for w in windows:
                yield [feed.source(w * n + m) for m in range(n)]  # type: ignore[operator]
            return
        aside = feed.aside(place)
        feed.release()
        for w in windows:
            while aside.window < w:
                aside.read()
            yield [aside.read() for _ in range(n)]

    def _begin(self, snapshot: Snapshot) -> None:
        self._live.put(snapshot)
        self._held, self._schedule = [], None

    def _step(
        self,
        name: str,
        state: Snapshot | None,
        batches: Sequence[Any],
        *,
        probe: bool = False,
        precision: str | None = None,
    ) -> Steps:
        """One step of the loop, without its update."""
        if self.late():
            return Trial(name, None, note=NO_TIME)
        assert state is not None
        began = self._clock.monotonic()
        self._begin(state)
        given = [samples.fresh(b) for b in batches]
        self._factor, self.reading = None, Reading()
        self._probe = Probe(self._live.model, named(given)) if probe else None
        undo: list[Callable[[], None]] = []
        try:
            with self._in_precision(precision):
                if self._probe is not None:
                    self._calls = []
                    for module in entry_modules(self._live.model):
                        undo.append(module.register_forward_pre_hook(self._note, with_kwargs=True).remove)
                    undo.append(listen_to_backward(self._probe.before_backward, before=True))
                    self._probe.start()
                yield from given
            reading = self.reading
            if self._probe is not None:
                self._ask(self._probe, given)
        finally:
            if self._probe is not None:
                self._probe.stop()
            for do in undo:
                do()
            self._probe, self.reading = None, None
        if not reading.stepped:
            return Trial(name, None, note="the loop did not come to its step")
        bad = self._subject.is_back(reading.loss, reading.grad_norm, overflow=reading.overflow)
        return Trial(name, bad, reading.loss, reading.grad_norm, seconds=self._clock.monotonic() - began)

    def _note(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._calls.append((module, args, kwargs))

    def _ask(self, probe: Probe, given: Sequence[Any]) -> None:
        self.origin = probe.origin()
        self.rows = probe.bad_rows(size) if (size := samples.size_of(given)) else []
        if probe.outputs and (self.origin is None or self.origin.outside):
            self.output = look("output", "", probe.outputs[0])

    def _train(
        self,
        name: str,
        snapshot: Snapshot,
        windows: Iterator[list[Any]],
        factor: float,
        *,
        until_back: bool,
        group: int = 1,
        clip: float | None = None,
    ) -> Steps:
        """Several steps with their updates.

        Args:
            until_back: ends where the fault is back.
            group: windows per update.
            clip: norm to which gradients are shortened.
        """
        if self.late():
            return Trial(name, None, note=NO_TIME)
        began, bad = self._clock.monotonic(), False
        losses: list[float] = []
        norm, undo = math.nan, listen_to_backward(self._before_backward, before=True)
        self._begin(snapshot)
        self._factor, self._clip = factor, clip
        self._group = group * self._live.accumulation.factor
        try:
            for batches in windows:
                if self.late():
                    return Trial(name, None, steps=len(losses), note=NO_TIME, seconds=self._clock.monotonic() - began)
                self.reading = Reading()
                self._first_backward = bool(losses)
                self._hold_schedule(snapshot, len(losses))
                for batch in batches:
                    yield samples.fresh(batch)
                r = self.reading
                if not r.stepped:
                    return Trial(name, None, note="the loop did not come to its step")
                losses.append(r.loss)
                norm = r.grad_norm
                if not math.isfinite(r.loss) or (until_back and self._subject.poisoned and self._poisoned()):
                    bad = True
                    break
        finally:
            undo()
            self.reading, self._factor, self._group, self._clip = None, None, 1, None
        if until_back and not bad and losses:
            bad = not self._subject.poisoned and self._subject.is_back(losses[-1], norm)
        edge = max(1, len(losses) // 5)
        ends = (losses[:edge], losses[-edge:]) if not until_back else (losses[:1], losses[-1:])
        first, last = (sum(part) / len(part) if part else math.nan for part in ends)
        return Trial(name, bad, last, norm, first, len(losses), self._clock.monotonic() - began)

    def _hold_schedule(self, snapshot: Snapshot, done: int) -> None:
        """No scheduler is brought further than the run itself has been: what is beyond may be an error to it."""
        state, last = self._live.state, max(0, self._subject.step - snapshot.step)
        if done == last:
            self._schedule = state.surroundings()
        elif done > last and self._schedule is not None:
            state.put_surroundings(replace(self._schedule, rng=RngState.capture()))

    def _before_backward(self, _: Any) -> None:
        """In the first backward pass of a step all gradients should have been cleared."""
        if self._first_backward:
            self._first_backward = False
            left = (p.grad for p in self._live.state.parameters() if p.grad is not None and not p.grad.is_sparse)
            self.gathers = self.gathers or any(bool(g.any()) for g in left)

    def _poisoned(self) -> bool:
        """After this update something is not finite; what it is becomes the origin."""
        if self._live.state_finite():
            return False
        for n, p in self._live.model.named_parameters():
            if not sound(p):
                born = p.grad is None or sound(p.grad)
                self.origin = Origin(look("update" if born else "gradient", n, p), backward=not born)
                return True
        for n, b in self._live.model.named_buffers():
            if not sound(b):
                self.origin = Origin(look("buffer", n, b))
                return True
        return True

    # ---- the step of an experiment

    def take_step(self, *, overflow: bool = False) -> None:
        """The loop has come to its update."""
        r = self.reading
        if r is None:
            return
        if self._probe is not None:
            self._probe.on_step()
        r.loss, r.grad_norm = self._read()
        r.overflow, r.stepped = overflow, True
        if self._factor is None or overflow or not math.isfinite(r.grad_norm):
            return  # as the gate would have it
        if self._group > 1:
            self._gather(r.grad_norm)
        else:
            self._update(self._factor, r.grad_norm, self._clip)

    @torch.no_grad()
    def _gather(self, grad_norm: float) -> None:
        """Updates with the mean gradient of several windows."""
        assert self._factor is not None
        parameters = self._live.state.parameters()
        self._held.append([None if p.grad is None else p.grad.detach().clone() for p in parameters])
        if len(self._held) < self._group:
            return
        for p, *grads in zip(parameters, *self._held, strict=True):
            known = [g for g in grads if g is not None]
            if known and p.grad is not None:
                p.grad = torch.stack(known).mean(0)
        self._held = []
        self._update(self._factor, grad_norm, self._clip)

    @contextlib.contextmanager
    def _in_precision(self, dtype: str | None) -> Iterator[None]:
        precision = self._live.precision
        before, until = precision.override, precision.until
        if dtype is None:
            yield
            return
        precision.set(dtype, None)
        try:
            yield
        finally:
            precision.clear()
            if before is not None:
                precision.set(before, until)


def named(batches: Sequence[Any]) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a step's batches: ``batch[0]``; of several micro-batches ``batch 2[0]``."""
    several = len(batches) > 1
    return [found for i, b in enumerate(batches) for found in tensors(b, f"batch {i}" if several else "batch")]


def _not_tried(name: str, why: str) -> Steps:
    yield from ()
    return Trial(name, None, note=why)
