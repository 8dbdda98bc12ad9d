"""Which checkpoints on disk are kept. Knows no torch."""

from __future__ import annotations

from collections.abc import Sequence

from guard.checkpoints.manifest import Checkpoint


def surplus(checkpoints: Sequence[Checkpoint], keep: int, room: int | None = None) -> list[Checkpoint]:
    """Those that are to be removed, in the order in which they can be missed.

    Kept are the newest `keep` good ones; up to as many older ones, ever further apart, because a fault may be older
    than its symptom; and of those that are not good, the newest of each state, unless a good one is newer. If they
    take more than `room`, first those that are not good go, then good ones where they lie closest in age, then the
    oldest. The newest good one is never among them.

    Args:
        checkpoints: all there are.
        keep: good ones, >= 1.
        room: what all of them may take [bytes]; None: no bound.
    """
    by_age = sorted(checkpoints, key=lambda c: c.manifest.tick)
    good = [c for c in by_age if c.manifest.state == "good"]
    newest = good[-1].manifest.tick if good else -1
    last = {c.manifest.state: c for c in by_age if c.manifest.state != "good" and c.manifest.tick > newest}
    others = [c for c in by_age if c in last.values()]
    removed = [c for c in by_age if c not in others and c not in good]
    while len(good) > 2 * keep:
        removed.append(good.pop(_crowded(good, len(good) - keep)))
    if room is None:
        return removed
    while sum(c.manifest.bytes for c in (*good, *others)) > room:
        if others and (good or len(others) > 1):
            removed.append(others.pop(0))
        elif len(good) > keep:
            removed.append(good.pop(_crowded(good, len(good) - keep)))
        elif len(good) > 1:
            removed.append(good.pop(0))
        else:
            break
    return removed


def _crowded(good: list[Checkpoint], older: int) -> int:
    """Among the first `older`, the one whose loss costs least: where two are closest in age, the younger."""
    now = good[-1].manifest.tick + 1
    ages = [now - c.manifest.tick for c in good]
    return min(range(older), key=lambda i: (ages[i - 1] if i else now + 1) / ages[i])
