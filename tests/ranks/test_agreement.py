"""The agreement of a tick: the same on all ranks, and what its definition says."""

from __future__ import annotations

import math
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import children
from ranks.processes import run

from guard.ranks import CALM, Agreed, Ranks
from guard.ranks.agreement import Packer
from guard.types import Signals

NAN, INF = math.nan, math.inf
QUIET = {"leaving": False, "has_more": False}

numbers = st.floats(-1e6, 1e6)
losses = st.one_of(st.none(), numbers, st.sampled_from([NAN, INF, -INF, 1e308, -1e308, 5e-324]))
norms = st.one_of(st.floats(0, 1e6), st.sampled_from([0.0, NAN, INF, 1e200, 1e-160]))
inputs = st.fixed_dictionaries(
    {"finite": st.booleans(), "zero": st.booleans(), "ignored": st.booleans(), "peak": st.sampled_from([0.0, 3.0, INF])}
)
looks = st.one_of(
    st.none(),
    st.fixed_dictionaries({}, optional={"seconds": st.floats(0, 100), "inputs": inputs, "layers": st.just({"a": 1})}),
)


@st.composite
def sayings(draw: Any) -> dict[str, Any]:
    """What one rank measures in a tick."""
    loss, norm = draw(losses), draw(norms)
    return {
        "tick": 3,
        "step": 2,
        "loss": NAN if loss is None else loss,
        "loss_known": loss is not None,
        "grad_norm": norm,
        "norm_squared": norm * norm * draw(st.sampled_from([1.0, 0.5])),
        "lr": draw(st.sampled_from([1e-3, 0.5, NAN])),
        "lr_effective": draw(st.floats(0, 1)),
        "loss_scale": draw(st.sampled_from([1.0, 65536.0, INF])),
        "overflow": draw(st.booleans()),
        "params": draw(st.integers(0, 50)),
        "guess": draw(st.one_of(st.just(NAN), numbers)),
        "deep": draw(looks),
        "flags": {name: draw(st.integers(0, 9)) == 0 for name in QUIET},
    }


def together(said: list[dict[str, Any]]) -> list[tuple[Agreed, Signals]]:
    """All ranks of one tick, without processes: the vectors are added up here."""
    packers, signals = [], []
    for rank, by_rank in enumerate(said):
        rest = {k: v for k, v in by_rank.items() if k not in ("norm_squared", "flags")}
        packer, s = Packer(rank, len(said)), Signals(**rest)
        flags = QUIET | by_rank.get("flags", {})
        packer.write(s, by_rank["norm_squared"], leaving=flags["leaving"], more=flags["has_more"])
        packers.append(packer)
        signals.append(s)
    assert all(math.isfinite(x) for p in packers for x in p.vector), "NaN and Inf are never sent"
    total = [sum(column) for column in zip(*(p.vector for p in packers), strict=True)]
    return [(p.read(total, s), s) for p, s in zip(packers, signals, strict=True)]


def defined(said: list[dict[str, Any]]) -> dict[str, Any]:
    """What the ranks are to agree on, computed from all that they know."""
    limit = 1e308 / len(said)
    there = [x for x in said if not x.get("flags", {}).get("leaving")]
    known = [x["loss"] for x in there if x["loss_known"]]
    bounded = [x if not math.isfinite(x) else max(-limit, min(limit, x)) for x in known]
    odd = [x["grad_norm"] for x in there if not math.isfinite(x["grad_norm"])]
    guesses = [x["guess"] for x in there if not math.isnan(x["guess"])]
    return {
        "loss": sum(bounded) / len(known) if known else NAN,
        "loss_known": bool(known),
        "grad_norm": (NAN if any(map(math.isnan, odd)) else INF)
        if odd
        else math.sqrt(sum(min(x["norm_squared"], limit) for x in there)),
        "overflow": any(x["overflow"] for x in there),
        "params": math.ceil(sum(x["params"] for x in there) / len(said)),
        "guess": sum(guesses) / len(guesses) if guesses else NAN,
        "leaving": tuple(r for r, x in enumerate(said) if x.get("flags", {}).get("leaving")),
        "bad_ranks": tuple(r for r, x in enumerate(said) if x in there and not math.isfinite(x["grad_norm"])),
        "bad_loss_ranks": tuple(
            r for r, x in enumerate(said) if x in there and x["loss_known"] and not math.isfinite(x["loss"])
        ),
        "more": any(x.get("flags", {}).get("has_more") for x in said),
    }


def check(said: list[dict[str, Any]], agreed: Agreed, s: dict[str, Any]) -> None:
    wanted = defined(said)
    for name in ("loss", "grad_norm", "guess"):
        assert s[name] == pytest.approx(wanted[name], rel=1e-12, nan_ok=True), name
    for name in ("loss_known", "overflow", "params"):
        assert s[name] == wanted[name], name
    for name in ("leaving", "bad_ranks", "bad_loss_ranks", "more"):
        assert getattr(agreed, name) == wanted[name], name
    if not wanted["leaving"]:
        rates = ("lr", "lr_effective", "loss_scale")
        first = [said[0][name] for name in rates]
        sound = all(map(math.isfinite, first))
        assert [s[n] for n in rates] == pytest.approx(first if sound else [NAN] * 3, nan_ok=True)


def as_dict(s: Signals) -> dict[str, Any]:
    return {name: getattr(s, name) for name in Signals.__slots__}


@settings(max_examples=400)
@given(st.lists(sayings(), min_size=2, max_size=5))
def test_it_is_what_its_definition_says_on_every_rank(said: list[dict[str, Any]]) -> None:
    told = together(said)
    for agreed, s in told:
        check(said, agreed, as_dict(s))
        assert agreed == told[0][0]
    if not told[0][0].leaving:
        own = ("layers",)  # not carried by the vector
        views = [as_dict(s) | {"deep": {k: v for k, v in (s.deep or {}).items() if k not in own}} for _, s in told]
        assert [repr(v) for v in views] == [repr(views[0])] * len(views)


@given(st.lists(sayings(), min_size=2, max_size=4))
def test_looks_that_come_in_every_tick(said: list[dict[str, Any]]) -> None:
    there = [x["deep"] or {} for x in said if not x["flags"]["leaving"]]
    seconds = [d["seconds"] for d in there if "seconds" in d]
    fed = [d["inputs"] for d in there if "inputs" in d]
    _, s = together(said)[0]
    deep = s.deep or {}
    if seconds:
        assert deep["seconds"] == pytest.approx(sum(seconds) / len(seconds))
    if fed:
        assert deep["inputs"] == {
            "finite": all(i["finite"] for i in fed),
            "peak": min(max(i["peak"] for i in fed), 1e308 / len(said)),
            "zero": any(i["zero"] for i in fed),
            "ignored": any(i["ignored"] for i in fed),
        }
    assert deep.get("layers") == (said[0]["deep"] or {}).get("layers")


def test_a_healthy_tick_needs_no_words() -> None:
    said = {"loss": 2.0, "grad_norm": 1.0, "norm_squared": 0.5, "lr": 0.1}
    told = together([said, said | {"loss": 3.0}])
    assert all(agreed is CALM for agreed, _ in told)
    assert [s.loss for _, s in told] == [2.5, 2.5]
    assert [s.grad_norm for _, s in told] == [1.0, 1.0]


def test_a_packer_forgets_the_tick_before() -> None:
    packer = Packer(0, 2)
    packer.write(Signals(loss=NAN, loss_known=True, grad_norm=INF), INF, leaving=False, more=True)
    packer.write(Signals(loss=1.0, grad_norm=2.0, lr=0.5, params=3), 4.0, leaving=False, more=False)
    fresh = Packer(0, 2)
    fresh.write(Signals(loss=1.0, grad_norm=2.0, lr=0.5, params=3), 4.0, leaving=False, more=False)
    assert packer.vector == fresh.vector == array("d", [1.0, 4.0, 3.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 0.0, 0.0, 0.0])


def test_alone_everything_comes_back_as_it_was() -> None:
    ranks, s = Ranks.alone(), Signals(loss=2.0, grad_norm=INF, lr=0.1)
    before = repr(as_dict(s))
    assert ranks.agree(s, norm_squared=INF, **QUIET) is CALM
    assert ranks.agree(s, norm_squared=1.0, leaving=True, has_more=True) == Agreed(True, (0,))
    assert repr(as_dict(s)) == before
    thing = object()
    assert ranks.gather(thing) == [thing]
    assert ranks.broadcast(thing) is thing
    assert (ranks.all(True), ranks.all(False), ranks.worst(7)) == (True, False, 7)
    assert ranks.norms([1.0, NAN], [0.5, 1.0])[0] == 1.0
    assert ranks.leave().leaving == (0,)
    assert Ranks.attach().world == 1
    ranks.close()


def random_ticks(world: int, count: int) -> list[list[dict[str, Any]]]:
    """Mixtures of what hypothesis would draw, the same in every run."""
    import random

    r = random.Random(world)
    odd = [NAN, INF, -INF, 0.0, 1e300, None]
    ticks = []
    for _ in range(count):
        calm = r.random() < 0.3
        by_rank = []
        for _ in range(world):
            loss = r.gauss(2, 1) if calm or r.random() < 0.5 else r.choice(odd)
            norm = abs(r.gauss(1, 1)) if calm or r.random() < 0.7 else r.choice([NAN, INF, 0.0])
            by_rank.append(
                {
                    "loss": NAN if loss is None else loss,
                    "loss_known": loss is not None,
                    "grad_norm": norm,
                    "norm_squared": norm * norm / world,
                    "lr": r.random(),
                    "lr_effective": r.random(),
                    "loss_scale": 2.0 ** r.randrange(16),
                    "overflow": not calm and r.random() < 0.1,
                    "params": r.randrange(5),
                    "guess": r.choice([NAN, r.random()]),
                    "deep": r.choice([None, {"seconds": r.random()}]),
                    "flags": {name: not calm and r.random() < 0.1 for name in ("has_more",)},
                }
            )
        ticks.append(by_rank)
    ticks[-1][world - 1]["flags"] = {"leaving": True}
    return ticks


@pytest.mark.parametrize("world", [2, 3])
def test_over_processes_it_is_the_same_bit_for_bit(world: int) -> None:
    ticks = random_ticks(world, 300)
    told = run(children.agreed_on, ticks, world=world)
    names = sorted(Signals.__slots__)
    for t, by_rank in enumerate(ticks):
        views = [dict(zip(names, told[rank][t][1], strict=True)) for rank in range(world)]
        check(by_rank, told[0][t][0], views[0])
        if t < len(ticks) - 1:  # in the last one somebody leaves, and rates stay each rank's own
            assert [repr(v) for v in views] == [repr(views[0])] * world
        assert [told[rank][t][0] for rank in range(world)] == [told[0][t][0]] * world
    assert told[0][-1][0].leaving == (world - 1,)
