"""One receiver's desk: what is due there, how its failures are met, and when many incidents become one message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from guard.incidents import IncidentLog
from guard.notify import render, story
from guard.notify.failure import Failure, advice
from guard.notify.message import Message
from guard.notify.outbox import Item, Standing
from guard.notify.spec import ReceiverSpec
from guard.notify.turn import BACKOFF_CAP, Turn
from guard.types import Incident

RARELY = 600.0  # seconds between tries where a person has to change something first
STORM_ROOTS, STORM_WINDOW = 10, 600.0
DAMAGED = (AttributeError, KeyError, TypeError, ValueError)  # what odd values in a journal lead to
STORM_URGENT = 20  # roots in the window up to which an incident that needs a person still gets its own


def due(log: IncidentLog, spec: ReceiverSpec) -> Iterator[Incident]:
    """The incidents that are told here, oldest first; attached ones are told with their owner."""
    for together in story.groups(log).values():
        if story.rank(story.severity(log, together)) >= story.rank(spec.min_severity):
            yield together[0]


class Desk(ABC):
    """Base of the two ways to tell: `ThreadDesk` (Slack's Web API) and `LineDesk` (webhooks, console)."""

    def __init__(self, spec: ReceiverSpec) -> None:
        self.spec = spec
        self.settled: dict[str, int] = {}  # by incident, the version of it of which all is told
        self.looked: set[str] = set()  # incidents of an earlier outbox for which Slack has been searched
        self._storms_settled: dict[str, int] = {}

    # ---- what the two ways differ in

    @abstractmethod
    def tell(self, turn: Turn, incident: Incident) -> bool:
        """Tells what is due of one incident; True if nothing is left to tell."""

    @abstractmethod
    def untold(self, log: IncidentLog, incident: Incident, rows: dict[str, Item]) -> list[str]:
        """The keys of what is due of one incident and not told, given its rows in the outbox."""

    @abstractmethod
    def tell_storm(self, turn: Turn, item: Item, message: Message) -> None:
        """Tells or renews the rolling message."""

    def finish(self, turn: Turn, incident: Incident) -> bool:  # noqa: ARG002 - most have nothing more to do
        """What comes after the words (a plot); True if nothing is left to do."""
        return True

    # ---- one pass

    def unsettled(self, log: IncidentLog, versions: dict[str, int]) -> list[Incident]:
        """The incidents of which this process has not told all, or that have changed since."""
        return [i for i in due(log, self.spec) if self.settled.get(i.id) != versions.get(i.id, 0)]

    def deliver(self, turn: Turn) -> None:
        """Tells what is due here, as far as the receiver lets us: first all words, then the rest."""
        standing = turn.box.standing(self.spec.name)
        if turn.now < standing.next_try and not (turn.eager and not standing.off and not standing.asked):
            return
        words_told = []
        for incident in self.unsettled(turn.log, turn.versions):
            try:
                done = self._try(turn, self.tell, incident)
            except DAMAGED as error:  # its journal lines; they must not silence the incidents after it
                turn.say(
                    f"incident {incident.id} cannot be told ({type(error).__name__}): its journal lines are damaged"
                )
                self.settled[incident.id] = turn.versions.get(incident.id, 0)
                continue
            if done is None:
                return
            if done:
                words_told.append(incident)
        if (counted := self._try(turn, self._storms)) is None:
            return
        for incident in words_told:
            if (done := self._try(turn, self.finish, incident)) is None:
                return
            if done and counted:
                self.settled[incident.id] = turn.versions.get(incident.id, 0)

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

    def stormed(self, turn: Turn, root: Item, incident: Incident) -> bool:
        """Too many roots lately: this incident is counted in the rolling message instead."""
        urgent = story.stage(turn.log, incident) in story.NEEDS_YOU
        if root.state == "stormed" and not urgent:
            return True
        recent = turn.box.items(
            self.spec.name,
            "key = 'root' AND incident NOT LIKE '@%' AND state != 'stormed' AND MAX(told_at, until) > ?",
            turn.now - STORM_WINDOW,
        )
        if len(recent) < (STORM_URGENT if urgent else STORM_ROOTS):
            root.state, root.digest, root.told_at = "due", "", 0.0
            return False
        if root.state != "stormed":
            latest = turn.box.items(self.spec.name, "state = 'stormed' ORDER BY told_at DESC LIMIT 1")
            goes_on = latest and latest[0].told_at > turn.now - STORM_WINDOW
            root.state, root.digest, root.told_at = "stormed", latest[0].digest if goes_on else incident.id, turn.now
            turn.box.save(root)
        return True

    def _storms(self, turn: Turn) -> bool:
        storms: dict[str, list[Item]] = {}
        for item in turn.box.items(self.spec.name, "state = 'stormed' ORDER BY told_at"):
            storms.setdefault(item.digest, []).append(item)
        done = True
        for storm, members in storms.items():
            incidents = [turn.log.incidents[m.incident] for m in members if m.incident in turn.log.incidents]
            if not incidents or self._storms_settled.get(storm) == len(incidents):
                continue
            item = turn.box.item(self.spec.name, f"@storm-{storm}", "root")
            if self.later(turn, item):
                done = False
                continue
            self.tell_storm(turn, item, render.storm(turn.log, incidents, members[0].told_at))
            self._storms_settled[storm] = len(incidents)
        return done
