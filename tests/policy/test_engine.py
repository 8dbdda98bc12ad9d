"""The engine's rules, one readable example each, and what must hold whatever happens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from guard.detectors import DETECTORS
from guard.policy import Leaf, Limits, engine, leaves, parse
from guard.policy.engine import Attempted, Closed, Event, Fired, Moment, Opened, State
from guard.policy.schema import ActionSpec, Policy
from guard.types import Detection, Mode

LADDER = """
    trigger: {type: non_finite}
    attempts:
      - [{type: rollback, data: replay}]
      - [{type: rollback, data: skip_offending}]
      - [{type: rollback, to: previous, data: skip_window}, {type: scale_lr, factor: 0.5}]
      - [{type: stop}]
"""
CLIP = """
    trigger: {type: grad_explosion}
    attempts:
      - [{type: clip, max_norm: 1.0}]
      - [{type: scale_lr, factor: 0.5}]
"""


def policies(*bodies: str) -> Sequence[Policy]:
    """Policies called p0, p1 …, from the rest of their YAML."""
    text = "version: 1\npolicies:\n" + "".join(f"  - name: p{i}\n{body.rstrip()}\n" for i, body in enumerate(bodies))
    return parse(text, None).policies


def seen(detector: str = "non_finite", tick: int = 0) -> Detection:
    return Detection(detector, "loss", math.nan, math.nan, math.nan, tick, "it was seen")


@dataclass
class Night:
    """A run seen from the engine: time goes on by itself, and what the world answers can be set."""

    rules: Sequence[Policy]
    mode: Mode = "enforce"
    tick: int = 100
    step: int = 100
    finite: bool = True
    impossible: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = State.new(self.rules, self.mode)

    def unavailable(self, spec: ActionSpec, detection: Detection) -> str | None:
        return self.impossible.get(spec.type)

    def state_finite(self) -> bool:
        return self.finite

    def fires(
        self,
        *which: int,
        position: int | None = None,
        step: int | None = None,
        detector: str = "non_finite",
        remedies: Mapping[int, str] | None = None,
    ) -> list[Event]:
        """One tick in which these policies' triggers are satisfied."""
        self.step = self.step if step is None else step
        moment = Moment(self.tick, self.step, self.step if position is None else position)
        fired = {i: seen(detector, self.tick) for i in which or (0,)}
        self.state, events = engine.advance(self.state, self.rules, moment, fired, self, remedies=remedies or {})
        self.tick += 1
        self.step += 1
        return events

    def quiet(self, ticks: int) -> list[Event]:
        """So many healthy ticks; the engine is asked only when it wants to be."""
        events: list[Event] = []
        for _ in range(ticks):
            if self.tick >= self.state.due:
                moment = Moment(self.tick, self.step, self.step)
                self.state, new = engine.advance(self.state, self.rules, moment, {}, self)
                events += new
            self.tick += 1
            self.step += 1
        return events


def attempt(events: Sequence[Event]) -> Attempted:
    (found,) = [e for e in events if isinstance(e, Attempted)]
    return found


def types(events: Sequence[Event]) -> list[str]:
    return [a.type for a in attempt(events).actions]


def kinds(events: Sequence[Event]) -> list[str]:
    return [type(e).__name__ for e in events]


# ---- ladders (DESIGN §5)


def test_the_first_firing_opens_an_incident_and_tries_the_first_rung() -> None:
    night = Night(policies(LADDER))
    events = night.fires()
    assert kinds(events) == ["Opened", "Attempted"]
    assert (attempt(events).rung, attempt(events).repeat, attempt(events).escalated) == (0, 0, False)
    assert types(events) == ["rollback"]


def test_firing_again_at_the_same_data_position_means_that_the_attempt_failed() -> None:
    night = Night(policies(LADDER), finite=False)
    night.fires(position=40)
    events = night.fires(position=40)
    assert kinds(events) == ["Fired", "Attempted"]
    assert (attempt(events).rung, attempt(events).escalated) == (1, True)


def test_a_remedy_that_leaves_no_data_out_failed_if_it_fires_again_on_any_data_before_it_is_resolved() -> None:
    night = Night(policies(LADDER), finite=False)
    night.fires(position=40)
    night.quiet(10)
    assert attempt(night.fires(position=51)).rung == 1


def test_firing_on_other_data_after_a_skip_repeats_that_attempt() -> None:
    night = Night(policies(LADDER), finite=False)
    night.fires(position=40)
    night.fires(position=40)
    night.quiet(5)
    events = night.fires(position=47)
    assert (attempt(events).rung, attempt(events).repeat, attempt(events).escalated) == (1, 1, False)


def test_firing_on_the_same_data_after_a_skip_escalates() -> None:
    night = Night(policies(LADDER), finite=False)
    night.fires(position=40)
    night.fires(position=40)
    assert attempt(night.fires(position=40)).rung == 2


@pytest.mark.parametrize(
    ("repeating", "detector"), [("clip, max_norm: 1.0", "grad_explosion"), ("skip_step", "loss_spike")]
)
def test_clip_and_skip_step_repeat_without_climbing(repeating: str, detector: str) -> None:
    night = Night(
        policies(f"""
    trigger: {{type: {detector}}}
    attempts: [[{{type: {repeating}}}], [{{type: stop}}]]
""")
    )
    tried = []
    for _ in range(10):
        tried.append(attempt(night.fires(detector=detector)))
        night.quiet(4)
    assert [a.rung for a in tried] == [0] * 10
    assert [a.repeat for a in tried] == list(range(10))
    assert not any(a.escalated for a in tried)


def test_actions_are_one_rung_that_repeats_within_its_limits() -> None:
    night = Night(
        policies("""
    trigger: {type: oscillation}
    actions: [{type: scale_lr, factor: 0.5}]
    limits: {max: 3, per: 1000 steps}
""")
    )
    for repeat in range(3):
        assert attempt(night.fires(detector="oscillation")).repeat == repeat
        night.quiet(5)
    assert kinds(night.fires(detector="oscillation")) == ["Fired", "Closed"]


def test_once_reproduced_with_finite_weights_the_step_is_skipped_in_place() -> None:
    night = Night(policies(LADDER), finite=True)
    night.fires(position=40)
    events = night.fires(position=40)
    assert attempt(events).rung == 1
    assert types(events) == ["skip_step"]


def test_with_weights_that_are_not_finite_it_goes_back_all_the_same() -> None:
    night = Night(policies(LADDER), finite=False)
    night.fires(position=40)
    assert types(night.fires(position=40)) == ["rollback"]


def test_a_bad_shard_is_left_out_as_a_whole_but_not_for_ever() -> None:
    night = Night(policies(LADDER), finite=True)
    night.fires(position=40)
    night.fires(position=40)
    rungs = [attempt(night.fires(position=p)).rung for p in range(41, 73)]
    assert rungs == [1] * 31 + [2]


def test_unproven_skips_in_a_row_were_not_about_the_data() -> None:
    night = Night(
        policies("""
    trigger: {type: loss_spike}
    attempts:
      - [{type: skip_step}]
      - [{type: rollback, data: replay}]
""")
    )
    night.fires(position=40)
    assert [attempt(night.fires(position=p)).rung for p in (41, 42, 43)] == [0, 0, 1]


def test_skips_that_get_nowhere_escalate() -> None:
    night = Night(policies(LADDER), finite=False)
    night.fires(step=140)
    for fault in (139, 138, 137, 139, 136, 138, 139, 137, 138, 136):  # always on other data, never past where it was
        night.step = 100
        night.quiet(fault - 100)
        if attempt(night.fires(step=fault)).rung > 1:
            return
    raise AssertionError("it went back ten times to leave out yet another batch, and never got any further")


def test_a_rung_that_was_proven_is_where_the_next_incident_starts() -> None:
    night = Night(policies(LADDER), finite=True)
    night.fires(position=40)
    night.fires(position=40)
    assert kinds(night.quiet(60)) == ["Closed"]
    events = night.fires(position=300)
    assert (attempt(events).rung, types(events)) == (1, ["skip_step"])


def test_a_proven_rung_that_fails_sends_the_ladder_back_to_its_foot() -> None:
    night = Night(policies(LADDER), finite=True)
    night.fires(position=40)
    night.fires(position=40)
    night.quiet(60)
    night.fires(position=300)
    events = night.fires(position=300)
    assert (attempt(events).rung, attempt(events).escalated, types(events)) == (0, True, ["rollback"])


def test_cooldown_delays_a_new_incident_but_no_escalation() -> None:
    night = Night(
        policies("""
    trigger: {type: loss_spike}
    attempts: [[{type: rollback, data: replay}], [{type: stop}]]
    limits: {cooldown: 50 steps}
""")
    )
    night.fires(position=40, detector="loss_spike")
    assert kinds(night.quiet(30)) == ["Closed"]
    assert night.fires(detector="loss_spike") == []
    night.quiet(60)
    assert kinds(night.fires(position=200, detector="loss_spike")) == ["Opened", "Attempted"]
    assert attempt(night.fires(position=200, detector="loss_spike")).rung == 1


def test_unavailable_actions_are_left_out_and_named() -> None:
    night = Night(
        policies("""
    trigger: {type: non_finite}
    attempts: [[{type: rollback}, {type: precision, dtype: bf16}], [{type: stop}]]
"""),
        impossible={"precision": "the run computes in FP32"},
    )
    events = night.fires()
    assert (attempt(events).rung, types(events)) == (0, ["rollback"])
    assert attempt(events).unavailable == (("precision", "the run computes in FP32"),)


def test_a_rung_is_passed_over_only_if_nothing_of_it_remains() -> None:
    night = Night(policies(LADDER), impossible={"rollback": "there is no checkpoint yet"})
    events = night.fires()
    assert (attempt(events).rung, types(events)) == (2, ["scale_lr"])
    assert [a for a, _ in attempt(events).unavailable] == ["rollback"] * 3


def test_nothing_available_is_out_of_remedies() -> None:
    night = Night(policies(LADDER), impossible=dict.fromkeys(("rollback", "scale_lr", "stop"), "no"))
    assert kinds(night.fires()) == ["Opened", "Closed"]


def test_the_strongest_action_owns_the_tick_and_the_others_attach_and_spend_nothing() -> None:
    night = Night(policies(CLIP + "    limits: {max: 1}", LADDER))
    events = night.fires(0, 1)
    owner, other = (next(e for e in events if isinstance(e, Opened) and e.policy.name == n) for n in ("p1", "p0"))
    assert attempt(events).incident == owner.incident
    assert other.attached_to == owner.incident
    assert owner.attached_to is None
    assert types(events) == ["rollback"]
    night.quiet(3)
    assert types(night.fires(0)) == ["clip"]  # its only attempt was still to be had


def test_among_equals_the_first_policy_owns() -> None:
    night = Night(policies(CLIP, CLIP))
    assert attempt(night.fires(0, 1)).policy.name == "p0"


def test_budget_counts_attempts_within_its_span() -> None:
    night = Night(
        policies("""
    trigger: {type: grad_explosion}
    actions: [{type: clip, max_norm: 1.0}]
    resolve_after: 2 steps
    limits: {max: 2, per: 50 steps}
""")
    )
    spans = []
    for _ in range(4):
        spans.append([type(e).__name__ for e in night.fires(detector="grad_explosion")])
        night.quiet(9)
    assert spans == [["Opened", "Attempted"], ["Opened", "Attempted"], ["Opened", "Closed"], ["Opened", "Closed"]]
    night.quiet(30)
    assert kinds(night.fires(detector="grad_explosion")) == ["Opened", "Attempted"]


def test_exhausted_is_told_once() -> None:
    night = Night(policies("    trigger: {type: loss_spike}\n    attempts: [[{type: scale_lr, factor: 0.5}]]\n"))
    night.fires(position=40)
    events = night.fires(position=40)
    assert [(e.status, e.count) for e in events if isinstance(e, Closed)] == [("exhausted", 2)]
    later = [e for _ in range(30) for e in night.fires(position=40)]
    assert kinds(later) == ["Fired"] * 30
    assert [e.count for e in night.quiet(60) if isinstance(e, Fired)] == [32]  # the exact total, and no more


def test_out_of_remedies_can_stop_the_run() -> None:
    night = Night(
        policies("""
    trigger: {type: loss_spike}
    attempts: [[{type: scale_lr, factor: 0.5}]]
    on_exhausted: stop
""")
    )
    night.fires(position=40)
    events = night.fires(position=40)
    assert kinds(events) == ["Fired", "Attempted", "Closed"]
    assert types(events) == ["stop"]
    assert [e.status for e in events if isinstance(e, Closed)] == ["stopped"]


def test_exhaustion_is_told_although_another_policy_owns_every_tick() -> None:
    night = Night(
        policies(
            """
    trigger: {type: loss_spike}
    actions: [{type: skip_step}]
    limits: {max: 1}
    on_exhausted: stop
""",
            CLIP,
        )
    )
    events = [e for _ in range(10) for e in night.fires(0, 1)]
    assert [e.status for e in events if isinstance(e, Closed) and e.policy.name == "p0"] == ["stopped"]


def test_quiet_for_long_enough_is_resolved() -> None:
    night = Night(policies(LADDER + "    resolve_after: 20 steps\n"))
    night.fires()
    assert night.quiet(19) == []
    (closed,) = night.quiet(1)
    assert isinstance(closed, Closed)
    assert (closed.status, closed.count) == ("resolved", 1)


def test_a_replay_must_get_past_the_fault_before_quiet_counts() -> None:
    night = Night(policies(LADDER + "    resolve_after: 20 steps\n"))
    night.fires(step=140)
    night.step = 100
    assert night.quiet(59) == []
    assert kinds(night.quiet(2)) == ["Closed"]


def test_for_waits_for_so_many_ticks_in_a_row() -> None:
    night = Night(policies("    trigger: {type: loss_spike}\n    for: 3 steps\n    actions: [{type: skip_step}]\n"))
    assert night.fires() + night.fires() == []
    night.quiet(1)
    assert night.fires() + night.fires() == []
    assert kinds(night.fires()) == ["Opened", "Attempted"]


# ---- observe


def test_observe_describes_what_it_would_have_done() -> None:
    night = Night(policies(LADDER), mode="observe")
    events = night.fires()
    assert kinds(events) == ["Opened", "Attempted"]
    assert attempt(events).would
    assert [e.observed for e in events if isinstance(e, Opened)] == [True]
    assert kinds(night.fires()) == ["Fired"]
    assert [(e.status, e.count) for e in night.quiet(40) if isinstance(e, Closed)] == [("observed", 2)]


def test_a_policy_of_its_own_may_observe_while_the_others_act() -> None:
    night = Night(policies(LADDER + "    mode: observe\n", CLIP))
    events = night.fires(0, 1)
    assert {(e.policy.name, e.would) for e in events if isinstance(e, Attempted)} == {("p0", True), ("p1", False)}


@pytest.mark.parametrize("policy", [None, "p0"])
def test_observe_takes_the_wheel_from_an_incident_that_is_open(policy: str | None) -> None:
    night = Night(policies(LADDER), finite=False)
    night.fires(position=40)
    night.state = engine.set_mode(night.state, night.rules, "observe", policy)
    events = night.fires(position=40)
    assert all(e.would for e in events if isinstance(e, Attempted))


def test_enforce_acts_although_the_fault_is_already_being_observed() -> None:
    night = Night(policies(LADDER), mode="observe")
    night.fires()
    night.state = engine.set_mode(night.state, night.rules, "enforce", None)
    events = [e for _ in range(3) for e in night.fires()]
    assert any(not e.would for e in events if isinstance(e, Attempted))


# ---- what must hold whatever happens


RUNGS = [
    (ActionSpec.of("rollback", data="replay"),),
    (ActionSpec.of("rollback", data="skip_offending"),),
    (ActionSpec.of("rollback", to="previous", data="skip_window"), ActionSpec.of("scale_lr", factor=0.5)),
    (ActionSpec.of("rollback", data="advance"),),
    (ActionSpec.of("clip", max_norm=1.0),),
    (ActionSpec.of("skip_step"),),
    (ActionSpec.of("scale_lr", factor=0.5),),
    (ActionSpec.of("precision", dtype="bf16"),),
    (ActionSpec.of("stop"),),
]


@st.composite
def any_policy(draw: Any, name: str) -> Policy:
    detector = draw(st.sampled_from(["non_finite", "loss_spike", "grad_explosion"]))
    found = DETECTORS.get(detector)
    assert found is not None
    repeats = draw(st.booleans())
    most = draw(st.none() | st.integers(1, 3))
    per = draw(st.none() | st.integers(3, 20)) if most else None
    return Policy.model_validate(
        {
            "name": name,
            "trigger": Leaf(type=detector, params=found.Params()),
            "repeats": repeats,
            "limits": Limits(cooldown=draw(st.integers(0, 5)), max=most, per=per),
            "attempts": tuple(draw(st.lists(st.sampled_from(RUNGS), min_size=1, max_size=1 if repeats else 4))),
            "for": 1 if detector == "non_finite" else draw(st.integers(1, 2)),
            "resolve_after": draw(st.integers(1, 6)),
            "mode": draw(st.sampled_from([None, None, "observe"])),
            "on_exhausted": draw(st.sampled_from(["notify", "notify", "notify", "stop"])),
        }
    )


class AnyNight(RuleBasedStateMachine):
    """Any policies, any firings, any answers of the world, and a person who changes the mode meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.tick = self.step = self.position = 0
        self.opened: dict[str, Opened] = {}
        self.closed: dict[str, Closed] = {}
        self.counts: dict[str, int] = {}
        self.rungs: dict[str, int] = {}
        self.attempts: dict[str, list[int]] = {}
        self.stopped = False
        self.sound = True  # no assertion has failed: the end may be judged too

    @initialize(
        policies=st.tuples(any_policy("p0"), any_policy("p1"), any_policy("p2")),
        mode=st.sampled_from(["enforce", "enforce", "observe"]),
    )
    def begin(self, policies: Sequence[Policy], mode: Mode) -> None:
        self.policies = policies
        self.detectors = [leaf.type for p in policies for leaf in leaves(p.trigger)]
        self.state = State.new(self.policies, mode)
        self.mode: dict[str, Mode | None] = {r.name: r.mode for r in self.policies}
        self.run_mode = mode

    # ---- what may happen

    @rule(
        ticks=st.lists(
            st.tuples(st.sets(st.integers(0, 2)), st.booleans(), st.integers(0, 5)), min_size=5, max_size=20
        ),
        finite=st.booleans(),
        no=st.sets(st.sampled_from(["rollback", "precision", "clip", "scale_lr"]), max_size=3),
    )
    def ticks(self, ticks: list[tuple[set[int], bool, int]], finite: bool, no: set[str]) -> None:
        for which, same, back in ticks:
            if not self.stopped:
                self.a_tick(which, same, back, finite, no)

    def a_tick(self, which: set[int], same: bool, back: int, finite: bool, no: set[str]) -> None:
        self.sound = False
        if not same:
            self.position += 1
        world = Night(self.policies, finite=finite, impossible=dict.fromkeys(no, "not now"))
        detections = {i: seen(self.detectors[i], self.tick) for i in which}
        moment = Moment(self.tick, self.step, self.position)
        before, frozen = self.state, repr(self.state)
        proven = {r.name: p.proven for r, p in zip(self.policies, before.policies, strict=True)}
        self.state, events = engine.advance(before, self.policies, moment, detections, world)
        assert repr(before) == frozen
        assert engine.advance(before, self.policies, moment, detections, world) == (self.state, events)
        assert self.state.due > self.tick
        self.check_acts(events)
        for event in events:
            self.take(event, proven)
        if any(a.type == "rollback" for e in events if isinstance(e, Attempted) and not e.would for a in e.actions):
            self.step = max(0, self.step - back)
        else:
            self.step += 1
        self.tick += 1

    @rule(ticks=st.integers(1, 12))
    def quiet_ticks(self, ticks: int) -> None:
        for _ in range(ticks):
            self.position += 1
            if not self.stopped:
                self.a_tick_of_nothing()

    @rule(mode=st.sampled_from(["observe", "enforce"]), policy=st.sampled_from([None, "p0", "p1"]))
    def a_person_says(self, mode: Mode, policy: str | None) -> None:
        self.state = engine.set_mode(self.state, self.policies, mode, policy)
        if policy is None:
            self.run_mode = mode
        else:
            self.mode[policy] = mode

    def teardown(self) -> None:
        """The run ends."""
        if not hasattr(self, "state") or not self.sound:
            return
        self.state, closed = engine.end_all(self.state, self.policies)
        for event in closed:
            self.take(event, {})
        assert set(self.opened) == set(self.closed)
        assert self.state.due == engine.NEVER

    # ---- what must hold

    def a_tick_of_nothing(self) -> None:
        if self.tick >= self.state.due:
            moment = Moment(self.tick, self.step, self.position)
            self.state, events = engine.advance(self.state, self.policies, moment, {}, Night(self.policies))
            assert all(isinstance(e, Closed) or _is_total(e) for e in events)
            for event in events:
                self.take(event, {})
        self.tick, self.step = self.tick + 1, self.step + 1

    def check_acts(self, events: Sequence[Event]) -> None:
        acts = [e for e in events if isinstance(e, Attempted) and not e.would]
        assert len(acts) <= 1
        assert sum(a.type == "rollback" for e in acts for a in e.actions) <= 1
        for e in acts:
            assert self.run_mode == "enforce"
            assert self.mode[e.policy.name] != "observe"

    def take(self, event: Event, proven: Mapping[str, int | None]) -> None:
        match event:
            case Opened():
                assert event.incident not in self.opened
                self.opened[event.incident] = event
                self.counts[event.incident] = 1
            case Fired() if _is_total(event):
                assert event.incident in self.closed
                assert event.count == self.counts[event.incident]
            case Fired():
                self.counts[event.incident] += 1
                assert event.count == self.counts[event.incident]
            case Closed():
                assert event.incident in self.opened
                assert event.incident not in self.closed
                assert event.count == self.counts[event.incident]
                self.closed[event.incident] = event
                self.stopped = self.stopped or event.status == "stopped"
            case Attempted():
                assert event.incident in self.opened
                assert event.actions
                if not event.would:
                    self.take_attempt(event, proven)

    def take_attempt(self, e: Attempted, proven: Mapping[str, int | None]) -> None:
        assert e.incident not in self.closed
        limits, last = e.policy.limits, self.rungs.get(e.incident, -1)
        if e.rung < len(e.policy.attempts):  # not the stop of a policy that is out of remedies
            spent = self.attempts.setdefault(e.policy.name, [])
            spent.append(self.tick)
            if limits.max is not None:
                assert len([t for t in spent if limits.per is None or self.tick - t < limits.per]) <= limits.max
        if e.rung < last:
            assert (e.rung, last) == (0, proven[e.policy.name])
        assert e.repeat == 0 or e.rung == last
        self.rungs[e.incident] = e.rung

    @invariant()
    def at_most_one_incident_a_policy(self) -> None:
        names = [o.policy.name for i, o in self.opened.items() if i not in self.closed]
        assert len(names) == len(set(names))


def _is_total(event: Event) -> bool:
    """The last word on an incident that fired on after it was exhausted: its exact count."""
    return isinstance(event, Fired) and event.detection is None


AnyNight.TestCase.settings = settings(
    max_examples=100, stateful_step_count=20, deadline=None, derandomize=True, phases=(Phase.generate, Phase.shrink)
)
TestAnyNight = AnyNight.TestCase
