"""Webhooks and the console: no edits and no threads, one message for each state."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from guard.notify import ReceiverSpec


@pytest.fixture
def hook(slack):
    return lambda kind="webhook": ReceiverSpec("hook", kind, webhook_url=slack.hook(), mention="<@U012>")


def story(night, c, deliver):
    night.opened()
    deliver(c)
    night.fired(count=2)
    night.attempt()
    deliver(c)
    night.attempt(repeat=1)
    deliver(c)
    night.attempt(rung=1)
    night.closed(status="exhausted")
    deliver(c)


def test_a_json_webhook_gets_each_state_once(night, slack, courier, deliver, hook):
    c = courier(hook())
    story(night, c, deliver)
    assert [(h["status"], h["mention"]) for h in slack.hooks] == [
        ("firing", None),
        ("verifying", None),
        ("exhausted", "<@U012>"),
    ]
    last = slack.hooks[-1]
    assert last["first_line"] == "Needs you: out of remedies, the run goes on unrepaired"
    assert last["fields"]["Host"] == "node7"
    assert last["severity"] == "critical"
    assert last["sections"]["What happened"].startswith("Loss is NaN")
    assert len({h["key"] for h in slack.hooks}) == 3
    assert c.pending() == []


def test_slacks_incoming_webhook(night, slack, courier, deliver, hook):
    story(night, courier(hook("slack")), deliver)
    first, second, last = slack.hooks
    assert first["blocks"][0]["text"]["text"].startswith("🟡 Seen")
    assert second["text"].startswith("🟡 Working on it")
    assert last["text"].startswith("<@U012> 🔴 Needs you")
    assert last["blocks"][1]["text"]["text"] == "<@U012>"


def test_the_console(night, courier, deliver, capsys):
    story(night, courier(ReceiverSpec("console", "console")), deliver)
    err = capsys.readouterr().err
    assert err.count("guard │ Next: guard show") == 3
    assert "guard │ Needs you: out of remedies" in err


def test_after_an_outage_only_the_present_is_told(night, slack, courier, deliver, hook):
    night.opened()
    night.attempt()
    night.closed()
    deliver(courier(hook()))
    assert [h["status"] for h in slack.hooks] == ["resolved"]


@pytest.mark.parametrize(("fault", "times"), [("drop", 1), ("500", 1), ("429:5", 1), ("lost", 2)])
def test_a_webhook_fails(night, slack, courier, deliver, hook, fault, times):
    c = courier(hook())
    night.opened()
    slack.fail(fault)
    c.deliver_once()
    assert len(c.pending()) == 1
    deliver(c)
    assert len(slack.hooks) == times, "twice rather than not at all"


def test_a_storm_on_a_webhook_is_told_at_powers_of_two(night, slack, courier, deliver, hook):
    c = courier(hook())
    for i in range(30):
        night.opened(f"i{i}", severity="warning", signal=f"s{i}")
        deliver(c)
    assert sum(h["incident"] is None for h in slack.hooks) == 5
    assert sum(h["incident"] is not None for h in slack.hooks) == 10


def test_switched_off_receivers_are_named_and_the_console_steps_in(night, courier, deliver, capsys, said):
    off = ReceiverSpec("training", "slack", channel="#training", off_reason="SLACK_BOT_TOKEN is not set")
    c = courier(off)
    night.opened()
    deliver(c)
    assert said == ["receiver training is off: SLACK_BOT_TOKEN is not set", "incidents are told here instead"]
    assert "guard │ Seen:" in capsys.readouterr().err


def test_nobody_is_told_without_receivers(night, clock, capsys):
    from guard.notify import Courier

    c = Courier(night.run_dir, [], clock=clock)
    night.opened()
    c.start()
    c.wake()
    assert c.close(1.0)
    assert c.deliver_once().waiting == 0
    assert capsys.readouterr().err == ""


def test_a_signed_webhook_verifies_as_the_page_says(night, slack, courier, deliver, hook):
    page = (Path(__file__).parents[2] / "docs" / "slack.md").read_text("utf-8")
    [snippet] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    verify = {}
    exec(snippet, verify)
    night.opened()
    deliver(courier(replace(hook(), secret=lambda: "s3cret")))
    [(headers, body)] = slack.signed
    at = float(headers["X-Guard-Timestamp"])
    assert at == night.clock.time()
    assert verify["genuine"](b"s3cret", headers, body, at + 10)
    assert not verify["genuine"](b"s3cret", headers, body + b" ", at + 10)
    assert not verify["genuine"](b"other", headers, body, at + 10)
    assert not verify["genuine"](b"s3cret", headers, body, at + 3600), "an old message played again"
    assert not verify["genuine"](b"s3cret", {**headers, "X-Guard-Timestamp": str(at + 1)}, body, at + 10)


def test_without_its_secret_a_webhook_is_not_sent_unsigned(night, slack, courier, deliver, hook, said):
    night.opened()
    c = courier(replace(hook(), secret=lambda: ""))
    c.deliver_once()
    assert slack.hooks == []
    assert [p.error for p in c.pending()] == ["no_secret"]
    assert "the secret that signs is empty" in said[0]
