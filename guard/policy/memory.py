"""What the engine remembers, as plain values: journaled, so that a crash loop does not forget its budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from guard.policy.engine import Open, PolicyState, State
from guard.policy.schema import Policy


def to_plain(state: State, rules: Sequence[Policy]) -> dict[str, Any]:
    """Numbers, texts and lists; policies about which there is nothing to remember are left out."""
    remembered = {
        rule.name: asdict(p) for rule, p in zip(rules, state.policies, strict=True) if p != PolicyState(fired=p.fired)
    }
    return {"opened": state.opened, "mode": state.mode, "policies": remembered}


def from_plain(plain: Mapping[str, Any], state: State, rules: Sequence[Policy]) -> State:
    """The state with what was remembered, for the policies that are still there under their name.

    Args:
        plain: what `to_plain` gave, perhaps under another policy file.
        state: a new one; its mode and numbering stay.
        rules: the policies in force.
    """
    known = plain["policies"]
    policies = tuple(
        _policy(known[rule.name], rule) if rule.name in known else p
        for rule, p in zip(rules, state.policies, strict=True)
    )
    due = 0 if any(p.open is not None for p in policies) else state.due
    return replace(state, policies=policies, opened=max(state.opened, plain["opened"]), due=due)


def _policy(plain: Mapping[str, Any], rule: Policy) -> PolicyState:
    incident = plain["open"]
    if incident is not None and incident["rung"] >= rule.rungs:  # the ladder has become shorter
        incident = None
    proven = plain["proven"] if (plain["proven"] or 0) < rule.rungs else None
    return PolicyState(
        open=None if incident is None else Open(**{**incident, "seen": tuple(incident["seen"])}),
        attempts=tuple(plain["attempts"]),
        closed=plain["closed"],
        proven=proven,
        mode=plain["mode"],
        remedy=plain.get("remedy", ""),
    )
