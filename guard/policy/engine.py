"""The policy engine: what is to be done about this tick's detections. A pure state machine.

`advance(state, rules, moment, fired, world)` returns the new state and what is to be done; it changes nothing itself.
The guard calls it only when a detector has fired or `State.due` has come.

An incident goes: opened -> attempt (rung 0) -> fired again? -> the next rung, the same rung, or out of remedies
-> quiet for `resolve_after` ticks past the fault -> resolved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from guard.actions import OTHER, STRENGTH
from guard.policy.remedies import ladder
from guard.policy.schema import ActionSpec, Policy
from guard.types import Detection, Mode, Status

NEVER = 1 << 62
# After so many skips in a row with which the run did not get on, the fault is not in the data.
_SKIPS_IN_A_ROW = 3
# Data that was bad when it was replayed may be a whole shard.
_SHARD = 32
_SEEN = 64  # windows of firings that are remembered
_NONE: Mapping[int, str] = {}


@dataclass(frozen=True, slots=True)
class Moment:
    """Where the run is.

    Args:
        tick, step: as in DESIGN §2.
        position: index of the accumulation window whose data this step used; equal after a replay.
    """

    tick: int
    step: int
    position: int


class World(Protocol):
    """What the engine may ask about the run."""

    def unavailable(self, spec: ActionSpec, detection: Detection) -> str | None:
        """Why an action is impossible now, or None."""

    def state_finite(self) -> bool:
        """All weights and buffers are finite."""


@dataclass(frozen=True, slots=True)
class Open:
    """An incident that is not over.

    Args:
        rung: index of the last attempt; -1 before the first.
        position: window of the last attempt; `seen`: windows at which it fired, of late.
        passed: furthest step at which it fired; a replay must get past it before quiet ticks count.
        reproduced: the fault came back when the same data was replayed, so it is not the state's.
        went_back: the last attempt rolled back.
        in_row: firings after skips in which the run did not get on.
        spent: out of remedies; the incident is told, and absorbs further firings until they end.
        remedy: what the diagnosis has chosen for the first rung of an ``auto`` ladder.
    """

    id: str
    opened: int
    rung: int = -1
    repeat: int = 0
    count: int = 1
    fired: int = 0
    attempted: int = -1
    position: int = -1
    seen: tuple[int, ...] = ()
    passed: int = -1
    reproduced: bool = False
    went_back: bool = False
    in_row: int = 0
    spent: bool = False
    observed: bool = False
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What is remembered per policy.

    Args:
        streak, fired: consecutive ticks with the trigger satisfied, and the last one (for `for:`).
        attempts: ticks of attempts, as far as the budget looks back.
        closed: tick at which the last incident ended (for `cooldown`).
        proven: rung that ended the last incident by leaving reproducible bad data out; the next one starts there.
        mode: a person's observe or enforce for this policy.
        remedy: of the incident that `proven` is about.
    """

    open: Open | None = None
    streak: int = 0
    fired: int = -2
    attempts: tuple[int, ...] = ()
    closed: int = -NEVER
    proven: int | None = None
    mode: Mode | None = None
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """All that the engine remembers. Survives rollbacks.

    Args:
        policies: in the order of the rules.
        opened: incidents opened so far; numbers the next.
        due: the tick at which the engine must be called even if nothing fires.
    """

    policies: tuple[PolicyState, ...]
    opened: int = 0
    due: int = NEVER
    mode: Mode = "enforce"

    @classmethod
    def new(cls, rules: Sequence[Policy], mode: Mode, opened: int = 0) -> State:
        """Nothing has happened yet; `opened` incidents of this run are numbered already."""
        return cls(tuple(PolicyState() for _ in rules), mode=mode, opened=opened)


@dataclass(frozen=True, slots=True)
class Opened:
    """A new incident. `attached_to`: another incident of this tick owns the repair."""

    incident: str
    policy: Policy
    detection: Detection
    observed: bool
    attached_to: str | None = None


@dataclass(frozen=True, slots=True)
class Fired:
    """An open incident's trigger was satisfied again; without a detection: how often it was in all."""

    incident: str
    count: int
    detection: Detection | None


@dataclass(frozen=True, slots=True)
class Attempted:
    """Actions to take now (in observe mode: to describe).

    Args:
        escalated: the attempt before failed.
        unavailable: ``(action, reason)`` of those left out.
    """

    incident: str
    policy: Policy
    detection: Detection
    rung: int
    repeat: int
    escalated: bool
    actions: tuple[ActionSpec, ...]
    unavailable: tuple[tuple[str, str], ...]
    would: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """An incident's end. `count` is exact."""

    incident: str
    policy: Policy
    status: Status
    count: int


Event = Opened | Fired | Attempted | Closed


@dataclass(slots=True)
class _Tick:
    """Working values of one call of `advance`."""

    rules: Sequence[Policy]
    moment: Moment
    world: World
    policies: list[PolicyState]
    opened: int
    mode: Mode
    remedies: Mapping[int, str]
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """What one policy would do now; the strongest candidate owns the tick."""

    index: int
    rung: int
    escalated: bool
    actions: tuple[ActionSpec, ...]
    unavailable: tuple[tuple[str, str], ...]

    @property
    def strength(self) -> int:
        return min((STRENGTH.get(a.type, OTHER) for a in self.actions), default=OTHER + 1)


def advance(
    state: State,
    rules: Sequence[Policy],
    moment: Moment,
    fired: Mapping[int, Detection],
    world: World,
    *,
    remedies: Mapping[int, str] = _NONE,
) -> tuple[State, list[Event]]:
    """One tick.

    Args:
        state: as the last call returned it; not changed.
        rules: the policies, always the same.
        fired: index of a policy -> the detection that satisfied its trigger in this tick.
        world: answers about the run; must not change it.
        remedies: index of a policy -> what the diagnosis of an incident that opens now has chosen.

    Returns:
        The new state, and events in the order in which they are to be journaled and done. At most one `Attempted`
        among them is not `would`.
    """
    t = _Tick(rules, moment, world, list(state.policies), state.opened, state.mode, remedies)
    for index in range(len(rules)):
        if index not in fired:
            _quiet(t, index)
    firing = [i for i in sorted(fired) if _persists(t, i)]
    candidates = []
    for index in firing:
        candidate = _fire(t, index, fired[index])
        if candidate is not None and (candidate.actions or not rules[index].rungs):
            candidates.append(candidate)
        elif candidate is not None:
            _exhaust(t, index, fired[index])
    if candidates:
        owner = min(candidates, key=lambda c: (c.strength, c.index))
        _own(t, owner, fired[owner.index])
    _attach(t, [c.index for c in candidates], fired)
    policies = tuple(t.policies)
    return replace(state, policies=policies, opened=t.opened, due=_due(rules, policies, moment)), t.events


def opens(state: State, rules: Sequence[Policy], moment: Moment, index: int, detection: Detection) -> bool:
    """If this policy's trigger is satisfied now, an incident opens that is acted on, and nothing is known about it."""
    p, rule = state.policies[index], rules[index]
    if state.mode == "observe" or (p.mode or rule.mode) == "observe":
        return False
    streak = p.streak + 1 if p.fired == moment.tick - 1 else 1
    waits = moment.tick - p.closed < rule.limits.cooldown and detection.detector != "non_finite"
    return (p.open is None or p.open.observed) and streak >= rule.for_ and not waits and p.proven is None


def set_mode(state: State, rules: Sequence[Policy], mode: Mode, policy: str | None) -> State:
    """A person's observe or enforce, for one policy or (None) for the whole run."""
    if policy is None:
        return replace(state, mode=mode)
    return replace(
        state,
        policies=tuple(
            replace(p, mode=mode) if rule.name == policy else p for rule, p in zip(rules, state.policies, strict=True)
        ),
    )


def end_all(state: State, rules: Sequence[Policy]) -> tuple[State, list[Event]]:
    """The run is over: closes what is open, without a verdict."""
    events = [_end(rule, p.open, "ended") for rule, p in zip(rules, state.policies, strict=True) if p.open is not None]
    return replace(state, policies=tuple(replace(p, open=None) for p in state.policies), due=NEVER), events


# ---- one policy, one tick


def _persists(t: _Tick, index: int) -> bool:
    """Counts consecutive firings; true once `for:` is reached."""
    p = t.policies[index]
    streak = p.streak + 1 if p.fired == t.moment.tick - 1 else 1
    t.policies[index] = replace(p, streak=streak, fired=t.moment.tick)
    return streak >= t.rules[index].for_


def _quiet(t: _Tick, index: int) -> None:
    """The trigger is silent: is its incident over?"""
    p, rule = t.policies[index], t.rules[index]
    if p.open is None or t.moment.tick < _quiet_until(rule, p.open) or t.moment.step < p.open.passed + rule.verify_for:
        return
    t.events.append(_end(rule, p.open, "resolved"))
    proven = p.proven
    remedy = p.remedy
    if p.open.rung >= 0 and p.open.reproduced and _leaves_data_out(ladder(rule, p.open.remedy)[p.open.rung]):
        proven, remedy = p.open.rung, p.open.remedy
    t.policies[index] = replace(p, open=None, closed=t.moment.tick, proven=proven, remedy=remedy)


def _end(rule: Policy, o: Open, status: Status) -> Event:
    """The last event of an incident. One out of remedies was closed before: only its exact count is left to say."""
    return Fired(o.id, o.count, None) if o.spent else Closed(o.id, rule, "observed" if o.observed else status, o.count)


def _quiet_until(rule: Policy, o: Open) -> int:
    return max(o.fired, o.attempted) + rule.verify_for


def _fire(t: _Tick, index: int, detection: Detection) -> _Candidate | None:
    """The trigger is satisfied. What would this policy do about it, if it owned the tick?"""
    p, rule, now = t.policies[index], t.rules[index], t.moment
    observed = t.mode == "observe" or (p.mode or rule.mode) == "observe"
    if p.open is not None and p.open.observed and not observed:  # a person wants it acted on from now on
        t.events.append(_end(rule, p.open, "observed"))
        p = t.policies[index] = replace(p, open=None, closed=-NEVER)
    if p.open is None:
        if now.tick - p.closed < rule.limits.cooldown and detection.detector != "non_finite":
            return None
        chosen = t.remedies.get(index, "" if p.proven is None else p.remedy)
        p = t.policies[index] = replace(
            p,
            open=Open(
                _incident_id(t.opened),
                now.tick,
                fired=now.tick,
                passed=now.step,
                seen=(now.position,),
                reproduced=rule.auto and chosen == "skip" and index in t.remedies,  # by the diagnosis
                observed=observed,
                remedy=chosen,
            ),
        )
        t.opened += 1
        assert p.open is not None
        if observed:
            t.events.append(Opened(p.open.id, rule, detection, observed=True))
            candidate = _candidate(t, index, 0, detection, escalated=False)
            if candidate.actions:
                t.events.append(
                    Attempted(
                        p.open.id,
                        rule,
                        detection,
                        candidate.rung,
                        0,
                        False,
                        candidate.actions,
                        candidate.unavailable,
                        would=True,
                    )
                )
            return None
        return _candidate(t, index, 0 if p.proven is None else p.proven, detection, escalated=False)
    o = replace(p.open, count=p.open.count + 1, passed=max(p.open.passed, now.step))
    t.events.append(Fired(o.id, o.count, detection))
    rung, escalated, o = _next_rung(rule, o, now, p.open.passed)
    o = replace(o, seen=(*o.seen, now.position)[-_SEEN:])
    t.policies[index] = replace(p, open=replace(o, fired=now.tick))
    if o.spent or observed:
        return None
    if escalated and p.proven is not None and p.open.rung == p.proven:
        t.policies[index] = replace(t.policies[index], proven=None, open=replace(o, fired=now.tick, reproduced=False))
        rung = int(rule.auto)  # what worked last time did not: this fault is another, so the ladder starts at its foot
    return _candidate(t, index, rung, detection, escalated=escalated)


def _next_rung(rule: Policy, o: Open, now: Moment, furthest: int) -> tuple[int, bool, Open]:
    """Which attempt is due after this firing, and did the one before fail?

    A fault on other data after a skip is no failure, as long as the run gets on: an in-place skip is followed by a
    quiet tick, a rollback gets clearly past `furthest`, the furthest step at which the fault was seen before.
    """
    if o.rung < 0:
        return 0, False, o
    if rule.repeats or o.attempted == now.tick:  # several optimizers may show one fault in one tick
        return o.rung, False, o
    rung = ladder(rule, o.remedy)[o.rung]
    if _replays(rung) and now.position in o.seen:
        o = replace(o, reproduced=True)
    if now.position == o.position:
        return o.rung + 1, True, replace(o, in_row=0)
    if _leaves_data_out(rung):
        got_on = now.step >= furthest + rule.verify_for if o.went_back else now.tick > o.fired + 1
        o = replace(o, in_row=0 if got_on else o.in_row + 1)
        most = _SHARD if o.reproduced and not o.went_back else _SKIPS_IN_A_ROW
        return (o.rung + 1, True, replace(o, in_row=0)) if o.in_row >= most else (o.rung, False, o)
    remedies = [a for a in rung if a.action.remedy]
    if remedies and all(a.action.repeatable for a in remedies):
        return o.rung, False, o
    return o.rung + 1, True, o


def _candidate(t: _Tick, index: int, rung: int, detection: Detection, *, escalated: bool) -> _Candidate:
    """The first rung from `rung` on of which something is possible; none of it left: a candidate without actions."""
    p, rule = t.policies[index], t.rules[index]
    assert p.open is not None
    proven = p.open.reproduced or (p.open.rung < 0 and rung == p.proven)
    left_out: list[tuple[str, str]] = []
    if _budget_left(rule, p, t.moment.tick):
        rungs = ladder(rule, p.open.remedy)
        for r in range(rung, len(rungs)):
            possible: list[ActionSpec] = []
            for spec in _in_place(rungs[r], t.world) if proven else rungs[r]:
                reason = t.world.unavailable(spec, detection)
                if reason is None:
                    possible.append(spec)
                else:
                    left_out.append((spec.type, reason))
            if possible:
                return _Candidate(index, r, escalated, tuple(possible), tuple(left_out))
    last = (ActionSpec.of("stop"),) if rule.rungs and rule.on_exhausted == "stop" else ()
    return _Candidate(index, rule.rungs, escalated, last, tuple(left_out))


def _in_place(rung: Sequence[ActionSpec], world: World) -> Sequence[ActionSpec]:
    """A fault that reproduces on the same data with finite weights needs no rollback: leaving the step out is
    enough.
    """
    if any(_skips_offending(a) for a in rung) and world.state_finite():
        return [ActionSpec.of("skip_step") if _skips_offending(a) else a for a in rung]
    return rung


def _own(t: _Tick, owner: _Candidate, detection: Detection) -> None:
    """The owner's attempt, or its end if nothing is left to try."""
    p, rule, now = t.policies[owner.index], t.rules[owner.index], t.moment
    assert p.open is not None
    o = p.open
    if o.count == 1:
        t.events.append(Opened(o.id, rule, detection, observed=False))
    if not owner.actions:  # a policy that only tells
        t.policies[owner.index] = replace(p, open=replace(o, attempted=now.tick))
        return
    repeat = o.repeat + 1 if owner.rung == o.rung else 0
    t.events.append(
        Attempted(
            o.id, rule, detection, owner.rung, repeat, owner.escalated, owner.actions, owner.unavailable, would=False
        )
    )
    assumed = o.reproduced or (o.rung < 0 and owner.rung == p.proven)
    o = replace(
        o,
        rung=owner.rung,
        repeat=repeat,
        attempted=now.tick,
        position=now.position,
        reproduced=assumed,
        went_back=any(a.type == "rollback" for a in owner.actions),
    )
    t.policies[owner.index] = replace(p, open=o, attempts=(*_within(rule, p.attempts, now.tick), now.tick))
    if any(a.type == "stop" for a in owner.actions):
        t.events.append(Closed(o.id, rule, "stopped", o.count))
        t.policies[owner.index] = replace(t.policies[owner.index], open=replace(o, spent=True))


def _exhaust(t: _Tick, index: int, detection: Detection) -> None:
    """Out of remedies: said at once, whoever owns the tick."""
    p, rule = t.policies[index], t.rules[index]
    assert p.open is not None
    if p.open.count == 1:
        t.events.append(Opened(p.open.id, rule, detection, observed=False))
    t.events.append(Closed(p.open.id, rule, "exhausted", p.open.count))
    t.policies[index] = replace(p, open=replace(p.open, spent=True))


def _attach(t: _Tick, candidates: Sequence[int], fired: Mapping[int, Detection]) -> None:
    """Incidents opened in this tick that do not own it: they are told with the owner's and spend nothing."""
    owner = next((e.incident for e in t.events if isinstance(e, Attempted) and not e.would), None)
    told = {e.incident for e in t.events if isinstance(e, Opened)}
    for index in candidates:
        o = t.policies[index].open
        new = o is not None and o.opened == t.moment.tick and o.rung < 0 and o.count == 1
        if o is not None and new and o.id not in told:
            t.events.append(Opened(o.id, t.rules[index], fired[index], observed=False, attached_to=owner))


# ---- small questions


def _due(rules: Sequence[Policy], policies: Sequence[PolicyState], now: Moment) -> int:
    """When must the engine look again, even if nothing fires?"""
    return max(
        now.tick + 1,
        min(
            (_quiet_until(rule, p.open) for rule, p in zip(rules, policies, strict=True) if p.open is not None),
            default=NEVER,
        ),
    )


def _budget_left(rule: Policy, p: PolicyState, tick: int) -> bool:
    return rule.limits.max is None or len(_within(rule, p.attempts, tick)) < rule.limits.max


def _within(rule: Policy, attempts: tuple[int, ...], tick: int) -> tuple[int, ...]:
    if rule.limits.max is None:
        return ()
    if rule.limits.per is None:
        return attempts
    return tuple(a for a in attempts if tick - a < rule.limits.per)


def _leaves_data_out(rung: Sequence[ActionSpec]) -> bool:
    return any(a.action.leaves_data_out for a in rung)


def _replays(rung: Sequence[ActionSpec]) -> bool:
    return any(a.type == "rollback" and a.action.params.data == "replay" for a in rung)


def _skips_offending(spec: ActionSpec) -> bool:
    return spec.type == "rollback" and bool(spec.action.params.data == "skip_offending")


def _incident_id(number: int) -> str:
    return f"i{number + 1:04d}"
