"""How a run ends: by itself, by an exception, because a policy stopped it, or because the machine is taken away."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from guard.errors import RankLostError, TrainingStopped
from guard.preemption import GRACE, Preemption

if TYPE_CHECKING:
    from guard.guard import Guard

_DYING = 2.0  # [s] after an exception, for another rank to be gone that has caused it
_FLUSH = 0.2  # [s] of `close` that are left for the disk


def close(guard: Guard, timeout: float, *, crashed: BaseException | bool, preempted: bool) -> None:
    """See `Guard.close`.

    Args:
        preempted: the machine is taken away; a checkpoint is written first.
    """
    live, report, durable = guard.live, guard.report, guard.boundary.durable
    guard.doing = "end"
    guard.examining.give_up()
    if preempted:
        report.write("preempted", durable=True, checkpoint=guard.boundary.save_last(GRACE / 2))
    elif guard.acting and guard.attached and not live.stopping and crashed is False:
        _verify(guard)
    if crashed is not False and (gone := live.ranks.gone(_DYING)):
        report.trouble("rank_lost", f"{gone}, and the others cannot go on without it", "ranks", "critical")
    live.errands.close(timeout)
    guard.report_errands()
    if not preempted:  # else what is open is taken up by the next process
        guard.responder.end()
    if live.feed is not None:
        live.feed.release()
    if durable is not None:
        durable.close(timeout)
    status = (
        "preempted" if preempted else "stopped" if live.stopping else "crashed" if crashed is not False else "finished"
    )
    report.finished(status, guard.summary(), crashed if isinstance(crashed, BaseException) else None)
    guard.detach()
    live.ranks.close()
    until = guard.clock.monotonic() + timeout
    for end in guard.on_close:
        end(max(0.0, timeout - _FLUSH))
    report.files.close(max(_FLUSH, until - guard.clock.monotonic()))


def _verify(guard: Guard) -> None:
    """The last update is checked too; nothing that comes of it may raise here."""
    try:
        guard.cross_boundary()
        guard.verify_end()
    except (TrainingStopped, RankLostError):
        pass  # it is over anyway, and journaled
    except Exception as error:  # noqa: BLE001 - a guard that fails must not kill the run
        guard.give_up(error)


def let_go(guard: Guard) -> None:
    """The run does not begin after all: everything is put back, and the directory is free again."""
    guard.detach()
    if guard.boundary.durable is not None:
        guard.boundary.durable.store.close(_FLUSH)
    guard.live.ranks.close()
    guard.report.files.close(_FLUSH)


def end_preempted(guard: Guard, preemption: Preemption) -> None:
    """At a boundary, after SIGTERM: the state of now is written, and the process ends."""
    if not guard.closed:
        preemption.in_time()
        guard.close(preempted=True)
        preemption.end()


def save_late(guard: Guard) -> None:
    """No boundary came in time (a long evaluation, a hang): the last snapshot in memory is what there is."""
    durable, ring = guard.boundary.durable, guard.live.ring
    snapshot = ring.candidate or ring.newest()
    if guard.live.ranks.world > 1 or durable is None or snapshot is None or os.getpid() != guard.pid:
        return  # it takes all ranks to write one
    saved = durable.save_last(snapshot, GRACE / 3)
    guard.report.write("preempted", durable=True, checkpoint=f"step-{snapshot.step}" if saved else None)
