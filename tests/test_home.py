"""The home: who announces himself is found, who claims is alone, and what is dead or damaged blocks nobody."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard import home
from guard.clock import FakeClock
from guard.home import LEASE, Daemon, Home, run_id
from guard.process import boot_id, started


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def at(tmp_path: Path, clock: FakeClock) -> Home:
    return Home(tmp_path / "home", clock)


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GUARD_HOME", str(tmp_path))
    assert home.where() == tmp_path
    monkeypatch.setenv("GUARD_HOME", "")
    assert home.where() is None
    monkeypatch.delenv("GUARD_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert home.where() == Path("/state/training-guard")


def test_a_run_announced_is_found(at: Home, tmp_path: Path) -> None:
    assert list(at.runs()) == []
    said = at.announce_run(tmp_path, "exp1", world=2, supervisor=(7, "70"))
    assert list(at.runs()) == [said]
    assert (said.pid, said.started, said.host) == (os.getpid(), started(os.getpid()), socket.gethostname())
    assert at.run(said.id) == said
    at.forget_run(said.id)
    assert list(at.runs()) == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "", "a/b", "x" * 300])
def test_a_path_in_place_of_a_run_finds_nothing(at: Home, name: str) -> None:
    assert at.run(name) is None


def test_a_file_that_claims_to_be_another_run_is_passed_over(at: Home, tmp_path: Path) -> None:
    said = at.announce_run(tmp_path, "exp1")
    file = at.path / "runs" / f"{said.id}.json"
    raw = json.loads(file.read_text())
    for damage in (b"", b"[]", b"{}", b"null", json.dumps({**raw, "run_dir": "/elsewhere"}).encode(), b"\xff"):
        file.write_bytes(damage)
        assert list(at.runs()) == []
    file.with_name(f"{run_id('other', str(tmp_path))}.json").write_text(json.dumps(raw))
    assert list(at.runs()) == []


def test_a_daemon_lives_as_long_as_its_process_here_and_as_its_word_elsewhere(at: Home, clock: FakeClock) -> None:
    here = Daemon("a", socket.gethostname(), boot_id(), os.getpid(), started(os.getpid()))
    gone = Daemon("b", socket.gethostname(), boot_id(), os.getpid(), "1")
    there = Daemon("c", "elsewhere", "x", 1, "1", delivers=False)
    for daemon in (here, gone, there):
        at.announce_daemon(daemon)
    assert at.daemons() == [here, there]
    assert at.delivers(socket.gethostname())
    assert not at.delivers("elsewhere")
    clock.advance(LEASE + 1)
    assert at.daemons() == []
    at.announce_daemon(here)
    at.withdraw_daemon(here)
    assert at.daemons() == []


def test_one_daemon_tells_of_a_run(at: Home, clock: FakeClock, tmp_path: Path) -> None:
    run = at.announce_run(tmp_path, "exp1")
    assert at.teller(run) is None
    far = Daemon("a", "elsewhere", "x", 1, "1")
    at.announce_daemon(far)
    assert at.teller(run) == far
    near = [Daemon(i, socket.gethostname(), boot_id(), os.getpid(), started(os.getpid())) for i in "cb"]
    for daemon in near:
        at.announce_daemon(daemon)
    assert at.teller(run) == near[1]
    at.announce_daemon(Daemon("aa", socket.gethostname(), boot_id(), os.getpid(), started(os.getpid()), delivers=False))
    assert at.teller(run) == near[1]


def test_a_claim_is_held_once_it_has_settled(at: Home, clock: FakeClock) -> None:
    assert not at.claim("listeners", "r", "a")
    clock.advance(3)
    assert at.claim("listeners", "r", "a")
    assert not at.claim("listeners", "r", "b")
    clock.advance(LEASE - 1)
    assert at.claim("listeners", "r", "a", app="A1")
    assert at.claimed("listeners")["r"]["app"] == "A1"
    at.release("listeners", "r", "b")
    assert not at.claim("listeners", "r", "b")
    at.release("listeners", "r", "a")
    assert not at.claim("listeners", "r", "b")
    clock.advance(3)
    assert at.claim("listeners", "r", "b")
    clock.advance(LEASE + 1)
    assert at.claimed("listeners") == {}
    assert not at.claim("listeners", "r", "b"), "it had lapsed, so another may have had it meanwhile"


def test_a_clock_set_back_does_not_hold_for_ever(at: Home, clock: FakeClock) -> None:
    clock.advance(1e6)
    at.claim("listeners", "r", "a")
    clock.advance(-1e6)
    at.claim("listeners", "r", "b")
    clock.advance(3)
    assert at.claim("listeners", "r", "b")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 90.0), st.booleans()), max_size=60))
def test_never_two_at_a_time(tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, float, bool]]) -> None:
    clock = FakeClock()
    at = Home(tmp_path_factory.mktemp("home"), clock)
    held: dict[str, float] = {}
    for who, pause, release in calls:
        clock.advance(pause)
        if at.claim("listeners", "r", who):
            assert all(clock.time() >= until for other, until in held.items() if other != who)
            held[who] = clock.time() + LEASE
        elif who in held:
            assert clock.time() >= held.pop(who)
        if release and who in held:
            at.release("listeners", "r", who)
            del held[who]


def test_what_is_forwarded_is_taken_once(at: Home) -> None:
    at.forward("d1", {"verb": "stop"})
    (at.path / "forward" / "d1" / "damaged.json").write_text("{")
    assert at.forwarded("d2") == []
    assert at.forwarded("d1") == [{"verb": "stop"}]
    assert at.forwarded("d1") == []


def test_this_disk_is_not_shared(tmp_path: Path) -> None:
    assert not home.on_shared_disk(tmp_path)


def test_what_somebody_else_has_put_in_its_place_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GUARD_LOCAL_STATE", raising=False)
    monkeypatch.setattr(home, "_SCRATCH", tmp_path)
    usual = tmp_path / f"training-guard-{os.getuid()}"
    assert home.local_state() == usual
    usual.mkdir()
    assert home.local_state() == usual
    usual.rmdir()
    usual.symlink_to("/etc")
    assert home.local_state().is_relative_to(Path.home())
