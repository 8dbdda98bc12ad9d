"""To whom the page answers: those who name loopback, and nobody whose name only points there."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.clock import FakeClock
from guard.daemon.page import Page
from guard.daemon.service import Daemon
from guard.daemon.settings import Settings
from guard.home import Home


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    clock = FakeClock()
    (tmp_path / "run").mkdir()
    Home(tmp_path / "home", clock).announce_run(tmp_path / "run", "<b>exp1</b>")
    daemon = Daemon(Settings(home=(tmp_path / "home",), listen="off"), tmp_path / "state", clock, lambda text: None)
    daemon.roster()
    served = Page(daemon, ("127.0.0.1", 0))
    yield served
    served.close()
    daemon.close(0.0)


def get(page: Page, path: str, host: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=30)
    try:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("host", ["127.0.0.1:8787", "127.0.0.2:8787", "localhost", "[::1]:8787", "[::1]"])
def test_whoever_names_loopback_is_answered(page: Page, host: str) -> None:
    assert get(page, "/healthz", host)[0] == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example:8787", "10.0.0.1", "[", "localhost.evil.example", "127.0.0.1.nip.io"]
)
def test_a_name_that_only_points_here_reads_nothing(page: Page, host: str) -> None:
    for path in ("/", "/healthz", "/metrics"):
        assert get(page, path, host) == (404, "not here\n")


def test_a_runs_name_is_text(page: Page) -> None:
    status, text = get(page, "/", "localhost")
    assert status == 200
    assert "exp1" in text
    assert "<b>" not in text


def test_metrics_and_nothing_else(page: Page) -> None:
    assert "guard_run_state{" in get(page, "/metrics?x=1", "localhost")[1]
    assert get(page, "/etc/passwd", "localhost")[0] == 404
