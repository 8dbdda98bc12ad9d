"""The listener before a Slack on loopback: what is pressed is done once, and nothing that comes or fails ends it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from cli.run_builder import RunBuilder, a_night
from daemon.fake_socket_mode import APP, OPERATOR, STRANGER, TEAM, TOKEN, FakeSocketMode, frame

from guard.clock import FakeClock
from guard.daemon import link as link_module
from guard.daemon.hearing import Wish
from guard.daemon.listener import Listener, app_id
from guard.home import LEASE, Home
from guard.incidents import IncidentLog, control, read_story


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def slack() -> Iterator[FakeSocketMode]:
    fake = FakeSocketMode().start()
    yield fake
    fake.stop()


@pytest.fixture
def home(tmp_path: Path, clock: FakeClock) -> Home:
    return Home(tmp_path / "home", clock)


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    built = a_night(tmp_path / "exp1")
    built.alive()
    return built


@pytest.fixture
def id_(home: Home, run: RunBuilder) -> str:
    return home.announce_run(run.path, "exp1").id


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def listen(slack: FakeSocketMode, home: Home, clock: FakeClock, said: list[str]) -> Iterator[Callable[..., Listener]]:
    begun: list[Listener] = []

    def start(token: Callable[[], str] = lambda: TOKEN, **options: Any) -> Listener:
        options = {"operators": {OPERATOR}, "base_url": slack.url, "team": TEAM, "wait": 0.05, **options}
        listener = Listener(token, home=home, clock=clock, say=said.append, **options)
        listener.start()
        begun.append(listener)
        return listener

    yield start
    for listener in begun:
        listener.stop(5.0)
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("guard-listener", "guard-deeds"))]


@pytest.fixture
def connected(listen: Callable[..., Listener], slack: FakeSocketMode, clock: FakeClock) -> Listener:
    listener = listen()
    connect(listener, slack, clock)
    return listener


def connect(listener: Listener, slack: FakeSocketMode, clock: FakeClock) -> None:
    """Ticks, three seconds apart, until it listens."""
    for _ in range(100):
        listener.tick()
        slack.until(lambda: listener.state.status == "connected" or listener._link is None)
        if listener.state.status == "connected":
            return
        clock.advance(3.0)
    raise AssertionError(listener.state)


def acks(run: RunBuilder) -> list[dict[str, Any]]:
    return [e for e in read_story(run.path) if e["kind"] == "ack"]


# ---- people


@pytest.mark.parametrize("verb", ["observe", "undo", "rollback", "stop", "resume"])
def test_a_button_becomes_a_request(
    verb: str, connected: Listener, slack: FakeSocketMode, run: RunBuilder, id_: str, clock: FakeClock
) -> None:
    envelope = slack.press(verb, {"run": id_, "incident": "i0004", "verb": verb})
    slack.until(lambda: slack.answers)
    slack.until(lambda: slack.acks == [envelope])
    (request,) = control.take(run.path, clock.time())
    assert isinstance(request, control.Request)
    assert (request.verb, request.author, request.refused) == (verb, f"{OPERATOR} (Slack)", "")
    assert slack.texts[0].startswith("exp1 was asked to")
    slack.until(lambda: (connected.state.done, connected.state.refused) == (1, 0))
    assert connected.state.last_event_at == clock.time()


def test_acknowledge_and_silence(
    connected: Listener, slack: FakeSocketMode, run: RunBuilder, id_: str, clock: FakeClock
) -> None:
    slack.press("ack", {"run": id_, "incident": "i0004", "verb": "ack"})
    slack.press("silence", {"run": id_, "incident": "i0004", "verb": "silence"})
    slack.until(lambda: len(slack.answers) == 2)
    log = IncidentLog(read_story(run.path))
    assert log.acks["i0004"]["author"] == f"{OPERATOR} (Slack)"
    assert log.silence("skip-on-loss-spike", clock.time() + 3599) is not None


def test_commands(connected: Listener, slack: FakeSocketMode, run: RunBuilder, id_: str, clock: FakeClock) -> None:
    for text in ("status", "silence exp1 2h", "stop exp1", "help", "explode"):
        slack.type(text)
    slack.until(lambda: len(slack.answers) == 5)
    status, silence, stop, usage, unknown = slack.texts
    assert status.startswith(f"exp1 ({id_})")
    assert "silenced for 120 min" in silence
    assert stop == "exp1 was asked to stop at its next step."
    assert "/guard silence" in usage
    assert unknown.startswith("There is no such command.")
    assert len(control.take(run.path, clock.time())) == 1
    slack.until(lambda: len(slack.acks) == 5)


def test_the_runs_own_answer_follows(
    connected: Listener, slack: FakeSocketMode, run: RunBuilder, id_: str, clock: FakeClock
) -> None:
    slack.press("stop", {"run": id_, "verb": "stop"})
    slack.until(lambda: slack.answers)
    (request,) = control.take(run.path, clock.time())
    assert isinstance(request, control.Request)
    run.write("request", request={"id": request.id}, author="", accepted=True, message="the run is stopped")
    slack.type("help")  # which wakes who does the deeds
    slack.until(lambda: len(slack.answers) == 3)
    same = [body["text"] for at, body in slack.answers if at == slack.answers[0][0]]
    assert same == ["exp1 was asked to stop at its next step.", "exp1: done at step 1,714: the run is stopped"]


def test_who_is_not_listed_is_refused_told_and_journaled(
    connected: Listener, slack: FakeSocketMode, run: RunBuilder, id_: str
) -> None:
    slack.press("stop", {"run": id_, "verb": "stop"}, user=STRANGER)
    slack.type("status", user=STRANGER)
    slack.until(lambda: len(slack.answers) == 2)
    assert all(text.startswith("Only people listed as operators") for text in slack.texts)
    (entry,) = [e for e in read_story(run.path) if e["kind"] == "request"]
    assert (entry["author"], entry["accepted"]) == (f"{STRANGER} (Slack)", False)
    assert entry["request"] == {"verb": "stop"}
    assert not (run.path / "control").exists()
    slack.until(lambda: (connected.state.done, connected.state.refused) == (0, 2))
    slack.until(lambda: len(slack.acks) == 2)


def test_what_another_host_has_forwarded_is_done_whether_it_listens_or_not(
    listen: Callable[..., Listener], slack: FakeSocketMode, home: Home, run: RunBuilder, id_: str, clock: FakeClock
) -> None:
    listener = listen(lambda: "", daemon="d9")
    at = f"http://127.0.0.1:{slack.port}/answer/1"
    wish = Wish("ack", OPERATOR, f"{OPERATOR} 1", at, id_, "i0004")
    home.forward("d9", {**asdict(wish), "expires": clock.time() + 60})
    home.forward("d8", {**asdict(wish), "expires": clock.time() + 60})
    listener.tick()
    slack.until(lambda: listener.state.done == 1)
    assert acks(run)[0]["author"] == f"{OPERATOR} (Slack)"
    slack.until(lambda: slack.answers)
    assert listener.state.status == "off"
    assert home.forwarded("d8"), "another daemon's"


def test_runs_are_found_in_every_home(
    listen: Callable[..., Listener], slack: FakeSocketMode, clock: FakeClock, run: RunBuilder, tmp_path: Path
) -> None:
    other = Home(tmp_path / "other", clock)
    connect(listen(more=[other]), slack, clock)
    still_listens(slack, other.announce_run(run.path, "exp1").id, run)


def test_a_run_that_has_died(connected: Listener, slack: FakeSocketMode, run: RunBuilder, id_: str) -> None:
    (run.path / "owner.json").unlink()
    slack.press("stop", {"run": id_, "verb": "stop"})
    slack.until(lambda: slack.answers)
    assert slack.texts == ["Not done: it is not running, so nobody would take the request"]
    slack.until(lambda: connected.state.refused == 1)


def test_what_others_named_does_not_shout(
    connected: Listener, slack: FakeSocketMode, home: Home, run: RunBuilder, id_: str
) -> None:
    home.announce_run(run.path, "<!channel> @everyone")
    slack.type("status")
    slack.type("stop <!here>")
    slack.until(lambda: len(slack.answers) == 2)
    assert "&lt;!channel&gt; @\u200beveryone" in slack.texts[0]
    assert "&lt;!here&gt;" in slack.texts[1]
    assert not any("<" in text for text in slack.texts)


# ---- repeats, forgeries, rubbish


def test_what_slack_sends_again_is_done_once(
    connected: Listener, slack: FakeSocketMode, run: RunBuilder, id_: str
) -> None:
    value = {"run": id_, "verb": "stop"}
    slack.press("stop", value, envelope="same", actions__0__action_ts="5.5")
    slack.press("stop", value, envelope="same", actions__0__action_ts="5.5")
    slack.press("stop", value, envelope="other", actions__0__action_ts="5.5")
    slack.type("help")
    slack.until(lambda: len(slack.answers) == 2)
    slack.until(lambda: slack.acks[:3] == ["same", "same", "other"])
    assert len(list((run.path / "control").iterdir())) == 1
    slack.until(lambda: connected.state.done == 2)


def still_listens(slack: FakeSocketMode, id_: str, run: RunBuilder) -> None:
    slack.press("ack", {"run": id_, "incident": "i0004", "verb": "ack"})
    slack.until(lambda: acks(run), "it listens on")


FORGED: dict[str, dict[str, Any]] = {
    "another app": {"api_app_id": "A0OTHER"},
    "another workspace": {"team": {"id": "T0OTHER"}},
    "another's message": {"message__app_id": "A0OTHER"},
    "a path for a run": {"actions__0__value": '{"run": "../x", "verb": "stop"}'},
    "too long": {"actions__0__value": json.dumps({"run": "a" * 2000})},
    "no verb of ours": {"actions__0__action_id": "guard:explode"},
    "wrong types": {"actions": {"0": ["guard:stop"]}},
    "deep": {"actions__0__value": "[" * 1900},
    "nobody": {"user": None},
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_what_is_forged_is_refused_and_logged_once(
    change: dict[str, Any],
    connected: Listener,
    slack: FakeSocketMode,
    run: RunBuilder,
    id_: str,
    said: list[str],
    tmp_path: Path,
) -> None:
    for _ in range(3):
        slack.press("stop", {"run": id_, "verb": "stop"}, **change)
    still_listens(slack, id_, run)
    assert len(said) == 1
    assert len(said[0]) < 120
    assert connected.state.refused == 3
    assert len(slack.answers) <= 1, "nobody but the last was answered"
    assert not (run.path / "control").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"type": "interactive"}',
        b'{"type": "interactive", "envelope_id": 7, "payload": {}}',
        b'{"type": "interactive", "envelope_id": "' + b"e" * 500 + b'", "payload": {}}',
        b"\xff\xfe",
        b'{"a": ' * 90_000 + b"1" + b"}" * 90_000,
        b"[" * 900_000,
        b'{"envelope_id": "big", "x": "' + b"x" * 5_000_000 + b'"}',
    ],
    ids=["empty", "torn", "null", "list", "no id", "id type", "id long", "no text", "deep", "deeper", "5 MB"],
)
def test_rubbish_is_refused_and_the_next_is_heard(
    data: bytes, connected: Listener, slack: FakeSocketMode, run: RunBuilder, id_: str, said: list[str]
) -> None:
    slack.live[0].send(data)
    still_listens(slack, id_, run)
    assert len(slack.sessions) == 1
    assert connected.state.refused == 1
    assert len(said) == 1
    assert said[0].startswith("refused what came from Slack: a message is ")


def test_a_flood_is_bounded_and_what_is_not_taken_is_not_acknowledged(
    connected: Listener, slack: FakeSocketMode, run: RunBuilder, id_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, entered = threading.Event(), threading.Event()

    def slow(wish: Any) -> bool:
        entered.set()
        gate.wait(10.0)
        return True

    monkeypatch.setattr(connected._doing._deeds, "do", slow)
    try:
        slack.press("stop", {"run": id_, "verb": "stop"})
        slack.until(entered.is_set)
        for _ in range(120):
            slack.press("stop", {"run": id_, "verb": "stop"})
        slack.until(lambda: connected.state.refused == 20)
        slack.until(lambda: len(slack.acks) == 101, "acknowledged while a deed takes its time")
    finally:
        gate.set()
    slack.until(lambda: connected.state.done == 101)


# ---- connections


def test_slack_is_down_at_first(
    slack: FakeSocketMode, listen: Callable[..., Listener], clock: FakeClock, said: list[str]
) -> None:
    slack.stop()
    listener = listen()
    for _ in range(12):
        listener.tick()
        slack.until(lambda: listener._link is None)
        clock.advance(30.0)
    assert listener.state.status == "connecting"
    assert listener.state.why == "connection refused"
    assert said == ["Slack is not reached, so buttons do nothing (connection refused); trying on"]
    slack.start()
    clock.advance(60.0)
    connect(listener, slack, clock)
    assert said[1:] == ["Slack is reached again"]
    assert listener.state.why == ""


def test_pauses_grow_and_are_bounded(slack: FakeSocketMode, listen: Callable[..., Listener], clock: FakeClock) -> None:
    slack.faults = ["500"] * 1000
    listener = listen()
    for _ in range(3600):
        listener.tick()
        slack.until(lambda: listener._link is None)
        clock.advance(1.0)
    assert 50 <= slack.opened <= 140, "at most a minute apart, at least half of one"


def test_a_token_that_is_refused_is_said_once_and_a_new_one_is_tried_at_once(
    slack: FakeSocketMode, listen: Callable[..., Listener], clock: FakeClock, said: list[str]
) -> None:
    tokens = [f"xapp-1-{APP}-66-OLD"]
    listener = listen(lambda: tokens[-1])
    for _ in range(60):
        listener.tick()
        slack.until(lambda: listener._link is None)
        clock.advance(3.0)
    assert slack.opened <= 2
    assert len(said) == 1
    assert "invalid_auth" in said[0]
    assert "OLD" not in said[0] + str(listener.state)
    tokens.append(TOKEN)
    connect(listener, slack, clock)


@pytest.mark.parametrize("how", ["drop", "close", "rubbish"])
def test_a_connection_that_is_lost_is_made_again(
    how: str, connected: Listener, slack: FakeSocketMode, run: RunBuilder, id_: str, clock: FakeClock
) -> None:
    first = slack.live[0]
    match how:
        case "drop":
            first.drop()
        case "close":
            first.raw(frame(b"\x03\xe8bye", 8))
        case "rubbish":
            first.raw(b"HTTP/1.1 500 Oh no\r\n\r\n")
    slack.until(lambda: not first.open)
    slack.until(lambda: connected.state.status == "connecting")
    assert connected.state.why
    connect(connected, slack, clock)
    assert len(slack.sessions) == 2
    still_listens(slack, id_, run)


def test_a_slack_that_has_fallen_silent_is_asked_and_then_left(
    connected: Listener, slack: FakeSocketMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    slack.until(lambda: slack.pings >= 3, "it asks again and again while it is answered")
    assert connected.state.status == "connected"
    slack.deaf = True
    slack.until(lambda: connected.state.status == "connecting")
    assert connected.state.why == "Slack does not answer any more"


def test_slack_wants_the_connection_renewed(
    connected: Listener, slack: FakeSocketMode, run: RunBuilder, id_: str, clock: FakeClock
) -> None:
    for _ in range(5):
        clock.advance(15.0)
        connected.tick()
    old = slack.live[0]
    old.send({"type": "disconnect", "reason": "refresh_requested"})
    slack.until(lambda: connected._retired is not None)
    slack.press("stop", {"run": id_, "verb": "stop"}, to=old)
    slack.until(lambda: slack.answers, "what still comes by the old one is done")
    connected.tick()
    slack.until(lambda: not old.open)
    assert len(slack.live) == 1
    assert connected.state.status == "connected"
    still_listens(slack, id_, run)


def test_socket_mode_is_switched_off_for_the_app(
    connected: Listener, slack: FakeSocketMode, said: list[str], clock: FakeClock
) -> None:
    slack.live[0].send({"type": "disconnect", "reason": "link_disabled"})
    slack.until(lambda: connected.state.status == "connecting")
    assert said == ["Slack is not listened to: Socket Mode is switched off for this Slack app"]
    clock.advance(100.0)
    connected.tick()
    assert slack.opened == 1


def test_others_who_listen_to_the_same_app_are_said(
    listen: Callable[..., Listener], slack: FakeSocketMode, clock: FakeClock, said: list[str]
) -> None:
    slack.hello = {**slack.hello, "num_connections": 2}
    connect(listen(), slack, clock)
    assert len(said) == 1
    assert "others listen to this Slack app too" in said[0]


def test_an_address_that_is_not_encrypted_is_not_called(slack: FakeSocketMode) -> None:
    link = link_module.Link(TOKEN, lambda *_: None, None)
    for url in ("ws://wss.slack.com/", "wss://wss.slack.com:8443/", "http://127.0.0.1/", "wss://[::1", ""):
        with pytest.raises(link_module.Failure, match="no address"):
            link._check(url)
    link._check("wss://wss-primary.slack.com/link/?ticket=1")


# ---- the claim


def test_one_of_two_listens_and_the_other_takes_over_when_it_stops(
    listen: Callable[..., Listener], slack: FakeSocketMode, clock: FakeClock, run: RunBuilder, id_: str
) -> None:
    first, second = listen(), listen()
    for _ in range(10):
        first.tick()
        second.tick()
        clock.advance(3.0)
    slack.until(lambda: first.state.status == "connected")
    assert second.state.status == "waiting"
    assert slack.opened == 1
    first.stop(5.0)
    assert first.state.status == "off"
    slack.until(lambda: not slack.live)
    connect(second, slack, clock)
    still_listens(slack, id_, run)


def test_one_that_is_dead_is_followed_when_its_lease_ends(
    connected: Listener, listen: Callable[..., Listener], slack: FakeSocketMode, clock: FakeClock, id_: str
) -> None:
    second, began = listen(), clock.time()
    while second.state.status != "connected":
        connect(second, slack, clock)
    assert LEASE <= clock.time() - began <= LEASE + 15
    # The first one has not been called since; what reaches it now is not taken.
    slack.press("stop", {"run": id_, "verb": "stop"}, to=slack.sessions[0], envelope="late")
    slack.until(lambda: not slack.sessions[0].open)
    assert "late" not in slack.acks
    connected.tick()
    assert connected.state.status == "waiting"


def test_the_claim_is_renewed_as_long_as_it_listens(connected: Listener, clock: FakeClock, home: Home) -> None:
    for _ in range(200):
        clock.advance(1.0)
        connected.tick()
        assert connected.state.status == "connected"
    assert list(home.claimed("listeners")) == [APP]
    connected.stop(5.0)
    assert home.claimed("listeners") == {}


def test_one_whose_claim_is_taken_lets_go(
    connected: Listener, slack: FakeSocketMode, clock: FakeClock, home: Home
) -> None:
    home._write(f"listeners/{APP}.json", {"holder": "another", "since": 0.0, "expires": clock.time() + LEASE})
    clock.advance(25.0)
    connected.tick()
    slack.until(lambda: not slack.live)
    assert connected.state.status == "waiting"


# ---- tokens, life


@pytest.mark.parametrize(
    ("token", "app"),
    [(TOKEN, APP), ("xapp-1-A123-9-abc", "A123"), ("xoxb-1-A123-9", ""), ("xapp-1-../x-9-a", ""), ("", ""), ("x", "")],
)
def test_the_app_is_read_from_its_token(token: str, app: str) -> None:
    assert app_id(token) == app


def test_without_a_token_it_is_off_until_there_is_one(
    listen: Callable[..., Listener], slack: FakeSocketMode, clock: FakeClock, said: list[str]
) -> None:
    token = [""]

    def read() -> str:
        if token[0] == "damaged":
            raise OSError("/secret/path")
        return token[0]

    listener = listen(read)
    for token[0] in ("", "xoxb-not-this-one", "damaged"):
        listener.tick()
        clock.advance(3.0)
        assert listener.state.status == "off"
    assert slack.opened == 0
    assert said == ["the app-level token cannot be read (OSError)"]
    token[0] = TOKEN
    connect(listener, slack, clock)


def test_a_stop_before_and_amid_everything(
    listen: Callable[..., Listener], slack: FakeSocketMode, clock: FakeClock
) -> None:
    listen().stop(5.0)
    listener = listen()
    listener.tick()
    clock.advance(3.0)
    listener.tick()
    listener.stop(5.0)
    listener.tick()
    slack.until(lambda: not slack.live)
    assert listener.state.status == "off"


def test_what_was_acknowledged_is_done_before_it_stops(
    connected: Listener, slack: FakeSocketMode, run: RunBuilder, id_: str, clock: FakeClock
) -> None:
    for _ in range(20):
        slack.press("stop", {"run": id_, "verb": "stop"})
    slack.until(lambda: len(slack.acks) == 20)
    connected.stop(5.0)
    assert connected.state.done == 20
    assert len(control.take(run.path, clock.time())) == 20
