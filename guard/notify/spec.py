"""Where incidents are told: one receiver, as the policy describes it, with its secrets kept out of sight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from guard.types import Severity

Secret = Callable[[], str | None] | str | None


@dataclass(frozen=True, slots=True)
class Escalation:
    """Whom to tell as well when nobody answers.

    Args:
        after: seconds in which nobody acknowledged it since it needs a person.
        to: name of the receiver.
    """

    after: float
    to: str


@dataclass(frozen=True, slots=True)
class ReceiverSpec:
    """One receiver.

    Args:
        name: as in the policy; also its key in the outbox.
        type: ``slack`` (with `token` and `channel`, or with `webhook_url`), ``webhook`` (JSON), ``console`` (stderr).
        min_severity: incidents below it are not told here.
        mention: Slack markup put before a worsening, e.g. ``<@U012>``.
        channel: ``#name`` or a channel ID.
        token, webhook_url: secrets, or functions that return them (asked anew each time, so they may be rotated).
        base_url: in place of Slack's own, e.g. a proxy or a test server.
        off_reason: why this receiver is switched off (a missing secret); said once.
        timeout: of one network call [s].
        remind_every: [s] until the first reminder of an unresolved incident; the next ones take twice as long each;
            None: no reminders.
        escalate: who is told as well of what nobody acknowledges.
        lifecycle: starts and ends of the run are told here too.
        on_call: another receiver escalates to this one, so that it is told only what nobody answered elsewhere.
        secret: signs what a `webhook` receiver is sent; None: it is not signed.
    """

    name: str
    type: Literal["slack", "webhook", "console"]
    min_severity: Severity = "warning"
    mention: str | None = None
    channel: str | None = None
    token: Secret = field(default=None, repr=False)
    webhook_url: Secret = field(default=None, repr=False)
    base_url: str | None = None
    off_reason: str | None = None
    timeout: float = 10.0
    remind_every: float | None = None
    escalate: Escalation | None = None
    lifecycle: bool = False
    on_call: bool = False
    secret: Secret = field(default=None, repr=False)

    @property
    def threaded(self) -> bool:
        """It can edit messages and keep threads: Slack's Web API."""
        return self.type == "slack" and self.webhook_url is None


def reveal(secret: Secret) -> str:
    """The secret's text, or "" if there is none."""
    return ((secret() if callable(secret) else secret) or "").strip()
