"""`guard.attach`: from a training script's objects to a guard at work."""

from __future__ import annotations

import atexit
import os
import sys
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from guard import exiting, home, resuming, supervised
from guard.checkpoints import Stateful
from guard.clock import SystemClock
from guard.errors import RunDirError, TrainingStopped, UsageError
from guard.guard import Guard
from guard.incidents import IncidentLog, read_journal
from guard.incidents.rundir import holder_alive
from guard.notify import Aside, Courier, ReceiverSpec
from guard.policy import PolicySet, dump, load
from guard.ranks import Ranks
from guard.receivers import receiver_specs
from guard.types import Mode

# Weak on both sides: a guard holds its optimizers, and a closed one must not be kept alive by this table.
_ATTACHED: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.ref[Guard]] = weakref.WeakKeyDictionary()


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    policy: str | os.PathLike[str] | Mapping[str, Any] | PolicySet = "default",
    scheduler: Any = None,
    scaler: Any = None,
    run_dir: str | os.PathLike[str] | None = None,
    extra: Mapping[str, Stateful] | None = None,
    resume: Literal["auto", "must", "never"] | str | os.PathLike[str] = "auto",
    receivers: Sequence[ReceiverSpec] | None = None,
    mode: Mode | None = None,
) -> Guard:
    """Puts a guard around ``optimizer.step``. One line in a training script is enough.

    Args:
        model: what is trained; a container (``nn.ModuleList``) for several.
        optimizer: one, or several (GANs); the first is the clock.
        policy: name of a shipped policy, path of a YAML file, a dict, or a `PolicySet`.
        scheduler: learning rate scheduler(s), rolled back with the rest.
        scaler: the `torch.amp.GradScaler`, if the loop uses one.
        run_dir: where the journal goes; default: ``GUARD_RUN_DIR``, else a new ``runs/<script>-<job or date-pid>``.
        extra: name -> anything with `state_dict` and `load_state_dict` that is to be rolled back too (an EMA).
        resume: ``auto`` goes on with an unfinished run in `run_dir`, from its newest sound checkpoint on disk if the
            policy keeps any; ``must`` is an error where it cannot; ``never`` begins anew in the same directory; the
            directory of another run begins a new one with that run's newest checkpoint.
        receivers: in place of the policy's; ``[]`` tells nobody, the journal is written all the same.
        mode: ``observe`` or ``enforce``, in place of the policy's.

    Returns:
        The guard; also a context manager. It closes itself at exit. From now on a `TrainingStopped` that nobody catches
        ends the process with exit code 76.

    Raises:
        PolicyError: the policy cannot be loaded; lists every mistake with file, line and column.
        UsageError: an argument cannot be what it must be.
        RunDirError: another live guard owns `run_dir`, its run has ended, or there is nothing to go on with.
        ChangedModelError: the checkpoint is of another model or optimizer; lists the differences.
        CheckpointError: the checkpoints cannot be read.
        RankLostError: several processes train together, and not all of them attach.
    """
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    schedulers = [] if scheduler is None else list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler]
    named = {f"scheduler {i}": s for i, s in enumerate(schedulers)}
    _check(model, optimizers, {**named, "scaler": scaler, **(extra or {})}, mode)
    policies = load(policy)
    for o in optimizers:
        earlier = _ATTACHED.pop(o, None)
        if earlier is not None and (replaced := earlier()) is not None:
            replaced.close(timeout=1.0)
    ranks = Ranks.attach()
    path, before, same_run = _where(ranks, run_dir, str(resume))
    chosen: Mode = mode or (before.asked_mode if same_run else None) or policies.mode or "enforce"
    clock = SystemClock()
    if scaler is not None and not scaler.is_enabled():
        scaler = None
    guard = Guard(
        model,
        optimizers,
        policies,
        schedulers=schedulers,
        scaler=scaler,
        run_dir=path,
        extra=dict(extra or {}),
        mode=chosen,
        clock=clock,
        earlier=before,
        ranks=ranks,
    )
    try:
        _begin(guard, before, str(resume), same_run=same_run)
    except BaseException:
        guard.let_go()
        raise
    for o in optimizers:
        _ATTACHED[o] = weakref.ref(guard)
    for advice in _advice(optimizers, scheduled=bool(schedulers)):
        guard.report.notice("warning", advice)
    if not ranks.rank:
        _tell(guard, receivers if receivers is not None else receiver_specs(policies), clock)
        supervised.lead_to(guard.run_dir)
        _announce(guard)
    exiting.install()
    supervised.show_stacks_on_quit()
    atexit.register(_close_at_exit, weakref.ref(guard))
    return guard


def _where(ranks: Ranks, run_dir: Any, resume: str) -> tuple[Path, IncidentLog, bool]:
    """The run directory, what its journal says, and whether the run there goes on. Rank 0 looks, for all ranks.

    Raises:
        RunDirError: the directory cannot be used; on all ranks.
    """
    found: tuple[Path, IncidentLog, bool] | Exception | None = None
    if not ranks.rank:
        try:
            path = Path(run_dir or os.environ.get(supervised.RUN_DIR) or _new_run_dir()).absolute()
            before = IncidentLog(read_journal(path))
            if ranks.world > 1 and holder_alive(path, SystemClock()):
                raise RunDirError(f"{path} belongs to a running guard; give this run its own run_dir, or end that one")
            found = path, before, resuming.check(path, before, resume)
        except Exception as error:  # noqa: BLE001 - the others wait for rank 0's word; raised on all of them
            found = error
    found = ranks.broadcast(found)
    if isinstance(found, Exception):
        raise found
    assert found is not None, "rank 0 has looked"
    return found


def _begin(guard: Guard, before: IncidentLog, resume: str, *, same_run: bool) -> None:
    """The run begins, or goes on where an earlier process was."""
    guard.report.files.segment = before.segments if same_run else 0
    open_incidents = resuming.go_on(guard, before, resume, same_run=same_run)
    policies, text = guard.policies, dump(guard.policies)
    change = resuming.policy_change(guard.run_dir, text) if same_run else None
    guard.report.started(
        run=guard.run_dir.name,
        mode=guard.mode,
        policy=policies.name,
        policy_text=text,
        going_on=open_incidents,
    )
    if change is not None:
        guard.report.notice("warning", change)
    if guard.resumed_from is not None:
        guard.report.write("resumed", checkpoint=guard.resumed_from)
    if guard.refused:
        guard.report.refused(guard.refused, guard.resumed_from or "the beginning")


def _advice(optimizers: Sequence[torch.optim.Optimizer], *, scheduled: bool) -> list[str]:
    """What can be said of the settings before the first step."""
    found = []
    for group in (g for o in optimizers for g in o.param_groups):
        dtypes = {p.dtype for p in group["params"] if p.is_floating_point()}
        eps = group.get("eps")
        for dtype in dtypes if isinstance(eps, float) and eps > 0.0 else ():
            if float(torch.tensor(eps, dtype=dtype)) == 0.0:
                found.append(
                    f"the optimizer's eps of {eps:g} is 0 in {dtype}, so that it divides by 0; 1e-4 is usual there"
                )
        if group.get("lr") == 0.0 and not scheduled:
            found.append("the learning rate is 0 and attach was given no scheduler: nothing will be learnt")
    return list(dict.fromkeys(found))


def _tell(guard: Guard, receivers: Sequence[ReceiverSpec], clock: SystemClock) -> None:
    """Starts the couriers, which follow the journal in the background. What a daemon may tell is left to one if the
    policy says so; the console is this process's own, and has an outbox of its own then."""
    consoles = [r for r in receivers if r.type == "console"]
    others = [r for r in receivers if r.type != "console"]
    if all(r.off_reason for r in others):
        _courier(guard, receivers, clock)
        return
    place = home.Home(path, clock) if (path := home.where()) else None
    _courier(guard, others, clock, aside=Aside(guard.policies.deliver, place, clock), home=place)
    state = home.local_state() if home.on_shared_disk(guard.run_dir) else guard.run_dir
    _courier(guard, consoles, clock, state=state / "console")


def _courier(guard: Guard, receivers: Sequence[ReceiverSpec], clock: SystemClock, **how: Any) -> None:
    if not receivers:
        return
    from guard.notify.evidence import make_in_subprocess

    courier = Courier(guard.run_dir, receivers, clock=clock, plot=make_in_subprocess, **how)
    courier.start()
    guard.report.listeners.append(courier.wake)
    guard.on_close.append(courier.close)


def _announce(guard: Guard) -> None:
    """Tells the daemons where the run is. Without one, or without a home, the run is none the worse."""
    if (path := home.where()) is None:
        return
    try:
        home.Home(path, guard.clock).announce_run(
            guard.run_dir,
            guard.run_dir.name,
            world=guard.live.ranks.world,
            supervisor=supervised.by(),
            restarter=supervised.other_restarter(os.environ),
        )
    except OSError as error:
        guard.report.notice(
            "info", f"the run is not announced in {path} ({error.strerror}), so that no daemon will watch it"
        )


def _close_at_exit(reference: weakref.ref[Guard]) -> None:
    """An uncaught exception has been printed by now, which leaves `sys.last_type` behind."""
    guard = reference()
    if guard is not None:
        kind = getattr(sys, "last_type", None)
        crashed = kind is not None and not issubclass(kind, TrainingStopped)
        guard.close(crashed=crashed and (getattr(sys, "last_value", None) or True))


def _check(model: Any, optimizers: Sequence[Any], state: Mapping[str, Any], mode: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if not optimizers or not all(isinstance(o, torch.optim.Optimizer) for o in optimizers):
        raise UsageError(
            "optimizer must be a torch.optim.Optimizer or a list of them, not "
            f"{', '.join(type(o).__name__ for o in optimizers) or 'an empty list'}"
        )
    for name, thing in state.items():
        if thing is not None and not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise UsageError(
                f"{name} ({type(thing).__name__}) has no state_dict/load_state_dict, so it cannot be rolled back"
            )
        try:
            _ = None if thing is None else thing.state_dict()
        except Exception as error:
            raise UsageError(f"{name}: its state_dict() failed: {type(error).__name__}: {error}") from error
    if mode not in (None, "observe", "enforce"):
        raise UsageError(f"mode must be 'observe' or 'enforce', not {mode!r}")
    held = {id(p) for p in model.parameters()}
    if not any(id(p) in held for o in optimizers for g in o.param_groups for p in g["params"]):
        warnings.warn("the optimizer holds none of the model's parameters; is it the right model?", stacklevel=3)


def _new_run_dir() -> Path:
    job = os.environ.get("SLURM_JOB_ID") or f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return Path("runs") / f"{Path(sys.argv[0] or 'python').stem or 'python'}-{job}"
