"""Webhooks: Slack's incoming ones and plain JSON. No edits, no threads: one message for each state."""

from __future__ import annotations

import hashlib
import hmac
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from guard.notify.blocks import with_mention
from guard.notify.failure import Failure, of_exception, of_status
from guard.notify.message import Message
from guard.notify.render import slack_text
from guard.notify.spec import ReceiverSpec, reveal


def slack_body(message: Message, mention: str | None) -> dict[str, Any]:
    """For an incoming webhook of Slack."""
    return {"text": slack_text(message.text, mention), "blocks": with_mention(message.blocks, mention)}


def json_body(message: Message, facts: dict[str, Any]) -> dict[str, Any]:
    """For anything that reads JSON: the message in plain text, and the facts beside it."""
    return {
        "text": message.text,
        "first_line": message.first_line,
        "headline": message.headline,
        "fields": dict(message.fields),
        "sections": dict(message.sections),
        "command": message.command,
        **facts,
    }


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """``sha256=`` and the HMAC of ``TIMESTAMP.BODY`` in hexadecimal digits, for the header ``X-Guard-Signature``."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def post(spec: ReceiverSpec, body: dict[str, Any], key: str, timeout: Callable[[], float], now: float) -> None:
    """Sends it, or raises a `Failure`. The address is a secret: it is in no error.

    Args:
        now: seconds since the epoch, for a signature.
    """
    url = reveal(spec.webhook_url)
    if not url.startswith(("http://", "https://")):
        raise Failure("off", "no_url")
    seconds, data = timeout(), json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "training-guard", "Idempotency-Key": key}
    if spec.secret is not None:
        if not (secret := reveal(spec.secret)):
            raise Failure("off", "no_secret")
        timestamp = f"{now:.0f}"
        headers |= {"X-Guard-Timestamp": timestamp, "X-Guard-Signature": signature(secret, timestamp, data)}
    try:
        request = urllib.request.Request(url, data=data, method="POST", headers=headers)
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            answer.read(4096)
    except urllib.error.HTTPError as error:
        raise of_status(error.code, _code(error), error.headers.get("Retry-After")) from None
    except Exception as error:  # noqa: BLE001 - urllib and http.client raise many kinds, some of which quote the address
        raise of_exception(error) from None


def _code(error: urllib.error.HTTPError) -> str:
    try:
        text = error.read(100).decode("ascii")
    except Exception:  # noqa: BLE001 - the body is only a hint
        return ""
    return text if text.replace("_", "").isalpha() and text.islower() else ""
