"""What can go wrong in telling, and what follows from it."""

from __future__ import annotations

import socket
import ssl
from typing import Literal
from urllib.error import URLError

Kind = Literal["retry", "unknown", "off", "message", "gone"]

# What to do about an error that does not go away by itself.
ADVICE = {
    "invalid_auth": "the token is not valid; set a new bot token",
    "not_authed": "no token was sent; set the bot token",
    "account_inactive": "the token's app or user was removed; install the app again and set its new token",
    "token_revoked": "the token was revoked; install the app again and set its new token",
    "token_expired": "the token has expired; set a new bot token",
    "no_permission": "the token may not post; install the app from deploy/slack-app-manifest.yaml again",
    "missing_scope": "the token lacks a scope; install the app from deploy/slack-app-manifest.yaml again",
    "not_allowed_token_type": "this is not a bot token; use the one that starts with xoxb-",
    "ekm_access_denied": "the workspace's administrators have suspended posting",
    "team_access_not_granted": "the app is not approved in this workspace; ask its administrators",
    "org_login_required": "the workspace is being moved; try again later",
    "access_denied": "the workspace refused the app; ask its administrators",
    "channel_not_found": "the bot sees no channel {channel}: check the name, then type there /invite @bot",
    "not_in_channel": "invite the bot to {channel}: type there /invite @bot",
    "is_archived": "the channel {channel} is archived; choose another",
    "channel_is_archived": "the channel {channel} is archived; choose another",
    "is_inactive": "the channel {channel} is archived; choose another",
    "restricted_action": "the channel {channel} does not let the bot post; ask its owner",
    "restricted_action_read_only_channel": "the channel {channel} is read-only; ask its owner",
    "no_service": "the webhook is gone; make a new one",
    "no_active_hooks": "the webhook was switched off; make a new one",
    "invalid_token": "the webhook's address is not valid; make a new one",
    "action_prohibited": "the workspace's administrators forbid this webhook",
    "no_token": "the token is empty; set the bot token",
    "no_secret": "the secret that signs is empty; set it",
    "no_url": "the webhook's address is empty; set it",
}
_PERHAPS_DONE = frozenset({"fatal_error", "internal_error", "service_unavailable", "request_timeout"})
_MESSAGE = frozenset(
    {
        "invalid_blocks",
        "invalid_blocks_format",
        "msg_too_long",
        "msg_blocks_too_long",
        "no_text",
        "invalid_arguments",
        "invalid_array_arg",
        "invalid_form_data",
        "invalid_payload",
        "invalid_json",
        "invalid_attachments",
        "slack_file_not_found",
        "metadata_too_large",
        "invalid_metadata_format",
        "invalid_metadata_schema",
        "too_many_attachments",
    }
)
_GONE = frozenset({"message_not_found", "thread_not_found"})


class Failure(Exception):  # noqa: N818 - an outcome
    """One telling failed. Never holds a secret: it is made of error codes, not of other exceptions' texts.

    Args:
        kind: ``retry`` (certainly not told), ``unknown`` (perhaps told), ``off`` (the receiver cannot be told until a
            person changes something), ``message`` (only this message is refused), ``gone`` (its message was deleted).
        reason: an error code or a few words.
        retry_after: seconds the receiver asked us to wait.
    """

    def __init__(self, kind: Kind, reason: str, retry_after: float | None = None) -> None:
        self.kind, self.reason, self.retry_after = kind, reason, retry_after
        super().__init__(reason)


class OutOfTime(Exception):  # noqa: N818
    """The deadline of this pass has come."""


def of_code(code: str) -> Failure:
    """What one of Slack's error codes means."""
    if code in ADVICE:
        return Failure("off", code)
    if code in _PERHAPS_DONE:
        return Failure("unknown", code)
    if code in _MESSAGE:
        return Failure("message", code)
    return Failure("gone" if code in _GONE else "retry", code)


def of_status(status: int, code: str, retry_after: str | None) -> Failure:
    """What an HTTP answer other than success means. `code`: Slack's error code, or "" if the body holds none."""
    if status == 429 or code in ("ratelimited", "rate_limited"):
        try:
            seconds = max(1.0, min(3600.0, float(retry_after or "")))
        except ValueError:
            seconds = 30.0
        return Failure("retry", "asked to slow down", seconds)
    if code:
        return of_code(code)
    if status >= 500 or status < 300:
        return Failure("unknown", f"HTTP {status} without a proper answer")
    return Failure("retry", f"HTTP {status}")


def of_exception(error: BaseException) -> Failure:
    """What a broken connection means. Only the exception's type is told: its text may quote a header with the token."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, ConnectionRefusedError):
        return Failure("retry", "connection refused")
    if isinstance(cause, socket.gaierror):
        return Failure("retry", "host name not found")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Failure("retry", "its TLS certificate is not trusted here")
    if isinstance(cause, TimeoutError):
        return Failure("unknown", "no answer in time")
    if isinstance(cause, ConnectionError):
        return Failure("unknown", "connection lost")
    return Failure("unknown", type(cause).__name__)


def advice(reason: str, channel: str | None) -> str:
    return ADVICE.get(reason, reason).format(channel=channel or "the channel")
