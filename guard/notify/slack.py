"""Slack's Web API: five calls, each of which succeeds or raises a `Failure`."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from guard.notify.failure import Failure, of_exception, of_status
from guard.notify.spec import ReceiverSpec, reveal

EVENT = "training_guard"
_SKEW = 900.0  # seconds by which this host's clock may differ from Slack's
_PAGES = 10
_MAX_PLOT = 10_000_000

# slack_sdk logs every failed call by itself; here each is told once, by the courier.
_log = logging.getLogger("guard.notify.slack_sdk")
_log.addHandler(logging.NullHandler())
_log.propagate = False
_log.setLevel(logging.CRITICAL + 1)


class Slack:
    """One token at one workspace.

    Args:
        spec: of the receiver.
        timeout: how long the next call may take [s]; asked before each.
    """

    def __init__(self, spec: ReceiverSpec, timeout: Callable[[], float]) -> None:
        self._spec, self._timeout = spec, timeout

    def post(
        self,
        channel: str,
        text: str,
        *,
        key: str,
        blocks: list[dict[str, Any]] | None = None,
        thread: str | None = None,
        broadcast: bool = False,
    ) -> tuple[str, str]:
        """Posts a message; returns channel ID and ts."""
        extra = {"thread_ts": thread, "reply_broadcast": broadcast} if thread else {}
        answer = self.call(
            "chat.postMessage",
            json={
                "channel": channel,
                "text": text,
                **({"blocks": blocks} if blocks else {}),
                **extra,
                **_QUIET,
                "metadata": _metadata(key),
            },
        )
        return str(answer.get("channel") or channel), str(answer.get("ts") or "")

    def update(self, channel: str, ts: str, text: str, *, key: str, blocks: list[dict[str, Any]] | None = None) -> None:
        """Replaces a message; without blocks it becomes plain text."""
        self.call(
            "chat.update",
            json={
                "channel": channel,
                "ts": ts,
                "text": text,
                "blocks": blocks or [],
                "parse": "none",
                "link_names": False,
                "metadata": _metadata(key),
            },
        )

    def find(self, channel: str, since: float, until: float, thread: str | None = None) -> dict[str, str]:
        """Our messages by their key -> ts: in a channel between two times, or in a thread."""
        method = "conversations.replies" if thread else "conversations.history"
        window = {"ts": thread} if thread else {"oldest": f"{since - _SKEW:.6f}", "latest": f"{until + _SKEW:.6f}"}
        found: dict[str, str] = {}
        cursor = ""
        for _ in range(_PAGES):
            answer = self.call(
                method,
                params={
                    "channel": channel,
                    "limit": 200,
                    "inclusive": "true",
                    "include_all_metadata": "true",
                    **window,
                    **({"cursor": cursor} if cursor else {}),
                },
            )
            for message in answer.get("messages") or []:
                metadata = message.get("metadata") or {}
                if metadata.get("event_type") == EVENT:
                    found.setdefault(str((metadata.get("event_payload") or {}).get("key")), str(message.get("ts")))
            cursor = (answer.get("response_metadata") or {}).get("next_cursor") or ""
            if not cursor:
                break
        return found

    def channel_id(self, channel: str) -> str | None:
        """The ID of a channel the bot is in, by name or ID; None if it is in no such channel."""
        for types in ("public_channel,private_channel", "public_channel"):
            try:
                return self._look_up(channel, types)
            except Failure as failure:
                if failure.reason != "missing_scope" or types == "public_channel":
                    raise
        return None

    def _look_up(self, channel: str, types: str) -> str | None:
        # The bot's own channels, not the workspace's: shorter, and it says at once whether the bot was invited.
        cursor = ""
        for _ in range(_PAGES):
            answer = self.call(
                "users.conversations",
                params={
                    "types": types,
                    "limit": 200,
                    "exclude_archived": "true",
                    **({"cursor": cursor} if cursor else {}),
                },
            )
            for found in answer.get("channels") or []:
                if channel.lstrip("#") in (found.get("name"), found.get("id")):
                    return str(found.get("id"))
            cursor = (answer.get("response_metadata") or {}).get("next_cursor") or ""
            if not cursor:
                break
        return None

    def upload(self, path: Path, title: str) -> str:
        """Uploads a picture without sharing it anywhere; returns the file's ID, for an image block."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise Failure("message", f"plot not readable: {error.strerror}") from None
        if not 0 < len(data) <= _MAX_PLOT:
            raise Failure("message", "plot empty or too large")
        place = self.call(
            "files.getUploadURLExternal", params={"filename": path.name, "length": len(data), "alt_txt": title}
        )
        timeout = self._timeout()
        try:
            request = urllib.request.Request(
                str(place["upload_url"]), data=data, method="POST", headers={"Content-Type": "application/octet-stream"}
            )
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                answer.read(4096)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no plot
            raise of_exception(error) from None
        file_id = str(place["file_id"])
        self.call("files.completeUploadExternal", json={"files": [{"id": file_id, "title": title}]})
        return file_id

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """One API call. Its failures hold no secret and no text of foreign exceptions."""
        token = reveal(self._spec.token)
        if not token:
            raise Failure("off", "no_token")
        from slack_sdk import WebClient
        from slack_sdk.errors import SlackApiError

        timeout = self._timeout()
        options: dict[str, Any] = {"base_url": self._spec.base_url} if self._spec.base_url else {}
        try:
            # Its default retry posts twice when a reply is lost.
            client = WebClient(token=token, timeout=timeout, retry_handlers=[], logger=_log, **options)  # type: ignore[arg-type]
            if urllib.request.proxy_bypass(urlsplit(client.base_url).hostname or ""):
                client.proxy = None
            data = client.api_call(method, **arguments).data
        except SlackApiError as error:
            raise _answered(error.response) from None
        except Exception as error:  # noqa: BLE001 - urllib, http.client, json and codecs raise many kinds
            raise of_exception(error) from None
        return data if isinstance(data, dict) else {}


_QUIET = {"parse": "none", "link_names": False, "unfurl_links": False, "unfurl_media": False}


def _metadata(key: str) -> dict[str, Any]:
    return {"event_type": EVENT, "event_payload": {"key": key}}


def _answered(response: Any) -> Failure:
    data = response.data if isinstance(response.data, dict) else {}
    code = data.get("error")
    headers = {str(k).lower(): v for k, v in dict(response.headers or {}).items()}
    retry_after = headers.get("retry-after")
    # A body that is no JSON comes as an "error" that is a sentence.
    clean = code if isinstance(code, str) and code.replace("_", "").isalnum() and len(code) < 60 else ""
    return of_status(int(response.status_code), clean, retry_after[0] if isinstance(retry_after, list) else retry_after)
