"""Answering a person in Slack where he pressed or typed; only he sees it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import SplitResult, urlsplit

from guard.notify.failure import Failure, of_exception, of_status
from guard.notify.words import clean, escape

_SLACK = ("https", "hooks.slack.com", 443)
_LONG = 2500  # characters
_PORTS = {"https": 443, "http": 80}


class Answers:
    """Posts to the `response_url` of an envelope.

    Args:
        base_url: in place of Slack's own Web API, e.g. a test server; its host may be answered too.
        timeout: of one answer [s].
    """

    def __init__(self, base_url: str | None = None, timeout: float = 5.0) -> None:
        self._places = {_SLACK}
        if base_url and (place := _place(base_url)):
            self._places.add(place)
        self._timeout = timeout
        self._opener = urllib.request.build_opener(_NoRedirect)

    def allowed(self, url: str) -> bool:
        """It is Slack's. An envelope must not make the daemon call anything else."""
        return _place(url) in self._places

    def send(self, url: str, text: str) -> None:
        """Says it; nothing in it is markup.

        Raises:
            Failure: it was not said.
        """
        if not self.allowed(url):
            raise Failure("message", "the address for the answer is not Slack's")
        body = {
            "response_type": "ephemeral",
            "replace_original": False,
            "text": escape(clean(text, _LONG)),
        }
        try:
            request = urllib.request.Request(
                url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
            )
            with self._opener.open(request, timeout=self._timeout) as answer:
                answer.read(1024)
        except urllib.error.HTTPError as error:
            raise of_status(error.code, "", None) from None
        except Exception as error:  # noqa: BLE001 - urllib and http.client raise many kinds, some of which quote the address
            raise of_exception(error) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead anywhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _place(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port; None for what is not plainly an address."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return None
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None or "@" in parts.netloc:
        return None
    return parts.scheme, parts.hostname, port
