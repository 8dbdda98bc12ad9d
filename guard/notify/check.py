"""Asking the receivers whether they can be told, before there is anything to tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from guard.notify import blocks, lines, webhook
from guard.notify.failure import Failure, advice
from guard.notify.message import Message
from guard.notify.slack import Slack
from guard.notify.spec import ReceiverSpec, reveal

_FIRST_LINE = "No action needed: this is a test of the training guard"


@dataclass(frozen=True, slots=True)
class Finding:
    """One receiver's answer.

    Args:
        ok: it can be told.
        message: one sentence; if it cannot, what to do.
    """

    receiver: str
    ok: bool
    message: str


def check_receivers(receivers: Sequence[ReceiverSpec], *, say: Callable[[str], None] | None = None) -> list[Finding]:
    """Asks each receiver once; `say` hears of those that cannot be told. Sends no message; may take seconds."""
    findings = [_check(r) for r in receivers]
    for finding in findings:
        if not finding.ok and say is not None:
            say(f"receiver {finding.receiver}: {finding.message}")
    return findings


def _check(spec: ReceiverSpec) -> Finding:
    if spec.off_reason:
        return Finding(spec.name, False, f"off: {spec.off_reason}")
    if spec.type == "console":
        return Finding(spec.name, True, "tells on stderr")
    if not spec.threaded:
        good = reveal(spec.webhook_url).startswith(("http://", "https://"))
        return Finding(
            spec.name,
            good,
            "webhook; only a test message shows whether it works" if good else advice("no_url", spec.channel),
        )
    slack, channel = Slack(spec, lambda: spec.timeout), spec.channel or ""
    try:
        bot = str(slack.call("auth.test").get("user") or "bot")
    except Failure as failure:
        return Finding(spec.name, False, f"{failure.reason}: {advice(failure.reason, spec.channel)}")
    try:
        found = slack.channel_id(channel)
    except Failure as failure:
        if failure.reason == "missing_scope":
            return Finding(
                spec.name,
                True,
                f"token valid (@{bot}); without the scopes channels:read and groups:read "
                f"it cannot see whether it was invited to {channel}",
            )
        return Finding(spec.name, False, f"{failure.reason}: {advice(failure.reason, spec.channel)}")
    if found is None:
        return Finding(spec.name, False, f"the bot is not in {channel}: type there /invite @{bot}")
    return Finding(spec.name, True, f"token valid, @{bot} is in {channel}")


def send_test(spec: ReceiverSpec) -> Finding:
    """Sends one test message, for `guard check --send-test`."""
    text = "Incidents of your runs will be told here."
    body = [blocks.header(f"🟢 {_FIRST_LINE}"), blocks.section("", text)]
    message = Message(f"🟢 {_FIRST_LINE}", body, _FIRST_LINE, text)
    try:
        if spec.off_reason:
            return Finding(spec.name, False, f"off: {spec.off_reason}")
        if spec.type == "console":
            lines.put_on_console(message)
        elif spec.threaded:
            Slack(spec, lambda: spec.timeout).post(spec.channel or "", message.text, key="test", blocks=body)
        elif spec.type == "slack":
            webhook.post(spec, webhook.slack_body(message, None), "test", lambda: spec.timeout, time.time())
        else:
            facts = {"incident": None, "key": "test"}
            webhook.post(spec, webhook.json_body(message, facts), "test", lambda: spec.timeout, time.time())
    except Failure as failure:
        return Finding(spec.name, False, f"{failure.reason}: {advice(failure.reason, spec.channel)}")
    return Finding(spec.name, True, "test message sent")
