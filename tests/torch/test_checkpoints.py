"""What is kept, what a rollback picks, and that capture and restore are exact."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from _runs import (
    BACK,
    OPTIMIZERS,
    DictEma,
    Setup,
    differences,
    flatten,
    guarded,
    make_model,
    make_optimizer,
    make_source,
    mse_loss,
    policies,
    policy,
    rng_state,
    seed_everything,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from torch import nn

from guard.checkpoints import Ring, RngState, Snapshot, TrainingState
from guard.checkpoints.interval import Interval, keep_that_fits
from guard.checkpoints.state import all_finite
from guard.errors import UsageError

RNG = RngState.capture()


def snapshot(tick: int) -> Snapshot:
    return Snapshot(tick, tick, [], [], [], [], {}, RNG)


def ring_with_good(*ticks: int, keep: int = 10) -> Ring:
    ring = Ring(keep, probation=0)
    ring.restart(snapshot(0))
    for tick in ticks:
        ring.add(snapshot(tick))
    return ring


def ticks(ring: Ring) -> list[int]:
    return [s.tick for s in ring.good]


def tick_of(picked: Snapshot | None) -> int | None:
    return None if picked is None else picked.tick


# ---- the ring


def test_probation() -> None:
    ring = Ring(3, probation=3)
    ring.restart(snapshot(0))
    ring.add(snapshot(10))
    ring.count_clean()
    ring.count_clean()
    assert ticks(ring) == []
    ring.count_unclean()  # starts anew
    for _ in range(3):
        assert ticks(ring) == []
        ring.count_clean()
    assert ticks(ring) == [10]
    assert ring.candidate is None


def test_one_on_probation_is_never_picked_for_last_good() -> None:
    ring = Ring(3, probation=5)
    ring.restart(snapshot(0))
    ring.add(snapshot(10))
    assert tick_of(ring.pick("last_good", 50, None)) == 0
    assert ring.newest_tick() == 10


@pytest.mark.parametrize(("since", "expected"), [(100, 40), (40, 40), (39, 30), (29, 20), (19, 10), (9, 0), (0, 0)])
def test_last_good_is_older_than_the_fault(since: int, expected: int) -> None:
    assert tick_of(ring_with_good(10, 20, 30, 40).pick("last_good", since, None)) == expected


@pytest.mark.parametrize(
    ("used", "since", "expected"),
    [(None, 100, 40), (40, 100, 30), (30, 100, 20), (10, 100, 0), (0, 100, 0), (40, 25, 20)],
)
def test_previous_is_older_than_what_the_incident_used(used: int | None, since: int, expected: int) -> None:
    assert tick_of(ring_with_good(10, 20, 30, 40).pick("previous", since, used)) == expected


def test_start_and_best() -> None:
    ring = ring_with_good(10, 20)
    assert tick_of(ring.pick("start", 100, None)) == 0
    assert tick_of(ring.pick("best", 100, None)) == 20  # nothing was logged yet
    ring.set_best(snapshot(15))
    assert tick_of(ring.pick("best", 100, None)) == 15


@pytest.mark.parametrize("to", ["last_good", "previous", "start", "best"])
def test_nothing_to_pick(to: str) -> None:
    assert Ring(3, probation=0).pick(to, 10, None) is None


def test_a_rollback_drops_what_was_taken_later() -> None:
    ring = ring_with_good(10, 20, 30)
    ring.probation = 9
    ring.add(snapshot(40))
    ring.set_best(snapshot(35))
    ring.rewind(ring.good[1])
    assert ticks(ring) == [10, 20]
    assert ring.candidate is None
    assert tick_of(ring.best) in (None, 35)


def test_loading_weights_begins_another_history() -> None:
    ring = ring_with_good(10, 20)
    ring.set_best(snapshot(15))
    ring.restart(snapshot(25))
    assert (tick_of(ring.start), ring.best, ring.good, ring.candidate) == (25, None, [], None)


@pytest.mark.parametrize("keep", [1, 2, 3, 5])
def test_thinning_keeps_ages_spread(keep: int) -> None:
    """After 1000 snapshots the kept ones lie at ages of different magnitude, not side by side."""
    ring = Ring(keep, probation=0)
    ring.restart(snapshot(0))
    for tick in range(1, 1001):
        ring.add(snapshot(tick))
        assert len(ring.good) <= keep
    assert ticks(ring)[-1] == 1000
    ages = [1001 - tick for tick in ticks(ring)]
    assert all(older >= 1.5 * younger for older, younger in itertools.pairwise(ages))
    if keep >= 3:
        assert ages[0] >= 30


class RingMachine(RuleBasedStateMachine):
    """Any history of snapshots, clean and unclean ticks, and rollbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[int] = []
        self.ring = Ring(3, probation=2, dropped=lambda s: self.dropped.append(id(s)))
        self.tick = 0
        self.all: list[Snapshot] = []
        self.verified: Snapshot | None = None  # the newest that survived its probation
        self.ring.restart(self._new())

    def _new(self) -> Snapshot:
        self.all.append(snapshot(self.tick))
        return self.all[-1]

    def _kept(self) -> list[Snapshot]:
        ring = self.ring
        return [s for s in (ring.start, ring.best, ring.candidate, *ring.good) if s is not None]

    @rule()
    def clean_tick(self) -> None:
        self.tick += 1
        promoted = self.ring.candidate
        self.ring.count_clean()
        if promoted is not None and promoted.clean >= 2:
            self.verified = promoted

    @rule()
    def unclean_tick(self) -> None:
        self.tick += 1
        self.ring.count_unclean()

    @rule()
    def take(self) -> None:
        self.ring.add(self._new())

    @rule()
    def best(self) -> None:
        self.ring.set_best(self._new())

    @rule(
        to=st.sampled_from(["last_good", "previous", "start"]),
        ago=st.integers(0, 30),
        used=st.none() | st.integers(0, 60),
    )
    def roll_back(self, to: str, ago: int, used: int | None) -> None:
        since = max(0, self.tick - ago)
        picked = self.ring.pick(to, since, used)
        assert picked is not None
        assert picked is self.ring.start or (picked in self.ring.good and picked.tick <= since)
        if to == "previous" and used is not None:
            assert picked is self.ring.start or picked.tick < used
        better = [s for s in self.ring.good if picked.tick < s.tick <= since]
        assert to != "last_good" or not better
        self.ring.rewind(picked)
        assert all(s.tick <= picked.tick for s in self.ring.good)
        self.verified = self.ring.good[-1] if self.ring.good else None
        self.tick += 1

    @precondition(lambda self: self.tick > 3)
    @rule()
    def load(self) -> None:
        self.ring.restart(self._new())
        self.verified = None

    @invariant()
    def last_verified_good_is_kept(self) -> None:
        assert self.verified is None or any(s is self.verified for s in self.ring.good)

    @invariant()
    def bounded_and_in_order(self) -> None:
        assert len(self.ring.good) <= 3
        assert ticks(self.ring) == sorted(ticks(self.ring))
        assert self.ring.start is not None

    @invariant()
    def memory_is_given_back_exactly_once(self) -> None:
        kept = {id(s) for s in self._kept()}
        assert len(self.dropped) == len(set(self.dropped))
        assert kept.isdisjoint(self.dropped)
        assert kept | set(self.dropped) == {id(s) for s in self.all}


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


# ---- when


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def test_interval_in_steps_counts_from_a_rollback() -> None:
    interval = Interval(10, Clock())
    assert interval.due(0)
    interval.taken(0)
    assert [s for s in range(25) if interval.due(s)] == list(range(10, 25))
    interval.taken(12)
    assert not interval.due(21)
    assert interval.due(22)
    interval.now()
    assert interval.due(13)


def test_auto_interval_spends_half_a_percent_of_the_time() -> None:
    clock = Clock()
    interval = Interval("auto", clock)

    def slow() -> Snapshot:
        clock.now += 2.0
        return snapshot(1)

    interval.measure(slow)
    interval.taken(1)
    clock.now += 399.0
    assert not interval.due(2)
    clock.now += 1.0
    assert interval.due(2)


def test_keep_that_fits() -> None:
    assert keep_that_fits(1, 5, 0.25) == 5
    assert keep_that_fits(1 << 60, 5, 0.25) == 1
    assert keep_that_fits(0, 5, 0.25) == 5


# ---- capture and restore


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    x, y = make_source("callable")(number)
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("taken_after", [0, 3])
def test_restored_twice_is_exact(name: str, taken_after: int) -> None:
    """State, dropout masks and what is trained from there, both times."""
    seed_everything()
    model = make_model(Setup(optimizer=name, batch_norm=True))
    ema = DictEma(model)
    optimizer = make_optimizer(name, model.parameters())
    state = TrainingState(model, [optimizer], {"ema": ema})

    def everything() -> dict[str, Any]:
        return flatten(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "ema": ema.state_dict(),
                "rng": rng_state(),
            }
        )

    def go_on(first: int) -> dict[str, Any]:
        for number in range(first, first + 4):
            one_step(model, optimizer, number)
            ema.update_parameters(model)
        return everything()

    for number in range(taken_after):
        one_step(model, optimizer, number)
    before = everything()
    taken = state.capture(0, 0)
    assert differences(everything(), before) == []
    later = go_on(10)
    for _ in range(2):
        state.restore(taken)
        assert differences(everything(), before) == []
        assert differences(go_on(10), later) == []


def test_restore_is_in_place() -> None:
    """Whoever holds a weight, a momentum buffer or a tensor rate sees the restored values."""
    seed_everything()
    model = make_model(Setup(batch_norm=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2))
    one_step(model, optimizer, 0)
    state = TrainingState(model, [optimizer], {})
    taken = state.capture(1, 1)

    def held() -> list[torch.Tensor]:
        return [
            *model.parameters(),
            *model.buffers(),
            optimizer.param_groups[0]["lr"],
            *(v for s in optimizer.state.values() for v in s.values()),
        ]

    before, pointers = held(), [t.data_ptr() for t in held()]
    one_step(model, optimizer, 1)
    optimizer.param_groups[0]["lr"].fill_(5.0)
    state.restore(taken)
    after = held()
    assert all(a is b for a, b in zip(before, after, strict=True))
    assert [t.data_ptr() for t in after] == pointers
    assert optimizer.param_groups[0]["lr"].item() == pytest.approx(1e-2)


def test_a_snapshot_is_never_aliased() -> None:
    seed_everything()
    model = make_model(Setup(batch_norm=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    one_step(model, optimizer, 0)
    ema = DictEma(model)
    state = TrainingState(model, [optimizer], {"ema": ema})
    taken = state.capture(1, 1)
    kept = [t.clone() for t in taken.tensors], copy.deepcopy(taken.surroundings.others)
    for number in range(2):
        state.restore(taken)
        one_step(model, optimizer, number)
        ema.update_parameters(model)
        with torch.no_grad():
            for t in (*model.parameters(), *model.buffers()):
                t.zero_()
    assert all(torch.equal(a, b) for a, b in zip(taken.tensors, kept[0], strict=True))
    assert differences(flatten(taken.surroundings.others), flatten(kept[1])) == []


def test_state_that_did_not_exist_is_removed_again() -> None:
    seed_everything()
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    state = TrainingState(model, [optimizer], {})
    taken = state.capture(0, 0)
    optimizer.param_groups[0]["initial_lr"] = 1.0
    one_step(model, optimizer, 0)
    optimizer.state[model[0].weight]["more"] = torch.ones(2)
    state.restore(taken)
    assert dict(optimizer.state) == {}
    assert "initial_lr" not in optimizer.param_groups[0]


def test_state_that_is_missing_is_made_again() -> None:
    seed_everything()
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    one_step(model, optimizer, 0)
    state = TrainingState(model, [optimizer], {})
    before = flatten(optimizer.state_dict())
    taken = state.capture(1, 1)
    optimizer.state.clear()
    optimizer.param_groups[0]["lr"] = 7.0
    state.restore(taken)
    assert differences(flatten(optimizer.state_dict()), before) == []


def test_tied_frozen_and_shared_tensors() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2)])
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    state = TrainingState(model, [optimizer], {})
    before = flatten(model.state_dict())
    taken = state.capture(0, 0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
        model[2].running_mean.add_(1.0)
    state.restore(taken)
    assert differences(flatten(model.state_dict()), before) == []
    assert model[1].weight is model[0].weight


def test_modules_among_the_others_are_restored_in_place() -> None:
    model, average = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight = average[0].weight
    state = TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.1)], {"average": average})
    before, taken = flatten(average.state_dict()), state.capture(0, 0)
    with torch.no_grad():
        for t in (*average.parameters(), *average.buffers()):
            t.add_(3)
    state.restore(taken)
    assert average[0].weight is weight
    assert differences(flatten(average.state_dict()), before) == []


def test_non_persistent_and_late_buffers() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("hidden", torch.ones(2), persistent=False)
    state = TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.1)], {})
    taken = state.capture(0, 0)
    model.register_buffer("late", torch.ones(2))
    model.hidden.zero_()
    model.late.zero_()
    state.restore(taken)
    assert model.hidden.tolist() == [1.0, 1.0]
    assert model.late.tolist() == [0.0, 0.0], "it did not exist then: left alone"


def test_replaced_buffers_get_their_values_back() -> None:
    """`self.buffer = self.buffer * 0.9 + ...` makes another tensor each time."""
    model = nn.Linear(2, 2)
    model.register_buffer("average", torch.ones(2))
    state = TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.1)], {})
    taken = state.capture(0, 0)
    model.average = model.average * math.nan
    assert not state.finite()
    state.restore(taken)
    assert model.average.tolist() == [1.0, 1.0]


def test_memory_of_dropped_snapshots_is_used_again() -> None:
    seed_everything()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TrainingState(model, [optimizer], {})
    one, two = state.capture(0, 0), state.capture(1, 1)
    kept = [t.clone() for t in two.tensors]
    pointers = {t.data_ptr() for t in one.tensors}
    state.recycle(one)
    one_step(model, optimizer, 0)
    three = state.capture(2, 2)
    assert {t.data_ptr() for t in three.tensors} == pointers
    assert all(torch.equal(a, b) for a, b in zip(two.tensors, kept, strict=True))
    four = state.capture(3, 3)
    assert {t.data_ptr() for t in four.tensors}.isdisjoint(pointers)


# ---- finite


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["weight", "buffer", "average", "optimizer"])
def test_non_finite_state_is_seen(value: float, where: str) -> None:
    seed_everything()
    model, average = make_model(Setup(batch_norm=True)), make_model()
    optimizer = torch.optim.Adam(model.parameters())
    one_step(model, optimizer, 0)
    state = TrainingState(model, [optimizer], {"average": average})
    taken = state.capture(0, 0)
    assert state.finite()
    assert state.verify(taken)
    place = {
        "weight": model[0].weight,
        "buffer": model[1].running_var,
        "average": average[0].weight,
        "optimizer": optimizer.state[model[0].weight]["exp_avg_sq"],
    }[where]
    place.data.view(-1)[-1] = value
    assert not state.verify(state.capture(1, 1))
    assert state.finite() == (where == "optimizer")


def test_mask_of_minus_infinity_is_left_alone() -> None:
    """One that was born so, at once or lazily; the NaN in the buffer beside it is not."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
            self.register_buffer("lazy", None)
            self.register_buffer("other", torch.ones(2))

    model = Masked()
    state = TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.1)], {})
    assert state.verify(state.capture(0, 0))
    model.lazy = torch.full((3,), -math.inf)
    assert state.finite()
    taken = state.capture(1, 1)
    assert state.verify(taken)
    state.restore(taken)
    assert bool((model.lazy == -math.inf).all())
    model.other[0] = math.nan
    assert not state.finite()
    assert not state.verify(state.capture(2, 2))


def test_lazily_made_mask_in_a_guarded_run() -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 2)
            self.mask: torch.Tensor | None
            self.register_buffer("mask", None, persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.mask is None:
                self.mask = torch.full((len(x), len(x)), -math.inf).triu(1)
            return (self.mask + torch.zeros(len(x), len(x))).softmax(-1) @ self.linear(x)

    seed_everything()
    model = Causal()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with guarded(model, optimizer, policy=policies(policy("non_finite", [BACK]), every=2, probation=1)) as g:
        for number in range(10):
            one_step(model, optimizer, number)
        assert g.incidents == []
        assert len(g.live.ring.good) == 3


def test_all_finite_of_odd_tensors() -> None:
    sparse = torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), check_invariants=True)
    assert all_finite([])
    assert all_finite([torch.ones(0), torch.tensor([1, 2]), torch.ones(2, dtype=torch.complex64), sparse])
    assert all_finite([torch.full((4,), 1e30)]), "its norm overflows, its values do not"
    assert all_finite([torch.full((8,), 6e4, dtype=torch.float16), torch.ones(2)])
    assert not all_finite([torch.ones(2), torch.tensor([complex(0.0, math.nan)])])
    assert not all_finite([sparse, torch.sparse_coo_tensor([[0]], [math.inf], (3,), check_invariants=True)])
    assert not all_finite([torch.ones(3, dtype=torch.float64), torch.tensor([math.nan], dtype=torch.bfloat16)])


# ---- in a guarded run


def test_loading_weights_takes_start_anew() -> None:
    seed_everything()
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    other = copy.deepcopy(model.state_dict())
    saved = copy.deepcopy(optimizer.state_dict())
    with guarded(model, optimizer, policy=policies(policy("non_finite", [BACK]), every=2, probation=1)) as g:
        for number in range(7):
            one_step(model, optimizer, number)
        assert tick_of(g.live.ring.start) == 0
        assert g.live.ring.good
        model.load_state_dict(other)
        optimizer.load_state_dict(saved)
        one_step(model, optimizer, 7)
        assert (tick_of(g.live.ring.start), g.live.ring.good) == (7, [])
        for parameter in model.parameters():
            parameter.data.mul_(math.nan)
        one_step(model, optimizer, 8)
        assert differences(flatten(model.state_dict()), flatten(other)) == []


def test_a_rollback_is_no_load() -> None:
    """Restoring an `extra` goes through its `load_state_dict`, which begins no other history."""
    seed_everything()
    model, average = make_model(), make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    with guarded(
        model,
        optimizer,
        scheduler=scheduler,
        extra={"average": average},
        policy=policies(policy("non_finite", [BACK]), every=2, probation=1),
    ) as g:
        for number in range(9):
            if number == 6:
                model[0].weight.data.fill_(math.nan)
            one_step(model, optimizer, number)
            scheduler.step()
        assert tick_of(g.live.ring.start) == 0
        assert len(g.incidents) == 1


def test_best_is_kept_and_gone_back_to() -> None:
    seed_everything()
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    back = {"type": "rollback", "to": "best"}
    with guarded(model, optimizer, policy=policies(policy("non_finite", [back]), every=2, probation=1)) as g:
        for number in range(10):
            one_step(model, optimizer, number)
            g.log(val_loss=abs(number - 4) + 1.0)
            if number == 4:
                best = flatten(model.state_dict())
        optimizer.zero_grad()
        (model(torch.ones(4, 6)).sum() * math.nan).backward()
        optimizer.step()
        assert differences(flatten(model.state_dict()), best) == []
        assert g.summary()["best_val_loss"] == 1.0


def test_best_never_holds_a_state_that_is_not_finite() -> None:
    seed_everything()
    model = make_model(Setup(batch_norm=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with guarded(model, optimizer, policy=policies(policy("non_finite", [BACK]))) as g:
        one_step(model, optimizer, 0)
        model[1].running_var[0] = math.inf
        g.log(val_loss=0.1)
        assert g.live.ring.best is None


def growing_run(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    """Gets another layer after 5 steps."""
    for number in range(count):
        if number == 5:
            model.append(nn.Linear(2, 2))
            optimizer.add_param_group({"params": list(model[1].parameters())})
        optimizer.zero_grad()
        model(torch.randn(4, 6)).pow(2).mean().backward()
        optimizer.step()


@pytest.fixture
def growing() -> Any:
    seed_everything()
    model = nn.Sequential(nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with guarded(
        model, optimizer, policy=policies(policy("non_finite", [{"type": "rollback"}]), every=4, probation=1)
    ) as g:
        yield g, model, optimizer


def test_parameters_added_later_are_rolled_back(growing: Any) -> None:
    g, model, optimizer = growing
    growing_run(model, optimizer, 15)
    kept = g.live.capture()
    then = flatten(model.state_dict())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).pow(2).mean().backward()
        optimizer.step()
    assert len(differences(flatten(model.state_dict()), then)) == 4
    g.live.state.restore(kept)
    assert differences(flatten(model.state_dict()), then) == []


def test_parameters_added_later_are_verified(growing: Any) -> None:
    g, model, optimizer = growing
    growing_run(model, optimizer, 11)
    assert g.live.state_finite()
    model[1].weight.data[0, 0] = math.inf
    assert not g.live.state_finite()
    assert not g.live.capture().finite


class Broken:
    def __init__(self, where: str) -> None:
        self.where = where

    def state_dict(self) -> dict[str, Any]:
        if self.where == "capture":
            raise ValueError("cannot be captured")
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise ValueError("cannot be restored")


def test_an_extra_that_cannot_be_captured_is_refused() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(UsageError, match="cannot be captured"),
        guarded(model, optimizer, extra={"x": Broken("capture")}),
    ):
        pass


def test_an_extra_that_cannot_be_restored_kills_nothing() -> None:
    seed_everything()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    chosen = policies(policy("non_finite", [{"type": "rollback"}]), every=4, probation=1)
    with guarded(model, optimizer, policy=chosen, extra={"x": Broken("restore")}) as g:
        for number in range(12):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 6)).sum()
            (loss * math.nan if number == 9 else loss).backward()
            optimizer.step()
        assert any("cannot be restored" in str(i.evidence) for i in g.incidents)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
