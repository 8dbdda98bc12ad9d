"""A policy set in plain sentences: what it will do, attempt by attempt."""

from __future__ import annotations

from typing import Literal

from guard.detectors import DETECTORS
from guard.policy import remedies
from guard.policy.schema import ActionSpec, Checkpoints, Disk, Limits, Policy, PolicySet, Receiver
from guard.policy.triggers import Leaf, Trigger
from guard.types import Mode
from guard.units import show_bytes


def explain(policies: PolicySet) -> list[str]:
    """One sentence per policy, then one for the checkpoints and one per receiver."""
    on_call = {r.escalate.to for r in policies.receivers.values() if r.escalate}
    return [
        *([_OBSERVING] if policies.mode == "observe" else []),
        *(_policy(policy, policy.mode or policies.mode) for policy in policies.policies),
        _checkpoints(policies.checkpoints),
        *(_receiver(name, r, on_call=name in on_call) for name, r in policies.receivers.items()),
        *([_DELIVER[policies.deliver]] if policies.receivers else []),
    ]


_DELIVER = {
    "auto": "Told by a daemon of this host if one says that it does, else by the training process.",
    "process": "Told by the training process.",
    "daemon": "Told by a daemon alone: without one nobody is told before the run ends.",
}
_OBSERVING = "This set only observes: what follows is reported as what would have been done, and nothing is touched."


def _policy(policy: Policy, mode: Mode | None) -> str:
    held = f" for {_steps(policy.for_)} in a row" if policy.for_ > 1 else ""
    observed = " (only reported: this policy observes)" if policy.mode == "observe" else ""
    clauses = [*_remedies(policy), *_limits(policy.limits)]
    if mode != "observe" and policy.diagnoses and not policy.auto and policy.examined:
        clauses.insert(0, f"find the cause, for at most {policy.max_seconds:g} s")
    if (policy.attempts or policy.auto) and _can_run_out(policy):
        clauses.append(f"when out of remedies, {'stop the run' if policy.on_exhausted == 'stop' else 'notify'}")
    return f"{policy.name} ({policy.severity}): on {_trigger(policy.trigger)}{held}{observed}: {'; '.join(clauses)}."


def _can_run_out(policy: Policy) -> bool:
    """A ladder that ends in `stop` ends there, unless its budget is spent before."""
    stops = bool(policy.attempts) and any(spec.type == "stop" for spec in policy.attempts[-1])
    return policy.limits.max is not None or not (policy.repeats or stops)


def _remedies(policy: Policy) -> list[str]:
    if policy.auto:
        seconds = f"for at most {policy.max_seconds:g} s"
        clauses = [f"first, find the cause, {seconds}, and take its remedy ({remedies.TOLD})"]
        for i, specs in enumerate(policy.attempts):
            clauses.append(f"if {'that fails' if i else 'there is none or it fails'}, {_rung(specs)}")
        return clauses
    if not policy.attempts:
        return ["tell, and do nothing"]
    if policy.repeats:
        return [f"{_rung(policy.attempts[0])}, every time"]
    first, *others = policy.attempts
    return [f"first, {_rung(first)}" if others else _rung(first), *(f"if that fails, {_rung(rung)}" for rung in others)]


def _rung(specs: tuple[ActionSpec, ...]) -> str:
    *others, last = (spec.action.describe() for spec in specs)
    return f"{', '.join(others)}, and {last}" if others else last


def _limits(limits: Limits) -> list[str]:
    clauses = []
    if limits.max is not None:
        per = f"per {_steps(limits.per)}" if limits.per else "in the whole run"
        clauses.append(f"at most {limits.max} attempt{'s' if limits.max > 1 else ''} {per}")
    if limits.cooldown:
        clauses.append(f"after an incident, no new one for {_steps(limits.cooldown)}")
    return clauses


def _trigger(trigger: Trigger, *, inner: bool = False) -> str:
    if isinstance(trigger, Leaf):
        return _fault(trigger)
    word = " and " if type(trigger).__name__ == "All" else " or "
    text = word.join(_trigger(part, inner=True) for part in trigger.of)
    return f"[{text}]" if inner and len(trigger.of) > 1 else text


def _fault(leaf: Leaf) -> str:
    """``loss spike (loss far above its recent robust baseline; threshold 8.0)``."""
    name, what = _page(leaf.type)
    given = [
        f"{key} {getattr(leaf.params, key)}"
        for key in type(leaf.params).model_fields
        if key in leaf.params.model_fields_set
    ]
    details = "; ".join([*([what] if what else []), *([", ".join(given)] if given else [])])
    return f"{name} ({details})" if details else name


def _page(type_: str) -> tuple[str, str]:
    """Name and explanation from the first line of a detector's docstring, ``Name: explanation.``"""
    name, colon, what = DETECTORS.page(type_).partition("\n")[0].rstrip(".").partition(": ")
    return (name[:1].lower() + name[1:], what) if colon else (type_.replace("_", " "), name)


def _checkpoints(checkpoints: Checkpoints) -> str:
    return (
        f"Checkpoints: {_every(checkpoints.every)} in memory, the last {checkpoints.keep} good ones in at most "
        f"{checkpoints.memory * 100:g} % of free memory, good after {_steps(checkpoints.probation)} without a fault"
        f"{_disk(checkpoints.disk)}."
    )


def _disk(disk: Disk | None) -> str:
    if disk is None:
        return "; none on disk"
    bound = f" in at most {show_bytes(disk.max_bytes)}" if disk.max_bytes else ""
    asked = f"; {disk.signal} asks for one now" if disk.signal else ""
    return (
        f"; on disk in {disk.dir!r} {_every(disk.every)}, the last {disk.keep} good ones and up to {disk.keep} older "
        f"ones{bound}{asked}"
    )


def _every(interval: float | Literal["auto"]) -> str:
    if interval == "auto":
        return "as often as 0.5 % of the run's time allows"
    return f"every {_steps(interval) if isinstance(interval, int) else _time(interval)}"


def _receiver(name: str, receiver: Receiver, *, on_call: bool) -> str:
    where = f" {receiver.channel}" if receiver.channel else ""
    mention = f", calling {receiver.mention} when things get worse" if receiver.mention else ""
    remind = f", reminding every {_time(receiver.remind_every)}" if receiver.remind_every else ""
    call = ""
    if receiver.escalate:
        call = f", calling {receiver.escalate.to} too when nobody answers for {_time(receiver.escalate.after)}"
    ends = ", and of starts and ends of the run" if receiver.lifecycle else ""
    off = f"; switched off: {receiver.off_reason}" if receiver.off_reason else ""
    least = f"everything from {receiver.min_severity} up"
    what = f"{'what nobody answers elsewhere' if on_call else least}{ends}"
    return f"Tells {name} ({receiver.type}{where}) of {what}{mention}{remind}{call}{off}."


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _time(seconds: float) -> str:
    for size, unit in ((86400, "day"), (3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
