"""One connection to Slack's Socket Mode.

Address, proxy, TLS and handshake are slack_sdk's; what comes is read here. Its own client spins on a connection that
the other side has ended (25 s at full load), and hears nothing any more after a message of a megabyte.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from guard.daemon.frames import Frames, Message, ProtocolError
from guard.notify.failure import Failure, of_exception
from guard.notify.slack import Slack
from guard.notify.spec import ReceiverSpec

if TYPE_CHECKING:
    from slack_sdk.socket_mode.builtin.connection import Connection

LIMIT = 1 << 20  # [bytes] of one message; Slack's own are some ten kB
_PING, _LOST = 10, 30  # waits without a byte after which Slack is asked, and after which it is taken to be gone

# What slack_sdk logs may quote what came; here it is told in our words, or not at all.
_log = logging.getLogger("guard.daemon.slack_sdk")
_log.addHandler(logging.NullHandler())
_log.propagate = False
_log.setLevel(logging.CRITICAL + 1)


class Link:
    """Opens a connection and reads it in the thread that calls `run`.

    Args:
        token: app-level token (``xapp-…``).
        heard: called with each text message; None: one that is too long.
        base_url: in place of Slack's own Web API.
        wait: how long to wait for bytes at a time [s].
    """

    def __init__(
        self, token: str, heard: Callable[[Link, bytes | None], None], base_url: str | None, wait: float = 1.0
    ) -> None:
        spec = ReceiverSpec("listener", "slack", token=token, base_url=base_url)
        self._web, self._base_url = Slack(spec, lambda: spec.timeout), base_url
        self._heard, self._wait = heard, wait
        self._closing = threading.Event()
        self._connection: Connection | None = None
        self._socket: socket.socket | None = None

    def run(self) -> None:
        """Connects and reads until `close` is called.

        Raises:
            Failure: it could not be connected, or the connection was lost.
        """
        try:
            self._read(self._open())
        except Failure:
            if not self._closing.is_set():
                raise
        except ProtocolError as error:
            raise Failure("retry", str(error)) from None
        except Exception as error:  # noqa: BLE001 - ssl and sockets raise many kinds
            if not self._closing.is_set():
                raise of_exception(error) from None
        finally:
            if self._connection is not None:
                self._connection.close()

    def close(self) -> None:
        """Ends `run` soon, from any thread."""
        self._closing.set()
        if (opened := self._socket) is not None:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def acknowledge(self, envelope: str) -> None:
        """Tells Slack that an envelope has come. In the thread of `run`."""
        assert self._connection is not None
        self._connection.send(json.dumps({"envelope_id": envelope}))

    def _open(self) -> socket.socket:
        from slack_sdk.socket_mode.builtin.connection import Connection

        url = str(self._web.call("apps.connections.open").get("url") or "")
        self._check(url)
        failed: list[Exception] = []
        self._connection = Connection(url, _log, proxy=_proxy(url), on_error_listener=failed.append)
        self._connection.connect()
        opened: Any = self._connection.sock
        if opened is None:
            raise of_exception(failed[0]) if failed else Failure("retry", "Slack refused the connection")
        opened.settimeout(self._wait)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # acknowledgements are small and must not wait
        self._socket = opened
        if self._closing.is_set():
            raise Failure("retry", "closed")
        return opened  # type: ignore[no-any-return]

    def _check(self, url: str) -> None:
        """slack_sdk encrypts port 443 only."""
        try:
            parts = urlsplit(url)
            secure = parts.scheme == "wss" and parts.port in (None, 443)
        except ValueError:
            secure = False
        if not secure and not (self._base_url and url.startswith("ws://")):
            raise Failure("retry", "Slack named no address to listen at")

    def _read(self, opened: socket.socket) -> None:
        frames, quiet, first = Frames(LIMIT), 0, True
        while not self._closing.is_set():
            try:
                data = opened.recv(1 << 16)
            except TimeoutError:
                quiet += 1
                if quiet >= _LOST:
                    raise Failure("retry", "Slack does not answer any more") from None
                if quiet % _PING == 0:
                    self._ping()
                continue
            if not data:
                raise Failure("retry", "connection lost")
            if first:  # slack_sdk leaves the last character of the handshake's answer unread; no frame begins so
                data, first = data.removeprefix(b"\n"), False
            quiet = 0
            for message in frames.feed(data):
                self._take(message)

    def _take(self, message: Message) -> None:
        assert self._connection is not None
        match message.kind:
            case "text":
                self._heard(self, message.data)
            case "oversized":
                self._heard(self, None)
            case "ping":
                self._connection.pong(message.data)
            case "close":
                raise Failure("retry", "Slack closed the connection")

    def _ping(self) -> None:
        assert self._connection is not None
        self._connection.ping("are you there?")


def _proxy(url: str) -> str | None:
    """As the environment says for this host."""
    host = urlsplit(url).hostname or ""
    if urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get("https") or proxies.get("http")
