"""What one message is about: an incident, or the run itself. The desks tell subjects, whatever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from guard.incidents import IncidentLog
from guard.notify import account, attention, render, story
from guard.notify.message import Message, Reply
from guard.types import Incident


class Subject(ABC):
    """Base of what has one message at a receiver, with its history beneath it.

    Attributes:
        id: its key in the outbox; other than an incident's it starts with ``@``.
        begun: when there was first something to tell of it [s since the epoch].
    """

    id: str
    begun: float

    @abstractmethod
    def message(self, *, listening: bool = False) -> Message:
        """As it stands now."""

    @abstractmethod
    def replies(self) -> list[Reply]:
        """Its history, oldest first."""

    @abstractmethod
    def state(self) -> str:
        """What a receiver that cannot be edited is told anew when it changes."""

    def muted_until(self, now: float) -> float:  # noqa: ARG002
        """Until when a silence keeps its messages back; 0 if none does."""
        return 0.0

    def nudges(self, every: float | None, told_at: float, now: float) -> tuple[list[Reply], float]:  # noqa: ARG002
        """See `attention.nudges`."""
        return [], attention.NEVER

    def unresolved(self) -> bool:
        """It is still worth telling after a silence."""
        return False

    def calls(self) -> bool:
        """Its message, where it is told first, must wake somebody."""
        return False

    def worse(self) -> bool:
        """Where every state is a message of its own, this one must wake somebody."""
        return self.calls()

    def over(self) -> bool:
        """Nothing more is to be expected of it."""
        return False

    def facts(self) -> dict[str, Any]:
        """For a program that reads the message."""
        return {"incident": None}


class Told(Subject):
    """An incident, with those told in its message."""

    def __init__(self, log: IncidentLog, incident: Incident) -> None:
        self.log, self.incident = log, incident
        self.id, self.begun = incident.id, incident.opened_at
        self.latest = story.latest(log, incident)

    def message(self, *, listening: bool = False) -> Message:
        return render.root(self.log, self.incident, listening=listening)

    def replies(self) -> list[Reply]:
        return render.replies(self.log, self.incident)

    def state(self) -> str:
        again = "" if self.latest is self.incident else f"/{self.latest.id}"
        return f"{story.stage(self.log, self.latest)}/{len(self.latest.attempts)}{again}"

    def muted_until(self, now: float) -> float:
        return attention.muted_until(self.log, self.incident, now)

    def nudges(self, every: float | None, told_at: float, now: float) -> tuple[list[Reply], float]:
        return attention.nudges(self.log, self.incident, every, told_at, now)

    def unresolved(self) -> bool:
        return attention.unresolved(self.log, self.incident)

    def calls(self) -> bool:
        return story.needs_person(self.log, self.latest) and not story.ack(self.log, self.latest)

    def worse(self) -> bool:
        escalated = story.stage(self.log, self.latest) == "verifying" and account.escalated(self.latest, -1)
        return self.calls() or escalated

    def over(self) -> bool:
        return story.stage(self.log, self.latest) in story.SETTLED or self.latest.closed_tick is not None

    def facts(self) -> dict[str, Any]:
        together = story.groups(self.log)[self.incident.id]
        return {
            "incident": self.incident.id,
            "latest": self.latest.id,
            "policy": self.latest.policy,
            "detector": self.latest.detector,
            "status": self.latest.status,
            "severity": story.severity(self.log, [*together.again, *together.attached]),
            "count": self.latest.count,
        }
