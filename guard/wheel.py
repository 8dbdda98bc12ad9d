"""A person takes the wheel: requests left in `control/` are done at the next step and receipted in the journal."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from guard.errors import UsageError
from guard.incidents import control

if TYPE_CHECKING:
    from guard.guard import Guard

_LOOK = 0.5  # [s] between looks at a paused run's requests


def taken(guard: Guard) -> list[control.Request | str]:
    """What people have asked for since the last step, taken out of `control/`."""
    return control.take(guard.run_dir, guard.clock.time())


def obey(guard: Guard, requests: Iterable[control.Request | str]) -> None:
    """Does what people have asked for. What cannot be done is refused with the reason."""
    for request in requests:
        if isinstance(request, str):
            guard.report.notice("warning", request)
            continue
        try:
            if request.refused:
                raise UsageError(request.refused)
            accepted, message = True, _do(guard, request)
        except UsageError as error:
            accepted, message = False, str(error)
        guard.report.request(request, accepted, message)


def ask_for_checkpoint(guard: Guard) -> None:
    """A signal asked for one: a request like any other, so that all ranks obey it."""
    disk = guard.policies.checkpoints.disk
    if not guard.live.ranks.rank and disk is not None:
        control.submit(guard.run_dir, control.Request("checkpoint", f"signal {disk.signal}"))


def wait_for_resume(guard: Guard) -> None:
    """A policy has paused the run: waits for a person, for no longer than it says. Requests are obeyed meanwhile; of
    several ranks, rank 0 looks and waits for all.
    """
    live, clock, never = guard.live, guard.clock, threading.Event()
    assert live.paused_for is not None
    start, incident = clock.monotonic(), live.incident
    end = start + live.paused_for
    while True:
        left, requests = end - clock.monotonic(), []
        if not live.ranks.rank and left > 0:
            clock.wait(never, min(_LOOK, left))
            requests = taken(guard) if guard.reachable else []
        left, requests = live.ranks.broadcast((left, requests))
        obey(guard, requests)
        if left <= 0 or live.resumed_by is not None or live.stopping or guard.mode == "observe":
            break
    why = (
        f"resumed by {live.resumed_by}"
        if live.resumed_by is not None
        else "the run was stopped"
        if live.stopping
        else "the run is in observe mode"
        if guard.mode == "observe"
        else "nobody resumed it in time"
    )
    guard.report.write(
        "incident_evidence",
        incident=incident,
        evidence={"pause": {"seconds": round(clock.monotonic() - start, 3), "ended": why}},
    )


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
        case "resume":
            if guard.live.paused_for is None:
                raise UsageError("the run is not paused")
            guard.live.resumed_by = request.author
            return "the run goes on"
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
        elif result.type == "warmup_lr":
            guard.live.undo_warmup()
            changes["warmup"] = "off"
        elif result.type == "accumulate":
            before, after = result.changes["windows_per_update"]
            guard.live.undo_accumulation(after // before)
            changes["windows_per_update"] = guard.live.accumulation.factor
        elif result.type == "loss_scale":
            guard.live.loss_scale.undo()
            changes["loss_scale"] = "the scaler's own affair"
    guard.report.write("undone", incident=incident.id, author=request.author, changes=changes)
    return "undone: " + ", ".join(f"{name.replace('_', ' ')} is {value}" for name, value in changes.items())


def _need_enforce(guard: Guard) -> None:
    if guard.mode == "observe":
        raise UsageError("the run is in observe mode: no checkpoints are kept and nothing is changed")
