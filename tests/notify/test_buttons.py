"""Buttons: what makes sense now, only while somebody hears them, and never as a reason to edit a message."""

from __future__ import annotations

import json

import pytest

from guard.home import Home, run_id


@pytest.fixture
def home(tmp_path, clock):
    return Home(tmp_path / "home", clock)


@pytest.fixture
def listener(home, clock):
    """Somebody listens, for a minute from each call on."""

    def claims():
        home.claim("listeners", "A1", "host:1")

    return claims


@pytest.fixture
def told(night, slack, courier, deliver, home, listener):
    c = courier(home=home)

    def tell():
        listener()
        deliver(c)
        return buttons(slack.roots()[0])

    return tell


def buttons(root):
    found = [e for b in root["blocks"] if b["type"] == "actions" for e in b["elements"]]
    return {e["action_id"].removeprefix("guard:"): e for e in found}


def standing(night, **more):
    night.attempt(summary="halved the learning rate", standing=True, **more)


@pytest.mark.parametrize(
    ("story", "verbs"),
    [
        (lambda n: None, "ack silence observe rollback stop"),
        (lambda n: n.ack(), "silence observe rollback stop"),
        (standing, "ack silence observe undo rollback stop"),
        (lambda n: (standing(n), n.closed()), "silence observe undo rollback stop"),
        (lambda n: (n.attempt(), n.closed()), "silence observe rollback stop"),
        (lambda n: n.closed(status="exhausted"), "ack silence observe rollback stop"),
        (lambda n: n.write("mode", mode="observe", author="ada", policy=None), "ack silence stop"),
        (lambda n: (n.closed(status="stopped"), n.finished("stopped")), "ack silence resume"),
        (lambda n: (n.closed(), n.finished()), ""),
        (lambda n: n.finished("crashed"), "ack silence"),
    ],
)
def test_what_makes_sense(night, told, story, verbs):
    night.opened()
    story(night)
    assert " ".join(told()) == verbs


def test_a_paused_run_can_be_resumed(night, told):
    night.opened()
    night.write(
        "attempt",
        incident="a1",
        rung=0,
        rungs=1,
        repeat=0,
        escalated=False,
        would=False,
        results=[{"type": "pause", "summary": "paused the run", "changes": {"paused_for": 60.0}, "standing": False}],
        unavailable=[],
    )
    assert "resume" in told()
    night.write("incident_evidence", incident="a1", evidence={"pause": {"seconds": 3.0, "ended": "resumed by ada"}})
    assert "resume" not in told()


def test_of_a_run_that_hangs_nobody_obeys(night, told):
    night.watched()
    assert list(told()) == ["ack", "silence"]


def test_a_press_says_what_is_meant_and_consequences_are_asked_for(night, told):
    night.opened()
    standing(night)
    found = told()
    run = run_id("node7", str(night.run_dir))
    assert {k: json.loads(e["value"]) for k, e in found.items()} == {
        verb: {"run": run, "incident": "a1", "verb": verb} for verb in found
    }
    assert {k for k, e in found.items() if "confirm" in e} == {"observe", "undo", "rollback", "stop"}


def test_of_a_row_the_latest_is_acknowledged_and_what_stands_is_undone(night, told):
    night.opened()
    standing(night)
    night.closed()
    night.opened("a2")
    found = told()
    assert json.loads(found["ack"]["value"])["incident"] == "a2"
    assert json.loads(found["undo"]["value"])["incident"] == "a1"


def test_without_a_listener_there_is_the_command_alone(night, slack, courier, deliver, home):
    night.opened()
    deliver(courier(home=home))
    [root] = slack.roots()
    assert buttons(root) == {}
    assert f"guard show {night.run_dir} a1" in root["blocks"][-1]["text"]["text"]


def test_listeners_that_come_and_go_edit_nothing_until_something_happens(
    night, slack, courier, deliver, home, listener, clock
):
    c = courier(home=home)
    night.opened()
    deliver(c)
    [root] = slack.roots()
    listener()
    clock.advance(11)
    night.fired("a1", count=1)  # nothing that a reader would see
    deliver(c)
    assert root["edits"] == 0
    night.attempt()
    deliver(c)
    assert root["edits"] == 1
    assert buttons(root)
    clock.advance(120)  # the listener has died
    night.fired("a1", count=1)
    deliver(c)
    assert (root["edits"], bool(buttons(root))) == (1, True)
    night.closed()
    deliver(c)
    assert (root["edits"], bool(buttons(root))) == (2, False)
    assert c.pending() == []


def test_the_home_is_asked_at_most_every_ten_seconds(night, courier, home, clock, monkeypatch):
    asked = []
    monkeypatch.setattr(home, "claimed", lambda folder: asked.append(folder) or {})
    c = courier(home=home)
    for i in range(20):
        night.opened(f"i{i}", signal=f"s{i}")
        c.deliver_once()
        clock.advance(0.0)
    assert len(asked) <= 1 + 20 // 10


def test_an_id_too_long_for_a_button_has_none(night, told):
    night.opened("x" * 2100)
    assert told() == {}


def test_a_picture_stands_before_the_buttons(night, slack, courier, deliver, home, listener, tmp_path):
    plot = tmp_path / "plot.png"
    plot.write_bytes(b"png")
    listener()
    night.opened()
    deliver(courier(home=home, plot=lambda run_dir, incident: plot))
    assert [b["type"] for b in slack.roots()[0]["blocks"][-3:]] == ["image", "actions", "section"]
