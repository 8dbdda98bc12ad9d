"""Experiments on the model alone: a loop that only calls `attach` keeps its loss to itself.

The model is called again with the arguments of the failing iteration, and judged by its output. What was born behind it
can only be named as far as the graph of the loss still tells, and no experiment is made about it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from guard.checkpoints import Snapshot
from guard.clock import Clock
from guard.diagnosis import samples
from guard.diagnosis.bench import NO_TIME, Steps
from guard.diagnosis.looks import look, sound, tensors
from guard.diagnosis.models import as_the_loop_does, bare
from guard.diagnosis.probe import Probe
from guard.diagnosis.subject import Subject
from guard.incidents.diagnose import DOMAIN, Look, Origin, Trial
from guard.run.live import LiveRun

_NO_LOSS = "the loss function is the loop's, which does not take its batches from g.batches"


class AsideBench:
    """Makes experiments by calling the model. Nothing is handed to the loop: its generators yield nothing.

    Args:
        live: the run.
        subject: the failing step; with `state` and `calls`.
        clock: injected.
        seconds: after which no further experiment begins.

    Attributes:
        origin, output, rows: as in `LoopBench`.
    """

    def __init__(self, live: LiveRun, subject: Subject, clock: Clock, seconds: float) -> None:
        self._live, self._subject, self._clock = live, subject, clock
        self.until = clock.monotonic() + seconds
        self.origin: Origin | None = None
        self.output: Look | None = None
        self.rows: list[int] = []
        self.gathers = False
        self._behind = False  # it was born behind the model

    def again(self, name: str = "again", *, probe: bool = False, precision: str | None = None) -> Steps:
        """The model again, as it was or in another precision."""
        return self._call(name, self._subject.state, precision=precision, probe=probe)

    def without(self, rows: Sequence[int]) -> Steps:
        """With clean samples in place of those."""
        return self._call("without_samples", self._subject.state, rows=rows)

    def another_batch(self) -> Steps:
        return _not_tried("another_batch", "the loop does not take its batches from g.batches")

    def another(self) -> list[Any]:
        return []

    def checkpoint(self, snapshot: Snapshot | None) -> Steps:
        """The same arguments in an earlier state."""
        if snapshot is None:
            return _not_tried("checkpoint", "there is none")
        return self._call("checkpoint", snapshot)

    def rerun(self, name: str, snapshot: Snapshot | None, factor: float, *, clip: float | None = None) -> Steps:  # noqa: ARG002
        return _not_tried(name, "the loop does not take its batches from g.batches")

    def short_run(self, name: str, snapshot: Snapshot, windows: Any, *, factor: float = 1.0, group: int = 1) -> Steps:  # noqa: ARG002
        return _not_tried(name, "the loop does not take its batches from g.batches")

    def _call(
        self,
        name: str,
        state: Snapshot | None,
        *,
        precision: str | None = None,
        rows: Sequence[int] = (),
        probe: bool = False,
    ) -> Steps:
        yield from ()  # nothing is handed to the loop
        if self._clock.monotonic() >= self.until:
            return Trial(name, None, note=NO_TIME)
        if self._behind:
            return Trial(name, None, note=_NO_LOSS)
        if precision is not None and self._live.precision.autocast is None:
            return Trial(name, None, note="the weights themselves are in half precision")
        assert state is not None
        began, bad = self._clock.monotonic(), False
        self._live.state.restore(state)
        size = samples.size_of([(args, kwargs) for _, args, kwargs in self._subject.calls])
        calls = [(module, *_given(args, kwargs, rows, size)) for module, args, kwargs in self._subject.calls]
        watch = Probe(self._live.model, _named(calls)) if probe else None
        if watch is not None:
            watch.start()
        try:
            for module, args, kwargs in calls:
                with as_the_loop_does(self._live.precision, precision), torch.set_grad_enabled(probe):
                    out = [t for _, t in tensors(bare(module)(*args, **kwargs))]
                bad = bad or not all(map(sound, out))
                if watch is not None and not bad:
                    self._backward(watch, out)
            if watch is not None:
                watch.on_step()
                self._ask(watch, size, bad)
        finally:
            if watch is not None:
                watch.stop()
        known = bad or not self._behind
        return Trial(
            name, bad if known else None, note="" if known else _NO_LOSS, seconds=self._clock.monotonic() - began
        )

    def _backward(self, watch: Probe, out: list[torch.Tensor]) -> None:
        """As if the loss were the sum of the outputs: what no gradient of that size survives is found."""
        trained = [p for p in self._live.model.parameters() if p.requires_grad]
        heads = [t for t in out if t.requires_grad and t.is_floating_point()]
        if heads and trained:
            watch.before_backward(heads)
            torch.autograd.grad(heads, trained, [torch.ones_like(t) for t in heads], allow_unused=True)

    def _ask(self, watch: Probe, size: int, bad: bool) -> None:
        self.origin = watch.origin()
        if bad:
            self.rows = watch.bad_rows(size) if size else []
            return
        backward = math.isfinite(self._subject.loss)
        if self.origin is not None and backward:
            self._behind = True  # found, but nothing more can be tried: experiments look at the output
            return
        self._behind = self._subject.fault == "non_finite"
        op = next((op for op in self._subject.ops if op in DOMAIN), "") if self._behind else ""
        self.origin = Origin(Look("loss", "", op), backward=backward, outside=True) if op else None
        self.output = look("output", "", watch.outputs[0]) if watch.outputs else None


def _named(calls: Sequence[tuple[Any, Any, Any]]) -> list[tuple[str, torch.Tensor]]:
    """The tensors that the model is called with: ``args[0]``, ``kwargs['mask']``."""
    return [found for _, a, k in calls for found in (*tensors(a, "args"), *tensors(k, "kwargs"))]


def _given(args: Any, kwargs: Any, rows: Sequence[int], size: int) -> tuple[Any, Any]:
    if rows and size:
        return samples.without((tuple(args), dict(kwargs)), rows, size)  # type: ignore[no-any-return]
    return samples.fresh((tuple(args), dict(kwargs)))  # type: ignore[no-any-return]


def _not_tried(name: str, why: str) -> Steps:
    yield from ()
    return Trial(name, None, note=why)
