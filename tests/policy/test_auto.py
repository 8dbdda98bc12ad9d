"""`attempts: auto`: what the diagnosis has chosen is the first rung of the ladder."""

from __future__ import annotations

import pytest
from policy.test_engine import Night, policies, seen

from guard.policy import engine, memory
from guard.policy.engine import Attempted, Closed, Moment, State
from guard.policy.remedies import TOLD, ladder
from guard.types import Detection

ALONE = "    severity: critical\n    trigger: {type: non_finite}\n    attempts: auto"
FIRST = """
    trigger: {type: non_finite}
    attempts:
      - auto
      - [{type: skip_step}]
      - [{type: stop}]
"""


def tried(events: list[engine.Event]) -> list[tuple[int, list[str]]]:
    return [(e.rung, [a.type for a in e.actions]) for e in events if isinstance(e, Attempted)]


@pytest.mark.parametrize(
    ("remedy", "actions"),
    [
        ("bf16", ["rollback", "precision"]),
        ("fp32", ["rollback", "precision"]),
        ("clip", ["rollback", "clip"]),
        ("halve", ["rollback", "clip", "scale_lr"]),
        ("quarter", ["rollback", "clip", "scale_lr"]),
        ("slower", ["rollback", "scale_lr"]),
        ("replay", ["rollback"]),
        ("stop", ["stop"]),
    ],
)
def test_each_remedy(remedy: str, actions: list[str]) -> None:
    night = Night(policies(ALONE))
    assert tried(night.fires(remedies={0: remedy})) == [(0, actions)]


def test_bad_data_is_left_out_in_place_unless_the_state_is_bad() -> None:
    assert tried(Night(policies(ALONE)).fires(remedies={0: "skip"})) == [(0, ["skip_step"])]
    assert tried(Night(policies(ALONE), finite=False).fires(remedies={0: "skip"})) == [(0, ["rollback"])]


def test_where_no_remedy_is_known_the_ladder_is_climbed() -> None:
    assert tried(Night(policies(FIRST)).fires(remedies={0: ""})) == [(1, ["skip_step"])]
    assert tried(Night(policies(FIRST)).fires()) == [(1, ["skip_step"])]  # there was no diagnosis


def test_where_it_does_not_help_the_ladder_follows() -> None:
    night = Night(policies(FIRST))
    night.fires(position=7, remedies={0: "replay"})
    (attempt,) = [e for e in night.fires(position=7) if isinstance(e, Attempted)]
    assert (attempt.rung, attempt.escalated, [a.type for a in attempt.actions]) == (1, True, ["skip_step"])


def test_alone_and_without_a_remedy_it_is_exhausted() -> None:
    (closed,) = [e for e in Night(policies(ALONE)).fires() if isinstance(e, Closed)]
    assert closed.status == "exhausted"


def test_only_what_is_critical_may_stop_the_run() -> None:
    warning, critical = policies(ALONE.replace("critical", "warning"), ALONE)
    assert ladder(warning, "stop") == ((),)
    assert [a.type for a in ladder(critical, "stop")[0]] == ["stop"]


def test_what_has_helped_is_done_again_without_asking() -> None:
    """A bad sample comes round: nothing opens that nothing is known about."""
    night = Night(policies(ALONE))
    night.fires(position=40, remedies={0: "skip"})
    night.quiet(40)
    moment = Moment(night.tick, night.step, 80)
    assert not engine.opens(night.state, night.rules, moment, 0, _seen(night))
    assert tried(night.fires(position=80)) == [(0, ["skip_step"])]


def test_a_first_incident_is_one_to_ask_about_and_an_open_one_is_not() -> None:
    night = Night(policies(ALONE))
    assert engine.opens(night.state, night.rules, Moment(night.tick, night.step, 0), 0, _seen(night))
    night.fires(remedies={0: "replay"})
    assert not engine.opens(night.state, night.rules, Moment(night.tick, night.step, 0), 0, _seen(night))
    watching = Night(policies(ALONE), "observe")
    assert not engine.opens(watching.state, watching.rules, Moment(1, 1, 0), 0, _seen(night))


def test_it_survives_the_process() -> None:
    night = Night(policies(FIRST))
    night.fires(position=7, remedies={0: "bf16"})
    plain = memory.to_plain(night.state, night.rules)
    again = memory.from_plain(plain, State.new(night.rules, "enforce"), night.rules)
    assert again.policies[0].open == night.state.policies[0].open
    assert again.policies[0].open is not None
    assert again.policies[0].open.remedy == "bf16"


def test_what_was_remembered_before_there_were_remedies_is_understood() -> None:
    night = Night(policies(FIRST))
    night.fires(position=7)
    plain = memory.to_plain(night.state, night.rules)
    del plain["policies"]["p0"]["open"]["remedy"], plain["policies"]["p0"]["remedy"]
    again = memory.from_plain(plain, State.new(night.rules, "enforce"), night.rules)
    assert again.policies[0].open is not None


def test_check_names_every_remedy_in_words() -> None:
    for word in ("BF16", "FP32", "leave it out", "clip", "go back", "stop"):
        assert word in TOLD


def _seen(night: Night) -> Detection:
    return seen(tick=night.tick)
