"""A person takes the wheel: requests left in `control/` are done at the next step and receipted in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guard.errors import UsageError
from guard.incidents import control

if TYPE_CHECKING:
    from guard.guard import Guard


def obey(guard: Guard) -> None:
    """Does what people have asked for since the last step. What cannot be done is refused with the reason."""
    for request in control.take(guard.run_dir):
        if isinstance(request, str):
            guard.report.notice("warning", request)
            continue
        try:
            accepted, message = True, _do(guard, request)
        except UsageError as error:
            accepted, message = False, str(error)
        guard.report.request(request, accepted, message)


def _do(guard: Guard, request: control.Request) -> str:
    match request.verb:
        case "observe" | "enforce" as mode:
            if request.policy is not None and request.policy not in guard.policy_names:
                raise UsageError(f"there is no policy {request.policy!r}; there are: {', '.join(guard.policy_names)}")
            guard.set_mode(mode, request.policy)
            guard.report.write("mode", mode=mode, author=request.author, policy=request.policy)
            return f"{request.policy or 'the run'} is now in mode {mode}"
        case "undo":
            return _undo(guard, request)
        case "checkpoint":
            _need_enforce(guard)
            guard.boundary.checkpoint_now()
            return "a checkpoint is taken before the next step"
        case "rollback":
            _need_enforce(guard)
            return _rollback(guard, request)
        case "stop":
            guard.live.stop("none", guard.tick)
            guard.report.stopped_by(request.author)
            return "the run is stopped"


def _rollback(guard: Guard, request: control.Request) -> str:
    live = guard.live
    if request.to not in ("last_good", "previous", "start", "best"):
        raise UsageError(f"there is no checkpoint {request.to!r}; allowed: last_good, previous, start, best")
    if why := live.can_rollback(request.to, live.tick):
        raise UsageError(why)
    changes = live.rollback(request.to, "replay" if live.can_replay() else "advance", live.tick)
    guard.responder.refill()
    return f"went back from step {changes['from_step']} to step {changes['to_step']}"


def _undo(guard: Guard, request: control.Request) -> str:
    """Takes an incident's standing changes (learning rate multiplier, precision) out of force."""
    incident = guard.report.log.incidents.get(request.incident or "")
    if incident is None:
        raise UsageError(f"there is no incident {request.incident!r}")
    standing = [r for a in incident.attempts for r in a.results if r.standing]
    if not standing:
        raise UsageError(f"nothing that incident {incident.id} changed is still in force")
    changes: dict[str, Any] = {}
    for result in standing:
        if result.type == "scale_lr":
            before, after = result.changes["lr_multiplier"]
            guard.live.undo_lr(after / before)
            changes["lr_multiplier"] = guard.live.lr_multiplier
        elif result.type == "clip":
            guard.live.undo_clip()
            changes["clip"] = "off"
        elif result.type == "precision":
            guard.live.precision.clear()
            changes["precision"] = "as the loop says"
    guard.report.write("undone", incident=incident.id, author=request.author, changes=changes)
    return "undone: " + ", ".join(f"{name.replace('_', ' ')} is {value}" for name, value in changes.items())


def _need_enforce(guard: Guard) -> None:
    if guard.mode == "observe":
        raise UsageError("the run is in observe mode: no checkpoints are kept and nothing is changed")
