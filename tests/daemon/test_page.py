"""What the daemon says on loopback, and to whom; and its loop: new settings, the watchdog, the end."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from pathlib import Path

import pytest
from daemon.theatre import Theatre

from guard.daemon import systemd
from guard.daemon.loop import Loop
from guard.daemon.page import Page
from guard.daemon.settings import Settings
from guard.incidents.rundir import CSV_COLUMNS


def get(port: int, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_pages(theatre: Theatre) -> None:
    stage = theatre.run("<b>../x</b>\n")
    (stage.path / "signals.csv").write_text(",".join(CSV_COLUMNS) + "\n5,5,2.25,0.5,1e-3,1e-3,1,0\n")
    theatre.go(10, stages=(stage,))
    theatre.die(stage)
    theatre.go(10)
    page = Page(theatre.daemon, ("127.0.0.1", 0))
    try:
        status, metrics = get(page.port, "/metrics")
        assert status == 200
        lines = [line for line in metrics.splitlines() if not line.startswith("#")]
        (watched,) = theatre.daemon.watched()
        labels = f'host="{socket.gethostname()}",run="<b>../x</b>",run_id="{watched.run.id}"'
        assert f'guard_run_state{{{labels},state="crashed"}} 1.0' in lines
        assert f"guard_run_loss{{{labels}}} 2.25" in lines
        assert any(line.startswith("guard_run_incidents{") and 'policy="watch"' in line for line in lines)
        status, health = get(page.port, "/healthz")
        assert (status, json.loads(health)["runs"]) == (200, 1)
        status, table = get(page.port, "/")
        assert status == 200
        assert "&lt;b&gt;../x&lt;/b&gt;" in table
        assert "<b>" not in table
        assert get(page.port, "/../etc/passwd")[0] == 404
        assert get(page.port, "/", host="evil.example")[0] == 404
        assert get(page.port, "/", host=f"localhost:{page.port}")[0] == 200
        theatre.clock.advance(60)
        status, health = get(page.port, "/healthz")
        assert status == 503
        assert "watch" in json.loads(health)["stuck_jobs"]
    finally:
        page.close()


def test_new_settings_are_taken_up_and_bad_ones_refused(theatre: Theatre, tmp_path: Path) -> None:
    file = tmp_path / "daemon.yaml"
    file.write_text("version: 1")
    found: list[Settings | None] = []
    loop = Loop(theatre.daemon, file, lambda: found.pop(0))
    loop.look()
    assert theatre.said == []
    file.write_text("version: 1 # bad")
    found.append(None)
    loop.look()
    assert theatre.said == ["the new settings are refused, the old ones stay in force"]
    assert theatre.daemon.settings.digest is None
    new = Settings.model_validate(
        {"home": [theatre.home.path], "listen": "off", "digest": {"cron": "0 9 * * *"}}, strict=False
    )
    found.append(new)
    loop.ask_to_reload()
    loop.look()
    assert theatre.daemon.settings is new
    assert "digest" in theatre.daemon.jobs.jobs
    file.unlink()
    loop.look()
    assert theatre.said[-1] == "new settings are in force", "a file that is being replaced is no other file"


def test_the_watchdog_is_fed_only_while_jobs_advance(
    theatre: Theatre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        loop = Loop(theatre.daemon, None, lambda: None)
        assert systemd.watchdog() == 30.0
        loop.look()
        assert sock.recv(999).startswith(b"WATCHDOG=1")
        theatre.clock.advance(60)
        loop.look()
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(999)
    loop.look()  # nobody listens any more


def test_where_the_page_is_is_announced(theatre: Theatre) -> None:
    theatre.restart()
    theatre.daemon.settings = theatre.daemon.settings.model_copy(update={"listen": "127.0.0.1:0"})
    loop = Loop(theatre.daemon, None, lambda: None)
    loop._serve()
    theatre.daemon.roster()
    (found,) = theatre.home.daemons()
    assert found.page.startswith("http://127.0.0.1:")
    assert get(int(found.page.rstrip("/").rpartition(":")[2]), "/healthz")[0] == 200
    assert loop._page is not None
    loop._page.close()


def test_from_start_to_end(theatre: Theatre) -> None:
    loop = Loop(theatre.daemon, None, lambda: None)
    # On this clock a wait takes no time: the loop is told to end by what it says when it has begun.
    begun = threading.Event()
    theatre.daemon.say = lambda text: (theatre.said.append(text), begun.set(), loop.end())[0]
    loop.run(1.0)
    assert begun.is_set()
    assert theatre.said[-1] == "ending"
    assert theatre.home.daemons() == []
    theatre.daemons.clear()
