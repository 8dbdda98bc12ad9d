"""A Slack for tests, on loopback: opens connections, speaks WebSocket, and keeps what it was told.

One server for all: ``POST /api/apps.connections.open``, ``GET /link`` (which becomes a WebSocket), and
``POST /answer/…`` in place of a `response_url`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import socket
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

APP, TEAM = "A0GUARD", "T0HOME"
TOKEN = f"xapp-1-{APP}-77-SECRET"
OPERATOR, STRANGER = "U0ADA", "U0EVE"
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Session:
    """One WebSocket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.open = True

    def send(self, message: Any) -> None:
        """An object as JSON, or text as it is."""
        self.raw(frame(message if isinstance(message, bytes) else json.dumps(message).encode()))

    def raw(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(data)

    def drop(self) -> None:
        """Ends the connection without a word."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class FakeSocketMode:
    def __init__(self) -> None:
        self.port = 0
        self.hello = {"type": "hello", "num_connections": 1, "connection_info": {"app_id": APP}}
        self.faults: list[str] = []  # what the next connections are refused with
        self.deaf = False  # answers no ping
        self.redirect = ""  # where answers are sent on to
        self.opened = 0
        self.sessions: list[Session] = []
        self.acks: list[str] = []
        self.pings = 0
        self.answers: list[tuple[str, dict[str, Any]]] = []
        self._changed = threading.Condition()
        self._server: ThreadingHTTPServer | None = None
        self._ids = itertools.count(1)

    # ---- life

    def start(self) -> FakeSocketMode:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                fake._post(self)

            def do_GET(self) -> None:
                fake._upgrade(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that hung up

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def stop(self) -> None:
        """Refuses connections until `start`, and ends those that stand."""
        for session in self.sessions:
            session.drop()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/"

    def until(self, condition: Callable[[], Any], what: str = "") -> None:
        """Waits until it holds; fails the test if it does not."""
        with self._changed:
            for _ in range(1000):
                if condition():
                    return
                self._changed.wait(0.01)
        raise AssertionError(what or "it never came to that")

    @property
    def live(self) -> list[Session]:
        return [s for s in self.sessions if s.open]

    @property
    def texts(self) -> list[str]:
        return [body["text"] for _, body in self.answers]

    # ---- what Slack sends

    def press(self, verb: str, value: Any, *, user: str = OPERATOR, to: Session | None = None, **change: Any) -> str:
        """A button is pressed; returns the envelope's id. `change` replaces parts of the payload, dots go deeper."""
        n = next(self._ids)
        payload = {
            "type": "block_actions",
            "api_app_id": APP,
            "team": {"id": TEAM},
            "user": {"id": user, "username": "x", "team_id": TEAM},
            "channel": {"id": "C1", "name": "training"},
            "message": {"app_id": APP, "ts": "1.2", "text": "Needs you"},
            "response_url": f"http://127.0.0.1:{self.port}/answer/{n}",
            "actions": [
                {
                    "type": "button",
                    "action_id": f"guard:{verb}",
                    "action_ts": f"17000{n}.1",
                    "value": value if isinstance(value, str) else json.dumps(value),
                }
            ],
        }
        return self._send("interactive", payload, to, n, change)

    def type(self, text: str, *, user: str = OPERATOR, to: Session | None = None, **change: Any) -> str:
        """A command is typed."""
        n = next(self._ids)
        payload = {
            "api_app_id": APP,
            "team_id": TEAM,
            "user_id": user,
            "command": "/guard",
            "text": text,
            "trigger_id": f"{n}.2",
            "response_url": f"http://127.0.0.1:{self.port}/answer/{n}",
        }
        return self._send("slash_commands", payload, to, n, change)

    def _send(self, kind: str, payload: dict[str, Any], to: Session | None, n: int, change: dict[str, Any]) -> str:
        envelope = str(change.pop("envelope", f"e{n}"))
        for path, value in change.items():
            *folders, last = path.split("__")
            place: Any = payload
            for folder in folders:
                place = place[int(folder) if folder.isdigit() else folder]
            place[last] = value
        message = {"type": kind, "envelope_id": envelope, "accepts_response_payload": True, "payload": payload}
        (to or self.live[-1]).send(message)
        return envelope

    # ---- requests

    def _post(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        if handler.path.startswith("/answer/") and self.redirect:
            handler.send_response(302)
            handler.send_header("Location", self.redirect)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        if handler.path.startswith("/answer/"):
            with self._changed:
                self.answers.append((handler.path, json.loads(body)))
                self._changed.notify_all()
            _reply(handler, 200, b"ok")
            return
        self.opened += 1
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "500":
            _reply(handler, 500, b"<html>")
        elif fault:
            _reply(handler, 200, json.dumps({"ok": False, "error": fault}).encode())
        elif handler.headers.get("Authorization") != f"Bearer {TOKEN}":
            _reply(handler, 200, json.dumps({"ok": False, "error": "invalid_auth"}).encode())
        else:
            url = f"ws://127.0.0.1:{self.port}/link?ticket={self.opened}"
            _reply(handler, 200, json.dumps({"ok": True, "url": url}).encode())

    def _upgrade(self, handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        key = handler.headers["Sec-WebSocket-Key"] + _GUID
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        handler.wfile.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            + f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
        )
        session = Session(handler.connection)
        with self._changed:
            self.sessions.append(session)
            self._changed.notify_all()
        session.send(self.hello)
        try:
            while self._read(handler, session):
                pass
        except (OSError, struct.error):
            pass
        with self._changed:
            session.open = False
            self._changed.notify_all()

    def _read(self, handler: BaseHTTPRequestHandler, session: Session) -> bool:
        """One frame of the client's; False at its end."""
        head = handler.rfile.read(2)
        if len(head) < 2:
            return False
        opcode, length = head[0] & 15, head[1] & 127
        assert head[1] & 128, "a client masks what it sends"
        if length == 126:
            (length,) = struct.unpack("!H", handler.rfile.read(2))
        mask = handler.rfile.read(4)
        data = bytes(b ^ m for b, m in zip(handler.rfile.read(length), itertools.cycle(mask)))
        with self._changed:
            if opcode == 1:
                self.acks.append(json.loads(data)["envelope_id"])
            elif opcode == 9:
                self.pings += 1
                if not self.deaf:
                    session.raw(frame(data, 10))
            self._changed.notify_all()
        return opcode != 8


def frame(data: bytes, opcode: int = 1, *, last: bool = True) -> bytes:
    """As a server sends it."""
    n = len(data)
    size = bytes([n]) if n < 126 else b"\x7e" + struct.pack("!H", n) if n < 1 << 16 else b"\x7f" + struct.pack("!Q", n)
    return bytes([opcode | 128 * last]) + size + data


def _reply(handler: BaseHTTPRequestHandler, status: int, data: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
