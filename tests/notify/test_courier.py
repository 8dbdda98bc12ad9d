"""The background thread: it tells, it survives, and it lets go in time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from notify.fake_slack import TOKEN

from guard.notify import Courier, ReceiverSpec, check_receivers, send_test
from guard.notify.rounds import outbox_path


class RealClock:
    """Real waiting, but no second between messages: the test's time is what it measures."""

    def time(self):
        return time.time()

    def monotonic(self):
        return time.monotonic()

    def wait(self, event, timeout):
        return event.wait(min(timeout, 0.02))


@pytest.fixture
def real(night, said, spec):
    couriers = []

    def make(**changes):
        couriers.append(Courier(night.run_dir, [replace(spec, **changes)], clock=RealClock(), say=said.append))
        return couriers[-1]

    yield make
    for c in couriers:
        c.close(0.5)


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_the_thread_tells_what_is_journaled(night, slack, real):
    c = real()
    c.start()
    night.opened()
    c.wake()
    until(lambda: slack.live)
    night.closed()
    c.wake()
    assert c.close(5.0)
    assert len(slack.roots()) == 1
    assert "passed by itself" in slack.roots()[0]["text"]


def test_closing_without_a_thread_delivers_too(night, slack, real):
    night.opened()
    assert real().close(5.0)
    assert len(slack.roots()) == 1


def test_closing_retries_within_its_time(night, slack, real):
    night.opened()
    slack.fail("500", "drop")
    assert real().close(5.0)
    assert len(slack.roots()) == 1


@pytest.mark.parametrize("started", [True, False])
def test_closing_takes_no_longer_than_it_may(night, slack, real, started):
    night.opened()
    slack.fail(*["hang"] * 50)
    c = real(timeout=10.0)
    if started:
        c.start()
    begun = time.monotonic()
    assert not c.close(0.3)
    assert time.monotonic() - begun < 2.0
    slack.release.set()
    assert len(c.pending()) == 1


def test_closing_while_nobody_listens(night, slack, real):
    slack.stop()
    night.opened()
    assert not real().close(0.2)


def test_closing_does_not_wait_for_what_a_person_must_mend(night, slack, real):
    slack.tokens.clear()
    night.opened()
    begun = time.monotonic()
    assert not real().close(5.0)
    assert time.monotonic() - begun < 4.0


def test_the_thread_survives_anything(night, slack, real, said, monkeypatch):
    from guard.notify import desk

    c = real()
    broken = iter([RuntimeError("with a secret"), RuntimeError("again"), MemoryError()])
    due = desk.due

    def fails(*arguments, **options):
        for error in broken:
            raise error
        return due(*arguments, **options)

    monkeypatch.setattr(desk, "due", fails)
    c.start()
    night.opened()
    for _ in range(4):
        c.wake()
        threading.Event().wait(0.01)
    until(lambda: slack.live or c.wake())
    assert [s for s in said if "secret" in s] == []
    assert said == [
        f"telling failed ({n}); training goes on, and it is tried again" for n in ("RuntimeError", "MemoryError")
    ]


def test_the_receivers_are_checked_in_the_background(night, slack, real, said):
    slack.members.clear()
    c = real()
    c.start()
    until(lambda: said)
    assert said == ["receiver training: the bot is not in #training: type there /invite @guard"]


def test_checking_says_what_to_do(slack, spec, said):
    def one(**changes):
        [finding] = check_receivers([replace(spec, **changes)], say=said.append)
        return finding.ok, finding.message

    assert one() == (True, "token valid, @guard is in #training")
    assert one(channel="C0000002")[0]
    assert one(channel="#nowhere") == (False, "the bot is not in #nowhere: type there /invite @guard")
    assert one(token="xoxb-old") == (False, "invalid_auth: the token is not valid; set a new bot token")
    assert one(token="") == (False, "no_token: the token is empty; set the bot token")
    assert one(off_reason="SLACK_BOT_TOKEN is not set") == (False, "off: SLACK_BOT_TOKEN is not set")
    assert one(webhook_url="https://hooks.example/x")[0]
    slack.denied.add("users.conversations")
    assert one()[0]
    slack.stop()
    assert one() == (False, "connection refused: connection refused")
    assert len(said) == 5


def test_a_test_message(slack, spec, capsys):
    assert send_test(spec).ok
    assert "this is a test" in slack.live[0]["text"]
    assert send_test(replace(spec, webhook_url=slack.hook())).ok
    assert send_test(ReceiverSpec("w", "webhook", webhook_url=slack.hook())).ok
    assert len(slack.hooks) == 2
    assert send_test(ReceiverSpec("c", "console")).ok
    assert "this is a test" in capsys.readouterr().err
    assert not send_test(replace(spec, token="wrong")).ok


def test_the_outbox_can_live_on_this_host(night, slack, courier, deliver, tmp_path):
    home = tmp_path / "home"
    night.opened()
    deliver(courier(state=home))
    assert outbox_path(night.run_dir, home).exists()
    assert not (night.run_dir / "outbox.db").exists()


def test_secrets_are_not_in_the_repr(spec):
    hook = ReceiverSpec("x", "webhook", webhook_url="https://hooks.example/SECRET")
    assert TOKEN not in repr(spec)
    assert "SECRET" not in repr(hook)


def test_importing_it_loads_neither_torch_nor_the_slack_client():
    code = "import sys, guard.notify; sys.exit('torch' in sys.modules or 'slack_sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
