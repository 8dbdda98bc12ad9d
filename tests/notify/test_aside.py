"""`deliver:` — who tells, the training process or a daemon; and where their common outbox is."""

from __future__ import annotations

import os
import socket

import pytest

from guard.home import Daemon, Home
from guard.notify import Aside, outbox
from guard.notify.rounds import outbox_path
from guard.process import boot_id, started


@pytest.fixture
def home(tmp_path, clock):
    return Home(tmp_path / "home", clock)


@pytest.fixture
def daemon(home):
    """Announces a daemon that lives as long as this test; `alive` renews its word."""
    pid = os.getpid()
    me = Daemon("d1", socket.gethostname(), boot_id(), pid, started(pid))

    def alive(**changes):
        home.announce_daemon(Daemon(**{**{k: getattr(me, k) for k in me.__slots__}, **changes}))

    return alive


@pytest.fixture
def process(courier, home, clock):
    return lambda deliver: courier(aside=Aside(deliver, home, clock), home=home)


def test_without_a_daemon_the_process_tells(night, slack, process):
    night.opened()
    process("auto").deliver_once()
    assert len(slack.roots()) == 1


def test_a_daemon_that_delivers_is_left_to_it(night, slack, process, courier, daemon, clock):
    daemon()
    night.opened()
    own, the_daemons = process("auto"), courier()
    progress = own.deliver_once()
    assert (progress.leader, progress.waiting) == (False, 1)
    assert slack.live == []
    the_daemons.deliver_once()
    clock.advance(outbox.LEASE + 1)
    assert own.deliver_once().waiting == 0, "it has been told"
    clock.advance(600)
    daemon()
    night.closed()
    assert own.deliver_once().waiting == 1, "what was told in time is no reason to step in"
    assert len(slack.live) == 1


@pytest.mark.parametrize("changes", [{"delivers": False}, {"host": "elsewhere"}])
def test_one_that_only_watches_or_is_elsewhere_does_not_count(night, slack, process, daemon, changes):
    daemon(**changes)
    night.opened()
    process("auto").deliver_once()
    assert len(slack.roots()) == 1


def test_what_a_daemon_leaves_untold_for_a_minute_is_told_here_from_then_on(night, slack, process, daemon, clock, said):
    own = process("auto")
    night.opened()
    for _ in range(7):
        daemon()
        own.deliver_once()
        clock.advance(9.0)
        assert slack.live == []
    own.deliver_once()
    assert len(slack.roots()) == 1
    assert said == ["the daemon has not told this run's messages for a minute; from now on the run tells them itself"]
    daemon()
    night.closed()
    own.deliver_once()
    assert "passed by itself" in slack.roots()[0]["text"], "for good"


def test_a_daemon_that_dies_is_succeeded(night, slack, process, daemon, clock):
    own = process("auto")
    daemon()
    night.opened()
    own.deliver_once()
    clock.advance(61)  # its word is not good any more
    own.deliver_once()
    assert len(slack.roots()) == 1


def test_process_never_waits_for_a_daemon(night, slack, process, daemon):
    daemon()
    night.opened()
    process("process").deliver_once()
    assert len(slack.roots()) == 1


def test_daemon_leaves_it_to_one_whatever_happens(night, slack, process, clock):
    own = process("daemon")
    night.opened()
    for _ in range(20):
        own.deliver_once()
        clock.advance(60)
    assert slack.live == []


@pytest.mark.parametrize(("deliver", "lives", "told"), [("daemon", False, 1), ("daemon", True, 0), ("auto", True, 0)])
def test_at_the_end_somebody_must_tell(night, slack, process, daemon, deliver, lives, told):
    own = process(deliver)
    if lives:
        daemon()
    night.opened()
    own.deliver_once()
    assert own.close(5.0) == bool(told)
    assert len(slack.live) == told


def test_whoever_takes_over_doubles_nothing(night, slack, process, courier, daemon, clock, deliver):
    """The daemon has posted and dies before it could record it."""
    daemon()
    the_daemons = courier()
    night.opened()
    slack.fail("lost", method="chat.postMessage")
    the_daemons.deliver_once()
    assert len(slack.live) == 1
    clock.advance(61)
    deliver(process("auto"))
    assert len(slack.live) == 1


def test_on_a_network_disk_the_outbox_lies_on_the_hosts_own(night, monkeypatch, tmp_path, clock, courier, slack):
    from guard.notify import rounds

    monkeypatch.setattr(rounds, "on_shared_disk", lambda path: path == night.run_dir)
    monkeypatch.setattr(rounds, "local_state", lambda: tmp_path / "local")
    night.opened()
    courier().deliver_once()
    assert len(slack.roots()) == 1
    assert outbox_path(night.run_dir).parent == tmp_path / "local"
    assert outbox_path(night.run_dir).exists()
    assert not (night.run_dir / "outbox.db").exists()
    assert outbox_path(tmp_path / "other") == tmp_path / "other" / "outbox.db"
