from __future__ import annotations

from detectors.traces import fires, looked_at, make, play, replicas

from guard.types import Signals


def looks(wrong: dict[int, tuple[int, ...]], **changes: object) -> list[Signals]:
    """A look every 10 ticks; `wrong`: tick -> ranks in the minority."""
    return looked_at([{"replicas": replicas(*wrong.get(t, ()), **changes)} if t % 10 == 0 else None for t in range(60)])


def test_fires_at_the_look_that_shows_it_and_at_all_later_ones() -> None:
    alarms = play(make("replica_divergence"), looks({30: (1,), 40: (1,), 50: (1,)}, name="0.weight"))
    assert list(alarms) == [30, 40, 50]
    assert {a.since for a in alarms.values()} == {20}, "the last look at which all were equal"
    assert alarms[30].message == "rank 1 holds other weights than the others, in 0.weight"
    assert (alarms[30].value, alarms[30].threshold) == (1.0, 0.0)


def test_it_ends_when_they_are_equal_again() -> None:
    assert fires("replica_divergence", looks({30: (1,)})) == [30]
    alarms = play(make("replica_divergence"), looks({30: (1,), 50: (2,)}))
    assert alarms[50].since == 40


def test_names_ranks_and_counts_parameters() -> None:
    alarms = play(make("replica_divergence"), looks({0: (1, 3)}, count=12, name="a"))
    assert alarms[0].message == "ranks 1, 3 hold other weights than the others, in a and 11 more"
    assert alarms[0].since == 0
    many = play(make("replica_divergence"), looks({0: tuple(range(1, 30))}))[0].message
    assert many.startswith("ranks 1, 2, 3, 4, 5, 6, 7, 8, ... hold")


def test_two_ranks_that_differ_are_no_majority() -> None:
    alarms = play(make("replica_divergence"), looks({20: (1,)}, most=False))
    assert alarms[20].message == "the ranks hold different weights, and no majority agrees, in a"


def test_stays_silent_where_nothing_is_compared() -> None:
    assert fires("replica_divergence", looked_at([None, {}, {"layers": {}}, {"replicas": replicas()}] * 20)) == []
