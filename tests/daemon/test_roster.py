"""Which runs a daemon knows, and of which it tells: where it may only read, and when a home or a run is gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
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


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Makes one that watches some homes, each with a run, named like its home."""
    made: list[Daemon] = []
    clock = FakeClock()

    def make(*names: str) -> Daemon:
        for name in names:
            (tmp_path / f"run-{name}").mkdir()
            Home(tmp_path / name, clock).announce_run(tmp_path / f"run-{name}", name)
        settings = Settings(home=tuple(tmp_path / name for name in names), listen="off")
        made.append(Daemon(settings, tmp_path / "state", clock, lambda text: None))
        return made[-1]

    yield make
    for one in made:
        one.close(0.0)


def known(daemon: Daemon) -> list[str]:
    return [watched.run.run for watched in daemon.watched()]


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


def test_a_home_that_is_not_watched_any_more_is_left(daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    one = daemon("a", "b")
    for _ in range(2):
        one.roster()
    assert all(map(one.tells, one.watched()))
    left, kept = one.homes
    one.reload(Settings(home=(kept.path,), listen="off"))
    assert left.daemons() == [], "runs there are not to rely on it"
    one.roster()
    assert [watched.run.run for watched in one.watched() if one.tells(watched)] == ["b"]
    one.tidy()
    assert known(one) == ["b"]


def test_a_run_that_another_daemon_has_forgotten_is_not_kept(daemon: Callable[..., Daemon]) -> None:
    one = daemon("a")
    one.roster()
    one.homes[0].forget_run(one.watched()[0].run.id)
    one.roster()
    one.tidy()
    assert known(one) == []


def test_what_was_learned_outlives_a_home_that_cannot_be_read_for_a_while(daemon: Callable[..., Daemon]) -> None:
    one = daemon("a")
    one.roster()
    (watched,) = one.watched()
    watched.condition.judge._longest["step"] = 300.0
    runs = one.homes[0].path / "runs"
    runs.rename(runs.with_name("away"))
    one.roster()
    one.tidy()
    assert known(one) == []
    runs.with_name("away").rename(runs)
    one.roster()
    assert one.watched()[0].condition.judge.longest == {"step": 300.0}
