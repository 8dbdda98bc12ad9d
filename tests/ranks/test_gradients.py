"""One global gradient norm, however the gradients are spread over the ranks."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from ranks import children
from ranks.processes import run

KINDS = [("ddp", 2), ("ddp", 3), ("fsdp2", 2), ("fsdp2", 3), ("mixed", 2), ("mixed", 3), ("hsdp", 2), ("hsdp", 4)]
SIZES = [1e-25, 1e25]  # whose squares are none in single precision
POISONS = [math.nan, math.inf, -math.inf]

Told = list[dict[str, Any]]  # by rank


@functools.cache
def norms(world: int) -> dict[tuple[Any, ...], Told]:
    """(kind, poison, size) -> what each rank says."""
    kinds = [kind for kind, many in KINDS if many == world]
    calls: list[tuple[Any, ...]] = [(kind, None, 1.0) for kind in kinds]
    if world == 2:
        calls += [(kind, None, size) for kind in kinds for size in SIZES]
        calls += [(kind, poison, 1.0) for kind in ("fsdp2", "hsdp") for poison in POISONS]
    told = run(children.each, children.norms_of, calls, world=world)
    return {tuple(map(str, call)): list(by_rank) for call, by_rank in zip(calls, zip(*told, strict=True), strict=True)}


def told_by(kind: str, poison: float | None = None, size: float = 1.0, world: int = 2) -> Told:
    return norms(world)[str(kind), str(poison), str(size)]


def same_on_all(told: Told) -> float:
    assert {repr(t["global"]) for t in told} == {repr(told[0]["global"])}, "bit for bit"
    return float(told[0]["global"])


@pytest.mark.parametrize(("kind", "world"), KINDS)
def test_it_is_the_norm_of_the_whole_tensors(kind: str, world: int) -> None:
    told = told_by(kind, world=world)
    assert same_on_all(told) == pytest.approx(told[0]["whole"], rel=1e-6)
    assert [t["count"] for t in told] == [6] * world
    assert [t["names"] for t in told] == [[]] * world
    if kind == "fsdp2":  # shards alone are less than the whole
        assert all(t["local"] < 0.999 * t["global"] for t in told)


def test_under_ddp_every_rank_knows_it_alone() -> None:
    told = told_by("ddp")
    assert [t["local"] for t in told] == [same_on_all(told)] * 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["fsdp2", "hsdp", "mixed", "ddp"])
def test_finite_numbers_whose_squares_are_none(kind: str, size: float) -> None:
    told = told_by(kind, size=size)
    assert same_on_all(told) == pytest.approx(told[0]["whole"], rel=1e-5)


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("kind", ["fsdp2", "hsdp"])
def test_one_bad_number_in_one_shard_shows_on_all_ranks(kind: str, poison: float) -> None:
    told = told_by(kind, poison)
    assert not math.isfinite(same_on_all(told))
    assert math.isfinite(told[0]["local"]), "the first rank's own shards are finite"
    assert len(told[1]["names"]) == 1


def test_shares_by_name() -> None:
    told = told_by("mixed")[0]
    assert {name: share for name, share in told["shares"].items() if share != 0.5} == {"2.weight": 1.0, "2.bias": 1.0}
    assert set(told_by("fsdp2")[0]["shares"].values()) == {1.0}
    assert set(told_by("hsdp", world=4)[0]["shares"].values()) == {0.5}


def test_a_sum_that_is_still_to_be_taken() -> None:
    told = run(children.partial_sums)
    assert [total for _, total in told] == [pytest.approx(3.0 * math.sqrt(3.0))] * 2


@pytest.fixture(scope="module")
def clipped() -> dict[tuple[str, str | None], Told]:
    calls = [(kind, pattern) for kind in ("fsdp2", "ddp") for pattern in (None, "*weight")]
    return dict(zip(calls, zip(*run(children.each, children.clips, calls), strict=True), strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["fsdp2", "ddp"])
def test_a_clip_takes_the_global_norm_and_the_same_factor(
    kind: str, clipped: dict[tuple[str, str | None], Told]
) -> None:
    told = clipped[kind, None]
    assert told[0]["factor"] == told[1]["factor"] == pytest.approx(0.5, rel=1e-5)
    for name, norm in told[0]["each"].items():
        assert told[0]["after"][name] == pytest.approx(0.5 * norm, rel=1e-5)
    assert told[0]["cleared"]


@pytest.mark.parametrize("kind", ["fsdp2", "ddp"])
def test_a_clip_of_some_parameters(kind: str, clipped: dict[tuple[str, str | None], Told]) -> None:
    told = clipped[kind, "*weight"]
    assert told[0]["factor"] == told[1]["factor"] < 1.0
    for name, norm in told[0]["each"].items():
        wanted = min(norm, 1e-3) if name.endswith("weight") else norm
        assert told[0]["after"][name] == pytest.approx(wanted, rel=1e-5)


def test_what_a_plain_reader_reads_does_not_depend_on_the_world() -> None:
    from guard.signals import GradientReader

    net = children.model()
    net(torch.ones(2, 3)).sum().backward()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    alone, one_of_four = GradientReader(optimizer), GradientReader(optimizer, 4)
    assert alone.read() == one_of_four.read()
    assert (alone.share, one_of_four.share) == (1.0, 0.25)
