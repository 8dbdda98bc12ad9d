"""When the summary of all runs is due, and that it is told once: also if nobody was there then, or Slack was down."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from apscheduler.triggers.cron import CronTrigger

from guard.incidents import read_story
from guard.notify import ReceiverSpec
from guard.notify.digest import post_digest, render_digest
from guard.notify.outbox import Outbox
from guard.notify.turn import Limiter

if TYPE_CHECKING:
    from guard.daemon.service import Daemon

_DAY = 86400.0
_SETTLED = 30.0  # [s] until a daemon knows which runs are its own to tell of
_MOST = 10_000  # times looked through at most


class Digests:
    """Of one daemon.

    Args:
        receivers: by name, the daemon's own.
    """

    def __init__(self, daemon: Daemon, limiter: Limiter, receivers: Callable[[], list[ReceiverSpec]]) -> None:
        self._daemon, self._limiter, self._receivers = daemon, limiter, receivers
        self._box: Outbox | None = None

    def look(self) -> None:
        """Tells the latest one that is due, if there is one. Whom it did not reach, it reaches another time."""
        daemon, settings = self._daemon, self._daemon.settings.digest
        now = daemon.clock.time()
        if settings is None or now - daemon.began < _SETTLED:
            return
        last, was_told = daemon.store.last_digest(now)
        due = latest(settings.trigger(), last, now)
        if due is None:
            return
        since = last if was_told else due - _DAY
        runs = [read_story(w.path) for w in daemon.watched() if daemon.cares_for(w)]
        message = render_digest(runs, since, due)
        if self._box is None:
            self._box = Outbox(daemon.state / "digests.db")
        wanted = [s for s in self._receivers() if (not settings.to or s.name in settings.to) and not s.off_reason]
        how: dict[str, Any] = {"key": f"{due:.0f}", "box": self._box, "clock": daemon.clock, "limiter": self._limiter}
        told = [post_digest(spec, message, say=daemon.say, **how) for spec in wanted]
        if all(told):
            daemon.store.digest_told(due)

    def close(self) -> None:
        if self._box is not None:
            self._box.release()
            self._box.close()


def latest(trigger: CronTrigger, last: float, now: float) -> float | None:
    """The latest time after `last` and up to `now` [s since the epoch] at which it was due; None if it was not."""
    found, before = None, datetime.fromtimestamp(last, timezone.utc)
    for _ in range(_MOST):
        following = trigger.get_next_fire_time(before, before)
        if following is None or following.timestamp() > now:
            break
        if following.timestamp() > last:
            found = following.timestamp()
        before = following
    return found
