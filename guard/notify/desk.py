"""One receiver's desk: what is due there, how its failures are met, and when many incidents become one message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from guard.incidents import IncidentLog
from guard.notify import lifecycle, render, story
from guard.notify.attention import NEVER
from guard.notify.failure import Failure, advice
from guard.notify.message import Message, Reply
from guard.notify.outbox import Item, Outbox, Standing
from guard.notify.spec import ReceiverSpec
from guard.notify.subject import Subject, Told
from guard.notify.tale import DAMAGED
from guard.notify.turn import BACKOFF_CAP, Turn

RARELY = 600.0  # seconds between tries where a person has to change something first
STORM_ROOTS, STORM_WINDOW = 10, 600.0
_ELSEWHERE = "@"  # before the id of a storm whose rolling message is another run's
STORM_URGENT = 20  # roots in the window up to which an incident that needs a person still gets its own


def due(log: IncidentLog, spec: ReceiverSpec, called: Container[str] = ()) -> Iterator[Subject]:
    """What is told here, oldest first.

    Args:
        called: incidents that are told here whatever their severity, because nobody has answered elsewhere.
    """
    if spec.lifecycle and log.lifecycle:
        yield lifecycle.Run(log)
    for key, together in story.groups(log).items():
        severity = story.severity(log, [*together.again, *together.attached])
        if key in called or (not spec.on_call and story.rank(severity) >= story.rank(spec.min_severity)):
            yield Told(log, together.again[0])


class Desk(ABC):
    """Base of the two ways to tell: `ThreadDesk` (Slack's Web API) and `LineDesk` (webhooks, console).

    Attributes:
        settled: by subject, the version of it of which all is told.
        again_at: by subject, when there may be more to say of it although nothing happens [s since the epoch].
        called: incidents told here because nobody has answered elsewhere.
        looked: subjects of an earlier outbox for which Slack has been searched.
        keeps_storm: a rolling message here also counts other runs' incidents.
    """

    def __init__(self, spec: ReceiverSpec) -> None:
        self.spec = spec
        self.called: set[str] = set()
        self.keeps_storm = False
        self.looked: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """What was settled in this process; the outbox still knows what was told."""
        self.settled: dict[str, int] = {}
        self.again_at: dict[str, float] = {}
        self._storms_settled: dict[str, int] = {}

    # ---- what the two ways differ in

    @abstractmethod
    def tell(self, turn: Turn, subject: Subject) -> bool:
        """Tells what is due of it; True if nothing is left to tell."""

    @abstractmethod
    def untold(self, subject: Subject, rows: dict[str, Item]) -> list[str]:
        """The keys of what is due of it and not told, given its rows in the outbox; silences left aside."""

    @abstractmethod
    def tell_storm(self, turn: Turn, item: Item, message: Message) -> None:
        """Tells or renews the rolling message."""

    @property
    @abstractmethod
    def channel_key(self) -> str:
        """Names the channel, for what all couriers of a process share."""

    def finish(self, turn: Turn, subject: Subject) -> bool:  # noqa: ARG002 - most have nothing more to do
        """What comes after the words (a plot); True if nothing is left to do."""
        return True

    # ---- one pass

    def due(self, log: IncidentLog) -> Iterator[Subject]:
        """What is told here, oldest first."""
        return due(log, self.spec, self.called)

    def unsettled(self, log: IncidentLog, versions: Mapping[str, int], now: float) -> list[Subject]:
        """Of which this process has not told all, or that have changed since, or whose time has come."""
        return [
            s
            for s in self.due(log)
            if self.settled.get(s.id) != versions.get(s.id, 0) or self.again_at.get(s.id, NEVER) <= now
        ]

    def deliver(self, turn: Turn, subjects: Sequence[Subject]) -> None:
        """Tells what is due, as far as the receiver lets us: first all words, then the rest."""
        standing = turn.box.standing(self.spec.name)
        if turn.now < standing.next_try and not (turn.eager and not standing.off and not standing.asked):
            return
        words_told = []
        for subject in subjects:
            try:
                done = self._try(turn, self.tell, subject)
            except DAMAGED as error:  # its journal lines; they must not silence the incidents after it
                turn.say(
                    f"incident {subject.id} cannot be told ({type(error).__name__}): its journal lines are damaged"
                )
                self.settled[subject.id] = turn.versions.get(subject.id, 0)
                self.again_at.pop(subject.id, None)
                continue
            if done is None:
                return
            if done:
                words_told.append(subject)
        if (counted := self._try(turn, self._storms)) is None:
            return
        for subject in words_told:
            if (done := self._try(turn, self.finish, subject)) is None:
                return
            if done and counted:
                self.settle(turn.box, turn.versions, subject, turn.now)

    def settle(self, box: Outbox, versions: Mapping[str, int], subject: Subject, now: float) -> None:
        """All of it is told, until something happens or its time comes."""
        root = box.item(self.spec.name, subject.id, "root")
        at = subject.muted_until(now) or (self.nudges(subject, root, now)[1] if root.state == "told" else NEVER)
        self.settled[subject.id], self.again_at[subject.id] = versions.get(subject.id, 0), at

    def times(self, now: float) -> list[float]:
        """When there may be something more to say, after a pass that found nothing to do."""
        self.again_at = {key: at for key, at in self.again_at.items() if now < at < NEVER}
        return list(self.again_at.values())

    def nudges(self, subject: Subject, root: Item, now: float) -> tuple[list[Reply], float]:
        return subject.nudges(self.spec.remind_every, root.told_at, now)

    def held_back(self, turn: Turn, root: Item, subject: Subject) -> bool:
        """A silence keeps a message that nobody has seen yet; or kept it until it was not worth telling any more."""
        before = root.state
        if subject.muted_until(turn.now):
            root.state = "muted" if before == "due" else before
        elif before in ("muted", "dropped"):
            root.state = "muted" if subject.unresolved() else "dropped"
        if root.state != before:
            turn.box.save(root)
        return root.state == "dropped" or bool(subject.muted_until(turn.now))

    def _try(self, turn: Turn, job: Callable[..., bool], *arguments: object) -> bool | None:
        """Whether nothing of it is left to do; None if the receiver cannot be told anything for now."""
        told = turn.told
        try:
            done = job(turn, *arguments)
        except Failure as failure:
            return None if self._failed(turn, failure) else False
        if turn.told > told:
            self._recovered(turn)
        return done

    def later(self, turn: Turn, item: Item) -> bool:
        """A failed item whose time has not come again. A refused message does not get better by eagerness."""
        return item.next_try > turn.now and not (turn.eager and item.next_try - turn.now < BACKOFF_CAP)

    def item_failed(self, turn: Turn, item: Item, failure: Failure, *, looking: bool = False) -> Failure:
        """Keeps what went wrong with an item. It stays "sending" as long as the receiver may have it."""
        if item.state == "sending" and failure.kind != "unknown" and not looking:
            item.state, item.since, item.until = "due", 0.0, 0.0
        item.error = failure.reason
        if failure.kind in ("retry", "unknown") and failure.retry_after is None:
            item.attempts += 1
            item.next_try = turn.now + turn.pace.backoff(item.attempts)
        elif failure.kind == "message":
            item.attempts += 1
            item.next_try = turn.now + RARELY
        turn.box.save(item)
        return failure

    # ---- the receiver's failures

    def _failed(self, turn: Turn, failure: Failure) -> bool:
        """Notes a failure; True if it is the receiver's rather than one message's."""
        turn.failures.append(f"{self.spec.name}: {failure.reason}")
        if failure.kind in ("message", "gone"):
            return False
        standing = turn.box.standing(self.spec.name)
        first_off = failure.kind == "off" and (not standing.off or standing.error != failure.reason)
        standing.fails += 1
        standing.error, standing.off = failure.reason, failure.kind == "off"
        standing.asked = failure.retry_after is not None
        wait = RARELY if standing.off else failure.retry_after or turn.pace.backoff(standing.fails)
        standing.next_try = turn.now + wait
        turn.box.save_standing(standing)
        if first_off:
            turn.say(
                f"receiver {self.spec.name} cannot be told ({failure.reason}): "
                f"{advice(failure.reason, self.spec.channel)}. Nothing is lost: it is tried again every "
                f"{RARELY / 60:.0f} minutes."
            )
        return True

    def _recovered(self, turn: Turn) -> None:
        standing = turn.box.standing(self.spec.name)
        if not (standing.fails or standing.off):
            return
        if standing.off:
            turn.say(f"receiver {self.spec.name} can be told again")
        turn.box.save_standing(Standing(self.spec.name, channel=standing.channel))

    # ---- storms

    def stormed(self, turn: Turn, root: Item, subject: Subject) -> bool:
        """Too many roots lately: this incident is counted in the rolling message instead."""
        if not isinstance(subject, Told):
            return False
        urgent = subject.calls()
        if root.state == "stormed" and not urgent:
            return True
        since = turn.now - STORM_WINDOW
        recent = turn.box.items(
            self.spec.name,
            "key = 'root' AND incident NOT LIKE '@%' AND state != 'stormed' AND MAX(told_at, until) > ?",
            since,
        )
        lately = max(len(recent), turn.pace.limiter.roots(self.channel_key, since))
        if lately < (STORM_URGENT if urgent else STORM_ROOTS):
            root.state, root.digest, root.told_at = "due", "", 0.0
            return False
        if root.state != "stormed":
            latest = turn.box.items(self.spec.name, "state = 'stormed' ORDER BY told_at DESC LIMIT 1")
            goes_on = latest and latest[0].told_at > since and not latest[0].digest.startswith(_ELSEWHERE)
            own = latest[0].digest if goes_on else subject.id
            mine = f"{turn.run_key}/{own}"
            storm = turn.pace.limiter.storm(self.channel_key, turn.run_key, mine, turn.now, STORM_WINDOW)
            root.state, root.digest, root.told_at = "stormed", own if storm == mine else _ELSEWHERE + storm, turn.now
            turn.box.save(root)
        return True

    def rooted(self, turn: Turn, subject: Subject) -> None:
        """An incident got a message of its own."""
        if isinstance(subject, Told):
            turn.pace.limiter.rooted(self.channel_key, turn.now)

    def _storms(self, turn: Turn) -> bool:
        storms: dict[str, list[Item]] = {}
        for item in turn.box.items(self.spec.name, "state = 'stormed' ORDER BY told_at"):
            storms.setdefault(item.digest, []).append(item)
        done, limiter = True, turn.pace.limiter
        for storm, members in storms.items():
            incidents = [turn.log.incidents[m.incident] for m in members if m.incident in turn.log.incidents]
            if storm.startswith(_ELSEWHERE):
                limiter.join(self.channel_key, storm.removeprefix(_ELSEWHERE), turn.run_key, len(incidents))
                continue
            elsewhere = limiter.elsewhere(self.channel_key, f"{turn.run_key}/{storm}")
            self.keeps_storm = True
            if not incidents or self._storms_settled.get(storm) == (number := len(incidents) + sum(elsewhere)):
                continue
            item = turn.box.item(self.spec.name, f"@storm-{storm}", "root")
            if self.later(turn, item):
                done = False
                continue
            self.tell_storm(turn, item, render.storm(turn.log, incidents, members[0].told_at, elsewhere))
            self._storms_settled[storm] = number
        return done
