"""Where batches come from: the same ones again after going back, none twice or left out otherwise."""

from __future__ import annotations

import gc
import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from _runs import (
    BACK,
    SAMPLES,
    differences,
    flatten,
    guarded,
    make_source,
    policies,
    policy,
    rng_state,
    seed_everything,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, get_worker_info

from guard.checkpoints import RngState
from guard.errors import UsageError
from guard.run.feed import Feed

PER_PASS = 10


class Stream(IterableDataset[Any]):
    """Counts up, each worker its own share."""

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from range(first, SAMPLES, stride)


class Restartable:
    """Not a DataLoader, but every `iter` begins anew."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(PER_PASS).tolist()


class OwnEpochs:
    """The source itself has `set_epoch`."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[int]:
        yield from range(100 * self.epochs[-1], 100 * self.epochs[-1] + PER_PASS)


def loader_of_indices(**kwargs: Any) -> DataLoader[Any]:
    return DataLoader(list(range(SAMPLES)), **{"batch_size": 4, **kwargs})  # type: ignore[arg-type]


SOURCES: dict[str, Any] = {
    "list": lambda: list(range(PER_PASS)),
    "callable": lambda: lambda index: index,
    "restartable": Restartable,
    "own epochs": OwnEpochs,
    "plain": loader_of_indices,
    "shuffled": lambda: loader_of_indices(shuffle=True),
    "generator": lambda: loader_of_indices(shuffle=True, generator=torch.Generator().manual_seed(3)),
    "sampler": lambda: loader_of_indices(
        sampler=RandomSampler(range(SAMPLES), generator=torch.Generator().manual_seed(4))
    ),
    "batch sampler": lambda: DataLoader(
        list(range(SAMPLES)),
        batch_sampler=BatchSampler(  # type: ignore[arg-type]
            RandomSampler(range(SAMPLES), generator=torch.Generator().manual_seed(4)), 4, drop_last=False
        ),
    ),
    "replacement": lambda: loader_of_indices(sampler=RandomSampler(range(SAMPLES), replacement=True)),
    "set_epoch": lambda: make_source("epochs"),
    "augmented": lambda: make_source("augmented"),
    "stream": lambda: DataLoader(Stream(), batch_size=4),
}
WITH_WORKERS: dict[str, Any] = {
    "shuffled, 2 workers": lambda: loader_of_indices(shuffle=True, num_workers=2),
    "generator, 2 workers": lambda: loader_of_indices(
        shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(3)
    ),
    "stream, 2 workers": lambda: DataLoader(Stream(), batch_size=4, num_workers=2),
    "persistent workers": lambda: loader_of_indices(shuffle=True, num_workers=2, persistent_workers=True),
}


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def read(feed: Feed, count: int) -> list[Any]:
    """Some batches, between which the loop draws random numbers of its own (dropout)."""
    batches = []
    for _ in range(count):
        batches.append(plain(feed.read()))
        torch.rand(3), random.random(), np.random.rand()
    return batches


# ---- going back


@pytest.mark.parametrize("name", [*SOURCES, *WITH_WORKERS])
@pytest.mark.parametrize("at", [0, 3, PER_PASS, 13])
def test_the_same_again(name: str, at: int) -> None:
    """From any place, twice, with the random generators as they were, over the border of a pass."""
    if name in WITH_WORKERS and at not in (3, PER_PASS):
        pytest.skip("worker processes cost time")
    seed_everything()
    feed = Feed((SOURCES | WITH_WORKERS)[name]())
    read(feed, at)
    place, rng = feed.mark(), RngState.capture()
    wanted = read(feed, 12)
    after = flatten(rng_state())
    for further in (5, 1):
        feed.restore(place)
        rng.restore()
        assert read(feed, 12) == wanted
        assert differences(after, flatten(rng_state())) == []
        read(feed, further)


@pytest.mark.parametrize("name", list(SOURCES))
def test_reading_is_what_a_plain_loop_reads(name: str) -> None:
    seed_everything()
    expected = []
    source = SOURCES[name]()
    if callable(source):
        expected = [source(i) for i in range(25)]
    else:
        for epoch in itertools.count():
            for thing in (source, getattr(source, "sampler", None)):
                if hasattr(thing, "set_epoch"):
                    thing.set_epoch(epoch)
            expected += [plain(b) for b in itertools.islice(source, 25 - len(expected))]
            if len(expected) == 25:
                break
    seed_everything()
    feed = Feed(SOURCES[name]())
    assert [plain(feed.read()) for _ in range(25)] == expected


@given(
    at=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    name=st.sampled_from(["shuffled", "generator", "augmented", "list"]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_walk_reads_every_place_the_same(at: list[int], name: str) -> None:
    """Forwards by so many, then back to a place marked at random: every position always shows the same batch."""
    seed_everything()
    feed = Feed(SOURCES[name]())
    seen: dict[int, Any] = {}
    marks = [(feed.mark(), RngState.capture())]
    for number, distance in enumerate(at):
        for _ in range(distance):
            position = feed.position
            batch = read(feed, 1)[0]
            assert seen.setdefault(position, batch) == batch
            if (position + number) % 3 == 0:
                marks.append((feed.mark(), RngState.capture()))
        place, rng = marks[distance % len(marks)]
        feed.restore(place)
        rng.restore()


def test_epochs_are_set_again_after_going_back_over_a_border() -> None:
    source = OwnEpochs()
    feed = Feed(source)
    read(feed, 8)
    place = feed.mark()
    assert read(feed, 4) == [8, 9, 100, 101]
    feed.restore(place)
    assert read(feed, 4) == [8, 9, 100, 101]
    assert source.epochs == [0, 1, 0, 1]


def test_places_are_read_from_a_generator_only_at_a_pass_border() -> None:
    """Halfway through a pass the generator has moved on; what counts is where the pass began."""
    generator = torch.Generator().manual_seed(9)
    feed = Feed(loader_of_indices(shuffle=True, generator=generator))
    read(feed, PER_PASS + 4)
    place = feed.mark()
    rest = read(feed, 20)
    generator.manual_seed(1)
    feed.restore(place)
    assert read(feed, 20) == rest


# ---- windows left out


@pytest.mark.parametrize("name", ["list", "callable", "plain"])
def test_windows_stay_left_out(name: str) -> None:
    feed = Feed(SOURCES[name](), accumulate=2)
    start = feed.mark()
    first = read(feed, 8)
    for _ in range(2):
        feed.skipped |= {1, 2}
        feed.restore(start)
        got, left_out = [], 0
        while feed.position < 8:
            if feed.at_window_start:
                left_out += feed.pass_over()
            got += read(feed, 1)
        assert got == first[:2] + first[6:8]
        assert left_out == 2


def test_passing_over_does_not_ask_a_callable() -> None:
    asked = []
    feed = Feed(asked.append, accumulate=3)
    feed.skipped = {0, 1}
    assert feed.pass_over() == 2
    feed.read()
    assert asked == [6]


def test_passing_over_the_end_of_the_data() -> None:
    feed = Feed(list(range(4)), accumulate=2, passes=1)
    feed.skipped = {1, 2, 3}
    read(feed, 2)
    with pytest.raises(StopIteration):
        feed.pass_over()


# ---- sources of other kinds


@pytest.mark.parametrize("source", [3, None, object(), 1.5])
def test_what_is_no_source(source: Any) -> None:
    with pytest.raises(UsageError, match=type(source).__name__):
        Feed(source)


def test_accumulate_must_be_positive() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        Feed([1], accumulate=0)


@pytest.mark.parametrize("make", [lambda: iter(range(6)), lambda: (i for i in range(6)), lambda: map(int, "012345")])
def test_one_shot_iterator(make: Any) -> None:
    feed = Feed(make())
    assert not feed.can_go_back
    assert read(feed, 6) == list(range(6))
    with pytest.raises(StopIteration):
        feed.read()


@pytest.mark.parametrize(
    "source", [[], loader_of_indices(batch_size=SAMPLES + 1, drop_last=True)], ids=["list", "drop_last"]
)
def test_empty_source(source: Any) -> None:
    with pytest.raises(UsageError, match="empty"):
        Feed(source).read()
    with pytest.raises(StopIteration):
        Feed(source, passes=1).read()


# ---- in the guard's loop


class Run:
    """A model that does not matter, a guard, and a note of every batch that was used."""

    def __init__(self, g: Any, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        self.g, self.optimizer, self.model = g, optimizer, model
        self.seen: list[Any] = []
        self.nan_at: set[int] = set()  # positions in `seen`

    def step(self, batch: Any, *, update: bool = True) -> None:
        loss = self.model(torch.ones(1, 2)).sum() * (math.nan if len(self.seen) in self.nan_at else 1.0)
        self.seen.append(plain(batch))
        self.g.backward(loss)
        if update:
            self.optimizer.step()
            self.optimizer.zero_grad()


@pytest.fixture
def run() -> Iterator[Run]:
    yield from one_run([BACK])


@pytest.fixture
def skipping() -> Iterator[Run]:
    yield from one_run([{"type": "rollback", "data": "skip_offending"}])


def one_run(rung: Any) -> Iterator[Run]:
    seed_everything()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with guarded(model, optimizer, policy=policies(policy("non_finite", rung), every=4, probation=1)) as g:
        yield Run(g, optimizer, model)


def test_epochs_of_a_list(run: Run) -> None:
    data = list(range(5))
    for _ in range(3):
        for batch in run.g.batches(data):
            run.step(batch)
    assert run.seen == data * 3
    assert run.g.step == 15


def test_epochs_of_a_loader_are_shuffled_anew(run: Run) -> None:
    loader = loader_of_indices(shuffle=True)
    for _ in range(2):
        for batch in run.g.batches(loader):
            run.step(batch)
    first, second = run.seen[:PER_PASS], run.seen[PER_PASS:]
    assert first != second
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(SAMPLES))


def test_rollback_across_the_border_of_an_epoch(run: Run) -> None:
    """The snapshot lies in the first pass, the fault in the second: both are read again in the second `for`."""
    data = list(range(6))
    run.nan_at = {7}
    lengths = []
    for _ in range(3):
        before = len(run.seen)
        for batch in run.g.batches(data):
            run.step(batch)
        lengths.append(len(run.seen) - before)
    assert run.seen == [*data, 0, 1, 4, 5, *data, *data]
    assert lengths == [6, 10, 6]
    assert run.g.step == 18


def test_rollback_in_the_last_step_of_an_epoch(run: Run) -> None:
    run.nan_at = {5}
    data = list(range(6))
    for _ in range(2):
        for batch in run.g.batches(data):
            run.step(batch)
    assert run.seen == [*data, 4, 5, *data]


def test_epochs_with_set_epoch_and_a_rollback(run: Run) -> None:
    source = OwnEpochs()
    run.nan_at = {PER_PASS + 1}
    for _ in range(2):
        for batch in run.g.batches(source):
            run.step(batch)
    first, second = list(range(10)), list(range(100, 110))
    assert run.seen == [*first, 100, 101, 8, 9, *second]
    assert source.epochs == [0, 1, 0, 1]


def test_steps_go_on_over_passes_until_all_are_done(run: Run) -> None:
    run.nan_at = {10}
    for batch in run.g.batches(list(range(6)), steps=14):
        run.step(batch)
    assert run.g.step == 14
    assert run.seen == [*range(6), 0, 1, 2, 3, 4, 2, 3, 4, 5, 0, 1]


def test_steps_are_those_of_the_whole_run(run: Run) -> None:
    """A second call goes on where the first ended."""
    for batch in run.g.batches(lambda index: index, steps=3):
        run.step(batch)
    for batch in run.g.batches(lambda index: index, steps=3):
        run.step(batch)
    assert run.seen == [0, 1, 2]


def test_whole_windows_are_read_again(run: Run) -> None:
    run.nan_at = {13}
    for batch in run.g.batches(lambda index: index, 8, accumulate=2):
        run.step(batch, update=len(run.seen) % 2 == 1)
    assert run.seen == [*range(14), *range(8, 16)]


def test_offending_window_stays_left_out(skipping: Run) -> None:
    """Also when a later fault goes back to before it."""
    skipping.nan_at = {5, 8}
    for batch in skipping.g.batches(list(range(10))):
        skipping.step(batch)
    assert skipping.seen[:9] == [0, 1, 2, 3, 4, 5, 4, 6, 7]
    assert skipping.seen[9:] in ([4, 6, 8, 9], [8, 9])
    assert skipping.g.step == 10


def test_last_window_left_out_ends_the_run(skipping: Run) -> None:
    skipping.nan_at = {9}
    for batch in skipping.g.batches(list(range(10))):
        skipping.step(batch)
    assert skipping.seen == [*range(10), 8]
    assert skipping.g.step == 10


def test_one_shot_iterator_goes_on_with_fresh_data_and_says_so_once(run: Run) -> None:
    run.nan_at = {6}
    for batch in run.g.batches(iter(range(12))):
        run.step(batch)
    assert run.seen == list(range(12))
    assert run.g.incidents[0].attempts[0].results[0].changes["data"] == "advance"
    assert sum("only once" in n["message"] for n in run.g.report.log.notices) == 1


def test_empty_sources_in_the_loop(run: Run) -> None:
    assert list(run.g.batches([])) == []
    with pytest.raises(UsageError, match="empty"):
        next(run.g.batches([], steps=3))


def test_a_callable_needs_a_number_of_steps(run: Run) -> None:
    with pytest.raises(UsageError, match="steps"):
        next(run.g.batches(lambda index: index))


def test_a_step_that_the_loop_left_out_by_itself_counts_as_done(run: Run) -> None:
    for batch in run.g.batches(list(range(8)), steps=8):
        if batch == 3:
            run.seen.append(batch)
            continue
        run.step(batch)
    assert run.seen == list(range(8))


def test_leaving_the_loop_early_and_beginning_again(run: Run) -> None:
    """`break` ends nothing for the source: the next `for` over it goes on where it was."""
    data = list(range(8))
    for batch in run.g.batches(data, steps=8):
        run.step(batch)
        if batch == 2:
            break
    for batch in run.g.batches(data, steps=8):
        run.step(batch)
    assert run.seen == data


def test_incomplete_last_window_of_a_pass(run: Run) -> None:
    """7 micro-batches, windows of 2: the plain loop steps three times and drops the rest or carries it over."""
    for batch in run.g.batches(list(range(7)), accumulate=2):
        run.step(batch, update=len(run.seen) % 2 == 1)
    assert run.seen == list(range(7))
    assert run.g.step == 3


def test_nothing_is_held_after_the_run() -> None:
    """Workers of a DataLoader end with the loop, not when the garbage collector finds them."""
    ended = []

    class Iterating:
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            return 1

        def __del__(self) -> None:
            ended.append(True)

    class Source:
        def __iter__(self) -> Iterator[int]:
            return Iterating()

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gc.disable()
    try:
        with guarded(model, optimizer, policy=policies(policy("non_finite", [BACK]))) as g:
            used = Run(g, optimizer, model)
            for batch in g.batches(Source(), steps=3):
                used.step(batch)
        assert ended == [True]
    finally:
        gc.enable()
