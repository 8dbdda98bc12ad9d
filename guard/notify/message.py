"""What is told, before it takes the form of a receiver. All text here is plain: receivers escape it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """The present state of one incident.

    Args:
        text: one line for notifications and for receivers without blocks.
        blocks: the same message as Slack blocks, escaped.
        first_line: for the person woken.
        headline: severity, fault, run.
        fields: label and value.
        sections: title and body.
        command: what to type next.
        count: of the incidents it stands for.
    """

    text: str
    blocks: list[dict[str, Any]]
    first_line: str
    headline: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    sections: tuple[tuple[str, str], ...] = ()
    command: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Reply:
    """One event of an incident's history.

    Args:
        key: unique within the incident, and the same whenever it is rendered.
        text: what happened.
        broadcast: a worsening, which must wake somebody.
        command: what to type about it.
    """

    key: str
    text: str
    broadcast: bool = False
    command: str = ""

    @property
    def line(self) -> str:
        """Text and command, for receivers without markup."""
        return f"{self.text} {self.command}".rstrip()
