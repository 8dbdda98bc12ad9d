"""What the daemon says of itself on loopback: ``/metrics`` for Prometheus, ``/healthz`` for whoever restarts it, and
``/`` for a person."""

from __future__ import annotations

import html
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, generate_latest

from guard.daemon.metrics import Collector
from guard.daemon.settings import is_loopback
from guard.incidents.tail import last_signals
from guard.notify.words import number, one_line

if TYPE_CHECKING:
    from guard.daemon.service import Daemon
    from guard.daemon.watched import Watched

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TIMEOUT = 10.0  # [s] for one request


class Page:
    """Serves until it is closed.

    Args:
        address: host and port; port 0 takes one that is free.

    Raises:
        OSError: the address cannot be had.
    """

    def __init__(self, daemon: Daemon, address: tuple[str, int]) -> None:
        page, self._daemon = self, daemon
        registry = CollectorRegistry()
        registry.register(Collector(daemon))

        class Handler(BaseHTTPRequestHandler):
            timeout = _TIMEOUT

            def do_GET(self) -> None:
                # A page elsewhere that has a name of its own pointed at this address is not to read it.
                known = (
                    page.answers(registry).get(self.path.partition("?")[0]) if _is_local(self.headers["Host"]) else None
                )
                status, kind, body = known() if known else (404, "text/plain", b"not here\n")
                self.send_response(status)
                for name, value in (
                    ("Content-Type", kind),
                    ("Content-Length", str(len(body))),
                    ("Cache-Control", "no-store"),
                ):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # somebody hung up

        self._server = Server(address, Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="guard-page", daemon=True).start()

    def answers(self, registry: CollectorRegistry) -> dict[str, Any]:
        """By path, what answers: status, content type, body."""
        return {
            "/metrics": lambda: (200, METRICS_TYPE, generate_latest(registry)),
            "/healthz": lambda: _health(self._daemon),
            "/": lambda: (200, "text/html; charset=utf-8", _html(self._daemon).encode()),
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _is_local(host: str | None) -> bool:
    """Whether the Host of a request names loopback."""
    try:
        return is_loopback(urlsplit(f"//{host or ''}").hostname or "")
    except ValueError:
        return False


def _health(daemon: Daemon) -> tuple[int, str, bytes]:
    stuck = daemon.jobs.stuck()
    facts = {"ok": not stuck, "stuck_jobs": stuck, "runs": len(daemon.watched()), "pid": daemon.presence.pid}
    return 503 if stuck else 200, "application/json", json.dumps(facts).encode() + b"\n"


_STYLE = """
:root{color-scheme:light dark;--line:#8884}
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}
h1{font-size:1.2rem;margin:0 0 .2rem}p{margin:.2rem 0 1rem;opacity:.75}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.45rem .9rem .45rem 0;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-weight:600;font-size:.85rem;opacity:.75}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.s{display:inline-block;border-radius:1rem;padding:.05rem .6rem;font-size:.85rem;background:#8883}
.running,.finished{background:#2a93}.late{background:#da13}.hung,.crashed{background:#d334;font-weight:600}
"""
_COLUMNS = (
    ("Run", False), ("Host", False), ("State", False), ("Step", True), ("Loss", True), ("Gradient norm", True),
    ("Heartbeat", True), ("Incidents", True), ("Untold", True),
)  # fmt: skip


def _html(daemon: Daemon) -> str:
    watched = sorted(daemon.watched(), key=lambda w: -w.run.time)
    rows = (
        "\n".join(_row(daemon, w) for w in watched)
        or f'<tr><td colspan="{len(_COLUMNS)}">No run has announced itself.</td></tr>'
    )
    head = "".join(f"<th{' class=n' if right else ''}>{name}</th>" for name, right in _COLUMNS)
    stuck = daemon.jobs.stuck()
    count = f"{len(watched)} run{'' if len(watched) == 1 else 's'}"
    state = f"Stuck: {', '.join(stuck)}" if stuck else "All jobs on time"
    homes = ", ".join(str(h.path) for h in daemon.homes)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="10">'
        '<meta name="viewport" content="width=device-width"><title>Training guard</title>'
        f"<style>{_STYLE}</style></head><body><h1>Training guard: {count}</h1>"
        f"<p>{html.escape(state)} · listener on Slack: {daemon.listening} · home {html.escape(homes)}</p>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></body></html>\n'
    )


def _row(daemon: Daemon, watched: Watched) -> str:
    signals = last_signals(watched.path) or {}
    age = f"{daemon.clock.monotonic() - watched.beat_at:.0f} s ago" if watched.beats else "none"
    incidents = list(watched.log.incidents.values())
    open_ = sum(not i.ended for i in incidents) if watched.log.finished is None else 0
    cells = (
        (one_line(watched.run.run, 60), False),
        (one_line(watched.run.host, 40), False),
        (None, False),
        (f"{watched.step:,.0f}" if watched.beats else "", True),
        (number(signals["loss"]) if signals else "", True),
        (number(signals["grad_norm"]) if signals else "", True),
        (age, True),
        (f"{len(incidents)}" + (f" ({open_} open)" if open_ else ""), True),
        (str(daemon.telling.standing(watched.run.id).waiting or ""), True),
    )
    shown = (
        f'<td><span class="s {watched.state}">{watched.state}</span></td>'
        if text is None
        else f"<td{' class=n' if right else ''}>{html.escape(text)}</td>"
        for text, right in cells
    )
    return f"<tr>{''.join(shown)}</tr>"
