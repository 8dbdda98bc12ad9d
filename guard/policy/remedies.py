"""What is done about a cause: the rung of the ladder that `attempts: auto` stands for."""

from __future__ import annotations

from typing import Any

from guard.policy.schema import ActionSpec, Policy

Rung = tuple[ActionSpec, ...]

_BACK = ("rollback", {"to": "last_good", "data": "replay"})
_SHORTER = ("clip", {"max_norm": "auto", "lasts": 1000})
# Remedy (guard.incidents.diagnose.Remedy) -> its actions.
_REMEDIES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "bf16": [_BACK, ("precision", {"dtype": "bf16"})],
    "fp32": [_BACK, ("precision", {"dtype": "fp32"})],
    "skip": [("rollback", {"to": "last_good", "data": "skip_offending"})],
    "clip": [_BACK, _SHORTER],
    "halve": [_BACK, _SHORTER, ("scale_lr", {"factor": 0.5})],
    "quarter": [_BACK, _SHORTER, ("scale_lr", {"factor": 0.25})],
    "slower": [_BACK, ("scale_lr", {"factor": 0.1})],
    "replay": [_BACK],
    "stop": [("stop", {"restore": "last_good"})],
}
TOLD = (
    "precision: go back and switch to BF16, or else FP32; a batch: leave it out; learning rate: go back and clip, or "
    "else with the largest share of it that helps; a damaged state, or transient: go back; "
    "model or code: stop, if critical"
)


def ladder(policy: Policy, remedy: str) -> tuple[Rung, ...]:
    """The rungs of one incident: what the diagnosis has chosen (nothing, if it knows no remedy), then the policy's."""
    return (_rung(policy, remedy), *policy.attempts) if policy.auto else policy.attempts


def _rung(policy: Policy, remedy: str) -> Rung:
    if remedy == "stop" and policy.severity != "critical":
        return ()
    return tuple(ActionSpec.of(type_, **params) for type_, params in _REMEDIES.get(remedy, ()))
