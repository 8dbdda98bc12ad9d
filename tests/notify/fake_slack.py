"""A Slack for tests: a threaded HTTP server on loopback that keeps messages, enforces Slack's limits, and can fail.

A fault is taken for each request that matches its method (any, if it names none): ``ok``, ``lost`` (done, but the
reply never comes), ``drop`` (not done, no reply), ``500``, ``html`` (500 with a page), ``hang`` (done, but no reply in
time), ``429:SECONDS``, ``CODE`` (an error code; not done), ``done:CODE`` (done, but says so).
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "xoxb-SECRET-TOKEN"
Fault = tuple[str, str | None]


class FakeSlack:
    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.channels = {"C0000001": "training", "C0000002": "oncall"}
        self.members = set(self.channels)
        self.tokens = {TOKEN}
        self.archived: set[str] = set()
        self.denied: set[str] = set()  # methods for which the token lacks the scope
        self.messages: list[dict[str, Any]] = []
        self.hooks: list[dict[str, Any]] = []
        self.signed: list[tuple[dict[str, str], bytes]] = []  # headers and body of what came to a hook
        self.files: dict[str, bytes] = {}
        self.files_busy = 0  # so many messages with a picture are refused while it is still worked on
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.times: dict[str, list[float]] = {}
        self._count = 0
        self._lock = threading.RLock()
        self.release = threading.Event()
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    # ---- life

    def start(self) -> FakeSlack:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                fake._serve(self)

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
        """Refuses connections until `start`."""
        self.release.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/"

    def hook(self, kind: str = "json") -> str:
        return f"http://127.0.0.1:{self.port}/hook/{kind}"

    def fail(self, *kinds: str, method: str | None = None) -> None:
        self.faults += [(kind, method) for kind in kinds]

    # ---- what tests look at

    @property
    def live(self) -> list[dict[str, Any]]:
        return [m for m in self.messages if not m["deleted"]]

    def roots(self, channel: str = "C0000001") -> list[dict[str, Any]]:
        return [m for m in self.live if m["channel"] == channel and not m["thread"]]

    def thread(self, root: dict[str, Any]) -> list[dict[str, Any]]:
        return [m for m in self.live if m["thread"] == root["ts"] and m["channel"] == root["channel"]]

    # ---- requests

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        method = parts.path.rsplit("/", 1)[-1] if parts.path.startswith("/api/") else parts.path
        with self._lock:
            self.requests.append(method)
            fault = self._take(method)
            if fault in ("drop", "500", "html") or (fault and fault[:4] not in ("lost", "hang", "done")):
                answer: dict[str, Any] | str = {"ok": False, "error": fault}
            else:
                answer = self._answer(handler, method, _arguments(handler, parts.query, body), body)
        if fault == "hang":
            self.release.wait(5.0)
        if fault in ("lost", "drop", "hang"):
            handler.close_connection = True
            return
        status, headers = 200, {}
        if fault == "500":
            status, answer = 500, {"ok": False}
        elif fault == "html":
            status, answer = 500, "<html><body>Server error &amp; so on</body></html>"
        elif fault and fault.startswith("429"):
            status, answer, headers = 429, {"ok": False, "error": "ratelimited"}, {"Retry-After": fault[4:]}
        elif fault and fault.startswith("done:"):
            answer = {"ok": False, "error": fault[5:]}
        data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        handler.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    def _take(self, method: str) -> str | None:
        for i, (kind, wanted) in enumerate(self.faults):
            if wanted in (None, method):
                del self.faults[i]
                return None if kind == "ok" else kind
        return None

    def _answer(
        self, handler: BaseHTTPRequestHandler, method: str, a: dict[str, Any], body: bytes
    ) -> dict[str, Any] | str:
        if method.startswith("/hook/"):
            self.hooks.append(a)
            self.signed.append((dict(handler.headers.items()), body))
            return "ok"
        if method.startswith("/upload/"):
            self.files[method.rsplit("/", 1)[-1]] = body
            return "OK"
        if handler.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            return {"ok": False, "error": "invalid_auth"}
        if method in self.denied:
            return {"ok": False, "error": "missing_scope", "needed": "x", "provided": "y"}
        return getattr(self, "_" + method.replace(".", "_"))(a)

    def _auth_test(self, a: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "user": "guard"}

    def _users_conversations(self, a: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "channels": [{"id": i, "name": n} for i, n in self.channels.items() if i in self.members]}

    def _chat_postMessage(self, a: dict[str, Any]) -> dict[str, Any]:
        channel = next((i for i, n in self.channels.items() if a["channel"] in (i, n, "#" + n)), None)
        if channel is None:
            return {"ok": False, "error": "channel_not_found"}
        if channel not in self.members:
            return {"ok": False, "error": "not_in_channel"}
        if channel in self.archived:
            return {"ok": False, "error": "is_archived"}
        if error := self._refused(a):
            return {"ok": False, "error": error}
        thread = a.get("thread_ts")
        if thread and not any(m["ts"] == thread for m in self.live):
            return {"ok": False, "error": "thread_not_found"}
        ts = self._ts(channel)
        self.messages.append(
            {
                "channel": channel,
                "ts": ts,
                "text": a["text"],
                "blocks": a.get("blocks") or [],
                "thread": thread,
                "broadcast": bool(a.get("reply_broadcast")),
                "deleted": False,
                "edits": 0,
                "metadata": a.get("metadata"),
            }
        )
        return {"ok": True, "channel": channel, "ts": ts}

    def _chat_update(self, a: dict[str, Any]) -> dict[str, Any]:
        found = [m for m in self.live if (m["channel"], m["ts"]) == (a["channel"], a["ts"])]
        if a["channel"] not in self.channels:
            return {"ok": False, "error": "channel_not_found"}
        if a["channel"] in self.archived:
            return {"ok": False, "error": "is_inactive"}
        if not found:
            return {"ok": False, "error": "message_not_found"}
        if error := self._refused(a):
            return {"ok": False, "error": error}
        self._ts(a["channel"])
        found[0].update(
            text=a["text"], blocks=a.get("blocks") or [], edits=found[0]["edits"] + 1, metadata=a.get("metadata")
        )
        return {"ok": True, "channel": a["channel"], "ts": a["ts"]}

    def _conversations_history(self, a: dict[str, Any]) -> dict[str, Any]:
        if a["channel"] not in self.channels:
            return {"ok": False, "error": "channel_not_found"}
        inside = [
            m
            for m in self.live
            if m["channel"] == a["channel"]
            and (not m["thread"] or m["broadcast"])
            and float(a.get("oldest", 0)) <= float(m["ts"]) <= float(a.get("latest", 1e12))
        ]
        return _page(inside[::-1], a)

    def _conversations_replies(self, a: dict[str, Any]) -> dict[str, Any]:
        inside = [m for m in self.live if m["channel"] == a["channel"] and a["ts"] in (m["ts"], m["thread"])]
        return _page(inside, a) if inside else {"ok": False, "error": "thread_not_found"}

    def _files_getUploadURLExternal(self, a: dict[str, Any]) -> dict[str, Any]:
        file_id = f"F{len(self.files) + 1}"
        return {"ok": True, "file_id": file_id, "upload_url": f"http://127.0.0.1:{self.port}/upload/{file_id}"}

    def _files_completeUploadExternal(self, a: dict[str, Any]) -> dict[str, Any]:
        assert "channel_id" not in a, "uploaded unshared"
        return {"ok": True, "files": [{"id": f["id"]} for f in a["files"]]}

    def _ts(self, channel: str) -> str:
        self._count += 1
        self.times.setdefault(channel, []).append(self.clock.time())
        return f"{int(self.clock.time())}.{self._count:06d}"

    def _refused(self, a: dict[str, Any]) -> str | None:
        blocks = a.get("blocks") or []
        if len(a["text"]) > 40_000:
            return "msg_too_long"
        if len(blocks) > 50 or sum(len(t) for b in blocks for t in _texts(b)) > 10_000:
            return "msg_blocks_too_long"
        for block in blocks:
            limits = {"header": 150, "section": 3000}
            if any(len(t) > limits.get(block["type"], 3000) or not t for t in _texts(block)):
                return "invalid_blocks"
            if len(block.get("fields", [])) > 10 or any(len(f["text"]) > 2000 for f in block.get("fields", [])):
                return "invalid_blocks"
            if block["type"] == "actions" and not _sound_buttons(block["elements"]):
                return "invalid_blocks"
            if block["type"] == "image":
                if self.files_busy:
                    self.files_busy -= 1
                    return "invalid_blocks"
                if block["slack_file"]["id"] not in self.files:
                    return "invalid_blocks"
        return None


def _sound_buttons(elements: list[dict[str, Any]]) -> bool:
    """As Slack checks them: at most 25, each with an id of its own, and every text within its limit."""
    limits = {"title": 100, "text": 300, "confirm": 30, "deny": 30}
    return (
        0 < len(elements) <= 25
        and len({e["action_id"] for e in elements}) == len(elements)
        and all(len(e["text"]["text"]) <= 75 and len(e["value"]) <= 2000 for e in elements)
        and all(0 < len(e["confirm"][k]["text"]) <= n for e in elements if "confirm" in e for k, n in limits.items())
    )


def _texts(block: dict[str, Any]) -> list[str]:
    return [block["text"]["text"]] if "text" in block else [f["text"] for f in block.get("fields", [])]


def _arguments(handler: BaseHTTPRequestHandler, query: str, body: bytes) -> dict[str, Any]:
    if "json" in (handler.headers.get("Content-Type") or ""):
        return dict(json.loads(body))
    if "octet" in (handler.headers.get("Content-Type") or ""):
        return {}
    return {k: v[0] for k, v in parse_qs(query + "&" + body.decode()).items()}


def _page(messages: list[dict[str, Any]], a: dict[str, Any]) -> dict[str, Any]:
    start, limit = int(a.get("cursor") or 0), int(a.get("limit", 100))
    shown = [
        {"ts": m["ts"], "text": m["text"], "metadata": m["metadata"] if a.get("include_all_metadata") else None}
        for m in messages[start : start + limit]
    ]
    more = str(start + limit) if start + limit < len(messages) else ""
    return {"ok": True, "messages": shown, "response_metadata": {"next_cursor": more}}
