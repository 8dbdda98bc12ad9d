"""What stays in force whatever state the run goes back to, as plain values: it survives a resume too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guard.run.live import LiveRun


def to_plain(live: LiveRun) -> dict[str, Any]:
    """Learning rate multiplier, clip, warm-up, accumulation, precision, loss scale, windows left out; ticks as they
    are counted now."""
    return {
        "lr": [live._multiplier, live._min_lr, live._recover, live._from],
        "clip": live._clip,
        "warmup": live._warmup,
        "accumulate": [live.accumulation.factor, live.accumulation.first_tick],
        "precision": [live.precision.override, live.precision.until],
        "loss_scale": live.loss_scale.standing(),
        "skipped": sorted(live.feed.skipped) if live.feed is not None else sorted(live.skipped_before),
    }


def stand(live: LiveRun, plain: Mapping[str, Any]) -> None:
    """Puts it in force in a run that has just been attached. What this run has no use for is left."""
    _put(live, plain)
    if live.scaler is not None:
        live.loss_scale.stand(plain["loss_scale"])
    live.skipped_before = frozenset(plain["skipped"])


@contextlib.contextmanager
def as_of(live: LiveRun, plain: Mapping[str, Any]) -> Iterator[None]:
    """For a while what was in force then is again; loss scale and data stay as they are."""
    now = to_plain(live)
    _put(live, plain)
    try:
        yield
    finally:
        _put(live, now)


def _put(live: LiveRun, plain: Mapping[str, Any]) -> None:
    multiplier, min_lr, recover, first = plain["lr"]
    live.scale_lr(multiplier, min_lr, None)
    live._recover = None if recover is None else (recover[0], recover[1])
    live._from = None if first is None else (first[0], first[1])
    live._clip = None if plain["clip"] is None else (plain["clip"][0], plain["clip"][1], plain["clip"][2])
    live._warmup = None if plain["warmup"] is None else (plain["warmup"][0], plain["warmup"][1], plain["warmup"][2])
    live.accumulation.set(*plain["accumulate"])
    override, until = plain["precision"]
    if override is None and live.precision.override is not None:
        live.precision.clear()
    elif override is not None and (override, until) != (live.precision.override, live.precision.until):
        live.precision.set(override, until)
