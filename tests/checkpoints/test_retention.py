"""Which checkpoints stay, whatever happens."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from checkpoints.conftest import Open
from checkpoints.small import Run, folders, save
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.checkpoints.interval import DiskInterval
from guard.checkpoints.manifest import Checkpoint, File, Manifest
from guard.checkpoints.retention import surplus
from guard.clock import FakeClock


def checkpoint(tick: int, state: Any = "good", size: int = 10) -> Checkpoint:
    made = Manifest(tick, tick, 0.0, state, 1, size, {"x": File(size, "")})
    return Checkpoint(Path(f"step-{tick}"), made)


def ticks(checkpoints: list[Checkpoint]) -> list[int]:
    return [c.manifest.tick for c in checkpoints]


def left(checkpoints: list[Checkpoint], keep: int, room: int | None = None) -> list[Checkpoint]:
    gone = surplus(checkpoints, keep, room)
    assert all(c in checkpoints for c in gone)
    return [c for c in checkpoints if c not in gone]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["save", "promote", "preempt", "rewind"]), st.integers(1, 1000), st.sampled_from([5, 10, 30])
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(events=EVENTS, keep=st.integers(1, 4), room=st.none() | st.integers(1, 300))
def test_any_history(events: list[tuple[str, int, int]], keep: int, room: int | None) -> None:
    kept: list[Checkpoint] = []
    tick = 0
    for what, number, size in events:
        tick += number
        if what in ("save", "preempt"):
            before = kept
            kept = left(kept, keep, None if room is None else max(0, room - size))
            assert not before or kept
            kept = [*kept, checkpoint(tick, "preempted" if what == "preempt" else "probation", size)]
        elif kept:
            at = number % len(kept)
            old = kept[at].manifest
            state = "good" if what == "promote" else "probation"
            kept = [*kept[:at], checkpoint(old.tick, state, old.bytes), *kept[at + 1 :]]
        good = [c for c in kept if c.manifest.state == "good"]
        others = [c for c in kept if c.manifest.state != "good"]
        stays = left(kept, keep, room)
        assert not good or good[-1] in stays, "the newest good one is never removed"
        assert not kept or stays, "nor the last of all"
        assert len([c for c in stays if c.manifest.state == "good"]) <= 2 * keep
        assert len([c for c in stays if c.manifest.state != "good"]) <= 2
        if room is None:
            assert set(ticks(good[-keep:])) <= set(ticks(stays))
            newer = [c for c in others if not good or c.manifest.tick > good[-1].manifest.tick]
            assert not newer or newer[-1] in stays, "what is on probation has its chance"
        else:
            assert sum(c.manifest.bytes for c in stays) <= room or len(stays) == 1
        assert left(stays, keep, room) == stays, "nothing is left to do"
        kept = stays


@pytest.mark.parametrize("keep", [1, 2, 3, 5])
def test_older_ones_lie_ever_further_apart(keep: int) -> None:
    kept: list[Checkpoint] = []
    for tick in range(1, 1001):
        kept = left([*kept, checkpoint(tick)], keep)
        assert len(kept) <= 2 * keep
    assert ticks(kept)[-keep:] == list(range(1001 - keep, 1001))
    ages = [1001 - t for t in ticks(kept)[: -keep or None]]
    assert len(ages) == keep
    assert all(older >= 1.5 * younger for older, younger in itertools.pairwise(ages))
    if keep >= 3:
        assert ages[0] >= 60


def test_what_goes_first_when_there_is_no_room() -> None:
    there = [checkpoint(1), checkpoint(5), checkpoint(9, "preempted"), checkpoint(10, "probation")]
    assert ticks(surplus(there, 3, 40)) == []
    assert ticks(surplus(there, 3, 30)) == [9]
    assert ticks(surplus(there, 3, 20)) == [9, 10]
    assert ticks(surplus(there, 3, 10)) == [9, 10, 1]
    assert ticks(surplus(there, 3, 0)) == [9, 10, 1], "the newest good one stays"


def test_superseded_ones_go() -> None:
    there = [checkpoint(1, "preempted"), checkpoint(2, "probation"), checkpoint(3), checkpoint(4, "probation")]
    assert ticks(surplus([*there, checkpoint(5, "probation")], 3)) == [1, 2, 4]


def test_on_the_disk(store: Open, place: Path) -> None:
    one, run = store(keep=2), Run()
    outcomes = [o for _ in range(8) for o in save(one, run.steps(1))]
    removed = [o for o in outcomes if o.kind == "removed"]
    assert [o.kind for o in outcomes if o.kind != "removed"] == ["saved"] * 8
    assert {o.reason for o in removed} == {"newer ones, or ones of about its age, are kept"}
    assert len(folders(place)) == 4
    assert {"step-7", "step-8"} <= set(folders(place))


def test_max_bytes(store: Open, place: Path) -> None:
    run = Run().steps(1)
    (first,) = save(store(), run)
    one = store(keep=3, max_bytes=int(3.9 * first.bytes) + (1 << 20))
    for _ in range(4):
        outcomes = save(one, run.steps(1))
        assert sum(f.stat().st_size for f in place.rglob("*") if f.is_file()) <= one.max_bytes
    assert ("removed", "to make room for a newer one within max_bytes") in {(o.kind, o.reason) for o in outcomes}
    assert len(folders(place)) == 3
    small = store(max_bytes=first.bytes + (1 << 20))
    (failed,) = [o for o in save(small, run.steps(1)) if o.kind == "failed"]
    assert "does not fit into max_bytes (1.1" in failed.reason
    assert "of the last good one; allow at least 1.2" in failed.reason
    assert len(folders(place)) == 3, "nothing was removed in vain"


# ---- when


def test_interval_in_steps() -> None:
    interval = DiskInterval(10, FakeClock())
    assert [s for s in range(13) if interval.due(s)] == [10, 11, 12]
    interval.began(12)
    assert [s for s in range(25) if interval.due(s)] == [22, 23, 24]
    interval.began(5)  # the run went back
    assert interval.due(15)
    interval.now()
    assert interval.due(0)


def test_interval_in_seconds() -> None:
    clock = FakeClock()
    interval = DiskInterval(60.0, clock)
    assert not interval.due(10**6)
    clock.advance(60)
    assert interval.due(1)
    interval.began(1)
    interval.took(500.0)
    clock.advance(59)
    assert not interval.due(1)
    clock.advance(1)
    assert interval.due(1)


def test_auto_spends_half_a_percent_of_the_time() -> None:
    clock = FakeClock()
    interval = DiskInterval("auto", clock)
    assert not interval.due(0), "the first shows what one costs; it is not taken in the first minute"
    clock.advance(60)
    assert interval.due(1)
    interval.began(1)
    clock.advance(10)  # the write takes that long
    interval.took(10.0)
    clock.advance(1999)
    assert not interval.due(2)
    clock.advance(1)
    assert interval.due(2)
