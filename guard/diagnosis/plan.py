"""Which experiments are made, and in which order: the cheap ones first, each only if it can still tell something."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from typing import Any, Protocol

import torch

from guard.checkpoints import Snapshot
from guard.diagnosis import samples
from guard.diagnosis.bench import Steps
from guard.diagnosis.subject import Subject
from guard.incidents.diagnose import SLOW, Evidence, Look, Origin, Trial, learns
from guard.run.live import LiveRun

_SHORT, _LONG = 25, 100  # steps of a short run; of a slow divergence, as many as it took
_SLOWER = 0.1


class Bench(Protocol):
    """Makes experiments, each a generator of the batches that the loop is to be handed for it."""

    origin: Origin | None
    output: Look | None
    rows: list[int]
    gathers: bool

    def again(self, name: str = "again", *, probe: bool = False, precision: str | None = None) -> Steps: ...

    def without(self, rows: Any) -> Steps: ...

    def another_batch(self) -> Steps: ...

    def another(self) -> list[Any]: ...

    def checkpoint(self, snapshot: Snapshot | None) -> Steps: ...

    def rerun(self, name: str, snapshot: Snapshot | None, factor: float, *, clip: float | None = None) -> Steps: ...

    def short_run(
        self, name: str, snapshot: Snapshot, windows: Any, *, factor: float = 1.0, group: int = 1
    ) -> Steps: ...


def examine(bench: Bench, live: LiveRun, subject: Subject) -> Generator[Any, None, Evidence]:
    """Makes the experiments; returns what they have shown."""
    if subject.fault in SLOW:
        return (yield from _slow(bench, live, subject))
    return (yield from _sudden(bench, live, subject))


def _sudden(bench: Bench, live: LiveRun, subject: Subject) -> Generator[Any, None, Evidence]:
    e = Evidence(subject.fault, poisoned=subject.poisoned, no_epsilon=no_epsilon(live))
    older = live.ring.pick("last_good", subject.detection.since, None)
    if subject.poisoned:
        e = _with(e, (yield from bench.rerun("rerun", older, 1.0)))
        if e.bad("rerun"):
            e = _with(e, (yield from bench.rerun("rerun_slower", older, _SLOWER)))
        return replace(e, origin=bench.origin or subject.found)
    e = _with(e, (yield from bench.again(probe=True)))
    e = replace(e, origin=bench.origin, output=bench.output)
    if e.bad("again") is False:
        return e
    if bench.output is not None:
        e = replace(e, targets=samples.distinct(subject.batches))
    for dtype in ("fp32", "bf16"):
        if live.precision.why_not(dtype) is None:
            e = _with(e, (yield from bench.again(dtype, precision=dtype)))
    e = _with(e, (yield from bench.another_batch()))
    words, odd = samples.flaws(subject.given, _another(bench) if e.bad("another_batch") is False else ())
    rows = sorted(odd or set(bench.rows))
    e = replace(e, flaws=tuple(words), samples=tuple(rows))
    if rows:
        e = _with(e, (yield from bench.without(rows)))
        if e.bad("without_samples"):
            e = replace(e, samples=())
    e = _with(e, (yield from bench.checkpoint(older)))
    if e.bad("another_batch") is not False and e.bad("checkpoint") is False and e.bad("fp32") is not False:
        e = _with(e, (yield from bench.rerun("rerun", older, 1.0)))
        if e.bad("rerun"):
            e = _with(e, (yield from bench.rerun("rerun_slower", older, _SLOWER)))
            if e.bad("rerun_slower"):
                e = _with(e, (yield from bench.rerun("rerun_slowest", older, _SLOWER**2)))
            if subject.clip > 0.0:
                e = _with(e, (yield from bench.rerun("rerun_clipped", older, 1.0, clip=subject.clip)))
            if e.bad("rerun_clipped") is not False and e.bad("rerun_slower") is False:
                for name, factor in (("rerun_halved", 0.5), ("rerun_quartered", 0.25)):  # the mildest that mends it
                    e = _with(
                        e,
                        (
                            yield from bench.rerun(
                                name, older, factor, clip=subject.clip if subject.clip > 0.0 else None
                            )
                        ),
                    )
                    if e.bad(name) is False:
                        break
    return e


def _another(bench: Bench) -> list[Any]:
    try:
        return bench.another()
    except Exception:  # noqa: BLE001 - then there is nothing to compare with
        return []


def _slow(bench: Bench, live: LiveRun, subject: Subject) -> Generator[Any, None, Evidence]:
    """Short runs, side by side, from where the fault had not begun."""
    e = Evidence(subject.fault)
    older = (
        live.ring.start if subject.fault == "flat_loss" else live.ring.pick("last_good", subject.detection.since, None)
    )
    if older is None:
        return replace(e, notes=("there is no checkpoint to begin from",))
    n = live.feed.accumulate if live.feed is not None else 1
    first = older.context["place"].position // n
    span = max(1, subject.window - first + 1)  # what the run has read already
    steps = min(max(_SHORT, span), _LONG) if subject.fault == "divergence" else _SHORT
    longer = [first + i % span for i in range(2 * steps)]
    windows = longer[:steps]
    g = torch.Generator().manual_seed(subject.tick)
    mixed = [windows[i] for i in torch.randperm(steps, generator=g).tolist()]
    e = _with(e, (yield from bench.short_run("as_it_is", older, windows)))
    e = _with(e, (yield from bench.short_run("rate_tenth", older, windows, factor=_SLOWER)))
    e = _with(e, (yield from bench.short_run("twice_the_batch", older, longer, group=2)))
    e = _with(e, (yield from bench.short_run("shuffled", older, mixed)))
    one: Trial = yield from bench.short_run("one_batch", older, [first] * steps)
    if one.bad is not None:
        one = replace(one, bad=not learns(one.first, one.loss))
    return replace(_with(e, one), gathers=bench.gathers)


def _with(e: Evidence, trial: Trial) -> Evidence:
    return replace(e, trials=(*e.trials, trial), seconds=e.seconds + trial.seconds)


def no_epsilon(live: LiveRun) -> bool:
    """Some optimizer's eps is 0 in the dtype of its weights."""
    for group in (g for o in live.optimizers for g in o.param_groups):
        eps = group.get("eps")
        if not isinstance(eps, float) or not eps > 0.0 or not math.isfinite(eps):
            continue
        dtypes = {p.dtype for p in group["params"] if p.is_floating_point()}
        if any(float(torch.tensor(eps, dtype=d)) == 0.0 for d in dtypes):
            return True
    return False
