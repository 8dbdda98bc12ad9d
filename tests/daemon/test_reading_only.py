"""A daemon that may only read a home: the runs there do not know of it, and it tells of them all the same."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.clock import FakeClock
from guard.daemon.service import Daemon
from guard.daemon.settings import Settings
from guard.home import Daemon as Presence
from guard.home import Home
from guard.process import boot_id, started


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """One in which a run is announced, and no daemon can be."""
    found = Home(tmp_path / "home", FakeClock())
    (tmp_path / "run").mkdir()
    found.announce_run(tmp_path / "run", "exp1")
    (found.path / "daemons").write_text("no folder, so that root cannot write there either")
    return found


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def hub(home: Home, tmp_path: Path, said: list[str]) -> Iterator[Daemon]:
    made = Daemon(Settings(home=(home.path,), listen="off"), tmp_path / "state", FakeClock(), said.append)
    yield made
    made.close(0.0)


def test_it_tells_and_says_once_that_it_cannot_write(hub: Daemon, said: list[str]) -> None:
    hub.roster()
    (run,) = hub.watched()
    assert not hub.tells(run), "another may be about to say that it is there"
    hub.roster()
    assert hub.tells(run)
    assert len(said) == 1
    assert "cannot be written" in said[0]


def test_it_leaves_the_telling_to_one_whom_the_runs_know(
    hub: Daemon, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Presence("a", socket.gethostname(), boot_id(), os.getpid(), started(os.getpid()))
    monkeypatch.setattr(Home, "daemons", lambda self: [own])
    hub.roster()
    hub.roster()
    assert not any(hub.tells(run) for run in hub.watched())
