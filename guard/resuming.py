"""Going on where another process of this run was."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from guard.checkpoints import Snapshot
from guard.errors import RunDirError
from guard.incidents import IncidentLog

if TYPE_CHECKING:
    from guard.guard import Guard

_LINES = 20  # of a changed policy that are shown


def check(path: Path, before: IncidentLog, resume: str) -> bool:
    """Is there a run in `path` to go on with?

    Args:
        before: what its journal says.
        resume: auto, must, never, or the directory of another run.

    Raises:
        RunDirError: that run has ended, or there is none although it is a must.
    """
    if resume == "never":
        return False
    ended = before.finished["status"] if before.finished is not None else ""
    if ended in ("finished", "stopped"):
        again = f"`guard resume {path}` lets it go on; or " if ended == "stopped" else ""
        raise RunDirError(
            f"the run in {path} has {ended}; {again}give this one another run_dir, or say resume='never' to begin anew "
            "there, or resume=PATH in another run_dir to go on from a checkpoint of it"
        )
    if resume == "must" and not before.run:
        raise RunDirError(f"resume='must', and there is no run in {path} to go on with")
    return bool(before.run)


def go_on(guard: Guard, before: IncidentLog, resume: str, *, same_run: bool) -> set[str]:
    """Takes up what outlives a process, and the newest sound checkpoint, if there is one.

    Args:
        guard: new, before its first step.
        before: what the journal said when this process began.
        resume: as in `check`.
        same_run: there is a run to go on with in the guard's own directory.

    Returns:
        Ids of the incidents that are still open.

    Raises:
        RunDirError: it is a must, and there is no sound checkpoint.
        CheckpointError: they cannot be read, or are of another model.
    """
    open_incidents: set[str] = set()
    if same_run and before.memory is not None:
        open_incidents = guard.responder.recall(before.memory)
    elsewhere = None if resume in ("auto", "must", "never") else Path(resume)
    if not same_run and elsewhere is None:
        return open_incidents
    durable, where, why = guard.boundary.durable, elsewhere or guard.run_dir, ""
    if durable is not None:
        where = where if any(where.glob("step-*")) else where / durable.subfolder
        loading = durable.load(None if elsewhere is None else where)
        guard.refused = loading.refused
        if loading.portable is not None:
            _take_up(guard, durable.take_up(loading))
            return open_incidents
        why = "".join(f"\n  {name}: {reason}" for name, reason in loading.refused)
    if elsewhere is not None or resume == "must":
        why = why or ("" if durable else "; the policy keeps none on disk (checkpoints.disk)")
        raise RunDirError(f"there is no sound checkpoint to go on from in {where}{why}")
    if durable is not None:
        guard.files.cut_signals(0)  # it begins at tick 0 once more
    return open_incidents


def _take_up(guard: Guard, snapshot: Snapshot) -> None:
    """Goes on from `snapshot`, which another process of this run has taken."""
    context = snapshot.context
    guard.history.rows.extend(context["rows"])
    guard.history.flagged.extend(context["flagged"])
    guard.live.resume(snapshot)
    guard.boundary.take_up(snapshot)
    guard.files.cut_signals(snapshot.tick, context["rows"])
    guard.supply.first_pass, guard.supply.taking_up = context["place"].pass_number, True
    guard.resumed_from = f"step-{snapshot.step}"


def policy_change(run_dir: Path, now: str) -> str | None:
    """How the policy differs from the one that the run had before, or None."""
    try:
        before = (run_dir / "policy.yaml").read_text(encoding="utf-8")
    except OSError:
        return None
    if before == now:
        return None
    lines = list(difflib.unified_diff(before.splitlines(), now.splitlines(), "before", "now", n=1, lineterm=""))
    more = f"\n... and {len(lines) - _LINES} more lines" if len(lines) > _LINES else ""
    return "the policy is not the one this run had before:\n" + "\n".join(lines[:_LINES]) + more
