"""The daemon's couriers: one a run, each a hand's work for a moment when its run has news or something is due."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guard import home
from guard.daemon.digests import Digests
from guard.errors import PolicyError
from guard.notify import Courier, Escalation, ReceiverSpec
from guard.notify.evidence import make_in_subprocess
from guard.notify.turn import Limiter
from guard.policy import PolicySet, load
from guard.receivers import receiver_specs

if TYPE_CHECKING:
    from guard.daemon.service import Daemon
    from guard.daemon.watched import Watched

_RARELY = 60.0  # [s] at the latest between two passes of a courier
_SOON = 1.0


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run's couriers are.

    Args:
        waiting: incidents, over all receivers, of which something is still to be told.
        waiting_since: seconds since the epoch, or None.
        why: the latest failures.
    """

    waiting: int = 0
    waiting_since: float | None = None
    why: tuple[str, ...] = ()


@dataclass(slots=True)
class _Post:
    """One run's courier, and when it is due."""

    courier: Courier
    lines: int = -1
    next_at: float = 0.0
    busy: Future[None] | None = None
    standing: Standing = Standing()


class Telling:
    """Of all runs.

    Args:
        hands: threads in which couriers work, so that one that waits does not hold the others.

    Attributes:
        told: messages sent or edited so far.
        last_success: when the last of them was [s since the epoch], or None.
    """

    def __init__(self, daemon: Daemon, hands: ThreadPoolExecutor) -> None:
        self._daemon, self._hands = daemon, hands
        self._posts: dict[str, _Post] = {}
        self._lock = threading.Lock()
        self.told, self.last_success = 0, None  # type: int, float | None
        self._own: list[ReceiverSpec] = []
        self._limiter = Limiter(daemon.clock)
        self.digests = Digests(daemon, self._limiter, lambda: self._own)
        self.renew()

    def renew(self) -> None:
        """The daemon's settings are others now."""
        settings = self._daemon.settings
        every = settings.remind_every
        found = receiver_specs(PolicySet(receivers=settings.receivers))
        self._own = [s if every is None else replace(s, remind_every=every) for s in found]
        with self._lock:
            posts, self._posts = self._posts, {}
        for post in posts.values():
            post.courier.close(0.0)

    # ---- couriers

    def go_on(self) -> None:
        """Sends those off whose run has news, or who have something due."""
        now = self._daemon.clock.monotonic()
        for watched in self._daemon.watched():
            if not self._daemon.tells(watched):
                continue
            post = self._post(watched)
            if (post.lines != watched.lines or now >= post.next_at) and (post.busy is None or post.busy.done()):
                post.lines = watched.lines
                post.busy = self._hands.submit(self._pass, post)

    def settle(self) -> None:
        """Waits for those that are under way."""
        for post in list(self._posts.values()):
            if post.busy is not None:
                post.busy.result()

    def _pass(self, post: _Post) -> None:
        clock = self._daemon.clock
        progress = post.courier.deliver_once()
        waiting = progress.waiting if progress.leader else 0
        since = (post.standing.waiting_since or clock.time()) if waiting else None
        post.standing = Standing(waiting, since, progress.failures)
        post.next_at = clock.monotonic() + (_RARELY if progress.next_try is None else min(_RARELY, progress.next_try))
        if progress.told:
            with self._lock:
                self.told += progress.told
                self.last_success = clock.time()

    def _post(self, watched: Watched) -> _Post:
        post = self._posts.get(watched.run.id)
        if post is None:
            shared = watched.aside is not None or not watched.here or home.on_shared_disk(watched.path)
            receivers = self._receivers(watched)
            courier = Courier(
                watched.path,
                receivers,
                clock=self._daemon.clock,
                state=self._daemon.state / "outboxes" if shared else None,
                beside=watched.aside,
                limiter=self._limiter,
                home=self._daemon.homes[0],
                escalate=self._escalate(receivers),
                plot=make_in_subprocess if watched.own else None,
                say=self._daemon.say,
            )
            post = _Post(courier)
            with self._lock:
                self._posts[watched.run.id] = post
        return post

    def _receivers(self, watched: Watched) -> list[ReceiverSpec]:
        """The run's own, as far as this process can tell them, and the daemon's."""
        found: list[ReceiverSpec] = []
        if watched.own:
            try:
                found = receiver_specs(load(watched.path / "policy.yaml"))
            except PolicyError as error:
                self._daemon.say(f"the receivers of {watched.path} are not known: {error.problems[0]}")
        # The console is the training process's own; and one that cannot be told here, its process tells.
        found = [s for s in found if s.type != "console" and not s.off_reason]
        places, names = {_place(s) for s in found}, {s.name for s in found}
        for spec in self._own:
            if not spec.threaded or _place(spec) not in places:
                found.append(replace(spec, name=f"daemon/{spec.name}") if spec.name in names else spec)
        return found

    def _escalate(self, receivers: list[ReceiverSpec]) -> dict[str, Escalation]:
        """By receiver, whom the daemon's settings want told as well when nobody answers."""
        settings = self._daemon.settings.escalate
        called = next((s for s in self._own if settings is not None and s.name == settings.to), None)
        if settings is None or called is None:
            return {}
        to = next((s.name for s in receivers if _place(s) == _place(called)), called.name)
        return {s.name: Escalation(settings.after, to) for s in receivers if s.name != to}

    # ---- what is known

    def standing(self, run: str) -> Standing:
        post = self._posts.get(run)
        return post.standing if post is not None else Standing()

    def waiting(self, run: str) -> bool:
        return bool(self.standing(run).waiting)

    def drop(self, run: str) -> None:
        with self._lock:
            post = self._posts.pop(run, None)
        if post is not None:
            post.courier.close(0.0)

    def close(self, timeout: float) -> None:
        clock = self._daemon.clock
        until = clock.monotonic() + timeout
        self.digests.close()
        for post in list(self._posts.values()):
            post.courier.close(max(0.0, until - clock.monotonic()))


def _place(spec: ReceiverSpec) -> tuple[object, ...]:
    """Where its messages appear: a run's own receiver and one of the daemon's may be the same."""
    return (spec.name,) if not spec.threaded else (spec.channel, spec.base_url)
