"""Replicas: one flipped bit shows, the minority is named, and one rank's state is given to all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import children
from ranks.processes import run

from guard.ranks import Ranks
from guard.signals.replicas import Replicas, checksums, majority

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64]
EQUAL = {"equal": True, "count": 0, "name": "", "ranks": [], "most": True}


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.sampled_from([(1,), (2,), (3,), (5, 7), (8, 4), (3, 3, 3), (1, 1025)]),
    layout=st.sampled_from(["plain", "transposed", "part", "shifted"]),
    place=st.integers(0, 10**6),
    bit=st.integers(0, 127),
)
def test_every_single_bit_changes_it(
    dtype: torch.dtype, shape: tuple[int, ...], layout: str, place: int, bit: int
) -> None:
    whole = torch.randn(*shape, 2, generator=torch.Generator().manual_seed(place)).to(dtype)
    tensor = {"plain": whole, "transposed": whole.transpose(0, -1), "part": whole[..., :1], "shifted": whole[..., 1:]}[
        layout
    ]
    before = checksums([tensor])
    assert torch.equal(checksums([tensor]), before)
    size = tensor.element_size()
    position = place % tensor.numel()
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(position), tensor.shape))
    tensor[index].view(-1).view(torch.uint8)[bit // 8 % size] ^= 1 << bit % 8
    assert not torch.equal(checksums([tensor]), before)


def test_it_is_exact_where_a_norm_is_not() -> None:
    tensor = torch.randn(1000, 100)
    before, norm = checksums([tensor]), tensor.norm().item()
    tensor[500, 50].view(-1).view(torch.uint8)[0] ^= 1
    assert tensor.norm().item() == norm
    assert not torch.equal(checksums([tensor]), before)


def test_it_does_not_depend_on_the_layout_in_memory() -> None:
    tensor = torch.randn(6, 4, 5, 5)
    assert torch.equal(checksums([tensor]), checksums([tensor.to(memory_format=torch.channels_last)]))
    half = torch.randn(5, 3).bfloat16()
    assert torch.equal(checksums([half.t()]), checksums([half.t()]))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [("aab", (0, True)), ("baa", (1, True)), ("ab", (0, False)), ("abab", (0, False)), ("abc", (0, False))],
)
def test_what_most_hold(rows: str, expected: tuple[int, bool]) -> None:
    assert majority(list(rows)) == expected


def test_alone_there_is_nothing_to_compare() -> None:
    assert not Replicas(torch.nn.Linear(2, 2), Ranks.alone(), 1).due(0)


def test_a_flipped_bit_and_who_has_it() -> None:
    told = run(children.each, children.compared, [({1: 2},), ({0: 3, 2: 0}, torch.bfloat16)], world=3)
    one = {"equal": False, "count": 1, "name": "2.weight", "ranks": [1], "most": True}
    all_other = {"equal": False, "count": 2, "name": "0.weight", "ranks": [1, 2], "most": False}
    assert told == [[(EQUAL, one), (EQUAL, all_other)]] * 3


def test_of_two_ranks_none_is_the_minority() -> None:
    (_, found), (_, other) = run(children.compared, {0: 1})
    assert found == other == {"equal": False, "count": 1, "name": "0.bias", "ranks": [1], "most": False}


def test_ranks_with_other_parameters_are_no_replicas() -> None:
    told = run(children.compared, {}, torch.float32, True)
    assert all("not the same ones on all ranks" in message for message in told)


def test_a_rank_that_cannot_read_fails_on_all() -> None:
    assert [kind for kind, _ in run(children.cannot_compare)] == ["GuardError"] * 2


def test_shards_are_no_replicas() -> None:
    told = run(children.sharded_is_silent)
    assert told == [(None, "the parameters are sharded: no rank holds a copy of another's")] * 2


def same(a: list[Any], b: list[Any]) -> bool:
    return children._same(a, b)


def test_one_rank_s_state_on_all() -> None:
    wanted = [([1], "majority", 0, [1]), ([0], "majority", 1, [0]), ([0], "first", 0, [1, 2]), ([], "majority", 0, [])]
    calls = [(wrong, source, "weights") for wrong, source, _, _ in wanted]
    told = zip(*run(children.each, children.rebroadcasts, calls, world=3), strict=True)
    for by_rank, (_, _, holder, differed) in zip(told, wanted, strict=True):
        for t in by_rank:
            assert (t["changes"]["from_rank"], t["changes"]["ranks_that_differed"]) == (holder, differed)
            assert same(t["state"], by_rank[holder]["before"])
            assert all(torch.equal(a, b) for a, b in zip(t["trained"], by_rank[0]["trained"], strict=True))


@pytest.fixture(scope="module")
def given_out() -> list[list[Any]]:
    """By damage (optimizer state, weights, shapes), what each of two ranks says."""
    calls = [([1], "majority", "state"), ([1], "first", "weights"), ([1], "first", "shape")]
    return [list(by_rank) for by_rank in zip(*run(children.each, children.rebroadcasts, calls), strict=True)]


def test_optimizer_state_that_is_missing_or_of_another_kind(given_out: list[list[Any]]) -> None:
    told = given_out[0]
    assert not same(told[0]["before"], told[1]["before"])
    assert same(told[1]["state"], told[0]["before"])
    assert same(told[0]["state"], told[0]["before"])


def test_checkpoints_that_may_hold_the_fault_are_dropped(given_out: list[list[Any]]) -> None:
    for t in given_out[1]:
        assert t["kept"] == [3, 5], "the one of tick 8 was taken after the fault began"
        assert t["best"] is None
        assert t["wants"]


def test_other_shapes_are_refused_on_all_ranks_and_nothing_changes(given_out: list[list[Any]]) -> None:
    for t in given_out[2]:
        assert "do not hold the same parameters and buffers" in t["refused"]
        assert t["untouched"]
