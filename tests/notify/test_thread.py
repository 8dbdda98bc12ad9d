"""Slack's Web API: one root an incident, edited, with its history beneath it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest


def test_a_night_is_told_as_one_message_with_its_history(night, slack, courier, deliver):
    c = courier()
    night.opened()
    deliver(c)
    [root] = slack.roots()
    assert "Seen: NaN or Inf in loss or gradients, nothing done yet" in root["text"]
    assert root["channel"] == "C0000001"

    night.attempt()
    deliver(c)
    assert "Working on it: rolled back 40 steps to step 1,160" in root["text"]
    night.cause()
    night.closed()
    deliver(c)
    assert root["edits"] == 2
    assert "No action needed: repaired, 40 steps lost" in root["text"]
    assert "attention in layer 7" in str(root["blocks"])
    thread = slack.thread(root)
    assert [m["text"].split(":")[0] for m in thread] == ["Step 1,182", "No action needed"]
    assert not any(m["broadcast"] for m in thread)
    assert slack.roots() == [root]
    assert c.pending() == []


def test_worsening_wakes_somebody(night, slack, courier, deliver):
    c = courier()
    night.opened()
    night.attempt()
    deliver(c)
    night.attempt(rung=1, summary="left out the offending batch")
    deliver(c)
    night.closed(status="exhausted")
    deliver(c)
    [root] = slack.roots()
    first, escalated, exhausted = slack.thread(root)
    assert not first["broadcast"]
    assert escalated["broadcast"]
    assert escalated["text"].startswith("<@U012> That did not hold. Next: ")
    assert exhausted["broadcast"]
    assert exhausted["text"].startswith("<@U012> Needs you: out of remedies")
    assert "the run goes on unrepaired" in root["text"]


def test_after_an_outage_the_present_is_told_and_nobody_is_woken_for_the_past(night, slack, courier, deliver):
    night.opened()
    night.attempt()
    night.attempt(rung=1)
    night.closed()
    deliver(courier())
    [root] = slack.roots()
    assert root["edits"] == 0
    assert "No action needed" in root["text"]
    assert len(slack.thread(root)) == 3
    assert not any(m["broadcast"] for m in slack.thread(root))


def test_repeats_and_counts_change_the_root_and_add_no_reply(night, slack, courier, deliver):
    c = courier()
    night.opened()
    night.attempt()
    night.attempt(repeat=1)
    deliver(c)
    night.attempt(repeat=2)
    night.fired(count=64)
    deliver(c)
    [root] = slack.roots()
    assert "Repeated 2 times" in str(root["blocks"])
    assert "Seen 64 times" in str(root["blocks"])
    assert len(slack.thread(root)) == 1


def test_attached_incidents_are_told_in_the_owners_thread(night, slack, courier, deliver):
    night.opened()
    night.opened("b2", detector="loss_spike", severity="warning", attached_to="a1", message="loss 41 <!channel>")
    deliver(courier())
    [root] = slack.roots()
    [reply] = slack.thread(root)
    assert reply["text"].startswith("Seen at the same time: loss spike")
    assert "&lt;!channel&gt;" in reply["text"]


def test_an_attached_incident_that_ends_badly_gets_its_own_message(night, slack, courier, deliver):
    night.opened()
    night.opened("b2", attached_to="a1")
    night.closed("b2", "exhausted")
    deliver(courier())
    assert len(slack.roots()) == 2


def test_observed_incidents_say_what_would_have_been_done(night, slack, courier, deliver):
    night.opened(observed=True)
    night.attempt(would=True)
    night.closed(status="observed", count=3)
    deliver(courier())
    [root] = slack.roots()
    assert "Watching only: would have rolled back 40 steps" in root["text"]
    assert "What the guard would have done" in str(root["blocks"])
    assert [m["text"] for m in slack.thread(root)][-1] == "No longer seen, after 3 times."


@pytest.mark.parametrize(
    ("status", "line", "woken"),
    [
        ("finished", "Run over before a verdict", False),
        ("stopped", "Run over before a verdict", False),
        ("crashed", "Needs you: the run crashed", True),
    ],
)
def test_the_end_of_the_run_closes_open_messages(night, slack, courier, deliver, status, line, woken):
    c = courier()
    night.opened()
    night.attempt()
    deliver(c)
    night.finished(status)
    deliver(c)
    [root] = slack.roots()
    assert line in root["text"]
    assert slack.thread(root)[-1]["broadcast"] is woken


def test_a_receiver_is_told_from_its_severity_on_and_always_what_needs_a_person(night, slack, courier, deliver, spec):
    c = courier(spec, replace(spec, name="oncall", channel="#oncall", min_severity="critical"))
    night.opened("a1", severity="warning")
    night.opened("b2", severity="info")
    deliver(c)
    assert len(slack.roots()) == 1
    assert slack.roots("C0000002") == []
    night.closed("a1", "exhausted")
    deliver(c)
    assert len(slack.roots("C0000002")) == 1


def test_at_most_one_message_a_second_and_channel(night, slack, courier, deliver):
    for i in range(4):
        night.opened(f"i{i}", signal=f"s{i}")
        night.attempt(f"i{i}")
    deliver(courier())
    times = slack.times["C0000001"]
    assert len(times) == 8
    assert all(b - a >= 1.0 for a, b in itertools.pairwise(times))


def test_the_plot_is_uploaded_unshared_and_put_into_the_root(night, slack, courier, deliver, tmp_path):
    plot = tmp_path / "plot.png"
    plot.write_bytes(b"png")
    slack.files_busy = 1  # Slack refuses a file that it is still working on
    c = courier(plot=lambda run_dir, incident: plot)
    night.opened()
    deliver(c)
    [root] = slack.roots()
    assert [b["slack_file"]["id"] for b in root["blocks"] if b["type"] == "image"] == ["F1"]
    assert root["blocks"][-1]["text"]["text"].startswith("*Next, type*")
    night.closed()
    deliver(c)
    assert [b["slack_file"]["id"] for b in root["blocks"] if b["type"] == "image"] == ["F2"]
    assert slack.files == {"F1": b"png", "F2": b"png"}


@pytest.mark.parametrize("trouble", ["no plot", "raises", "no scope", "refused for good"])
def test_without_a_plot_the_message_stands(night, slack, courier, deliver, tmp_path, said, trouble):
    plot = tmp_path / "plot.png"
    plot.write_bytes(b"png")

    def draw(run_dir, incident):
        if trouble == "raises":
            raise RuntimeError("no backend")
        return None if trouble == "no plot" else plot

    if trouble == "no scope":
        slack.denied.add("files.getUploadURLExternal")
    if trouble == "refused for good":
        slack.files_busy = 1000
    night.opened()
    night.closed()
    deliver(courier(plot=draw))
    [root] = slack.roots()
    assert "No action needed" in root["text"]
    assert root["blocks"]
    assert not any(b["type"] == "image" for b in root["blocks"])
    assert len(said) == (trouble in ("raises", "no scope"))


def test_a_deleted_message_is_not_written_again(night, slack, courier, deliver):
    c = courier()
    night.opened()
    deliver(c)
    slack.messages[0]["deleted"] = True
    night.attempt()
    night.closed()
    deliver(c)
    assert slack.live == []


def test_a_deleted_message_comes_back_when_it_gets_worse(night, slack, courier, deliver):
    c = courier()
    night.opened()
    deliver(c)
    slack.messages[0]["deleted"] = True
    night.attempt()
    deliver(c)
    night.closed(status="exhausted")
    deliver(c)
    [root] = slack.roots()
    assert root["text"].startswith("<@U012> 🔴 Needs you"), "a new message wakes by itself"
    assert slack.thread(root) == []


def test_a_storm_becomes_one_rolling_message(night, slack, courier, deliver, clock):
    c = courier()
    for i in range(25):
        night.opened(f"i{i}", severity="warning", signal=f"s{i}")
    deliver(c)
    assert len(slack.roots()) == 11
    rolling = slack.roots()[-1]
    assert "15 more incidents not told one by one" in rolling["text"]
    night.opened("late", severity="warning", signal="late")
    night.opened("bad", severity="warning", signal="bad")
    night.closed("bad", "exhausted")
    deliver(c)
    assert "16 more incidents" in rolling["text"]
    assert sum("Needs you" in r["text"] for r in slack.roots()) == 1
    assert c.pending() == []
    clock.advance(601)
    night.opened("next day", severity="warning", signal="next day")
    deliver(c)
    assert len(slack.roots()) == 13


def test_a_storm_stays_a_storm_after_a_restart(night, slack, courier, deliver):
    for i in range(14):
        night.opened(f"i{i}", signal=f"s{i}")
    deliver(courier())
    deliver(courier())
    assert len(slack.roots()) == 11


def test_a_fault_that_comes_again_and_again_is_counted_and_told_ever_more_rarely(night, slack, courier, deliver):
    box = courier()
    for n in range(1, 21):
        night.opened(f"i{n:02d}", severity="warning", detector="loss_spike", policy="skip-on-loss-spike")
        night.write("incident_closed", incident=f"i{n:02d}", status="resolved", count=1, outcome={})
        deliver(box)
    (root,) = slack.roots()
    assert "20th time" in root["text"]
    again = [m["text"].split(",")[1].strip() for m in slack.thread(root) if m["text"].startswith("Again")]
    assert [text.split()[0].rstrip(":") for text in again] == ["2nd", "3rd", "4th", "8th", "16th"]
    night.opened("i21", severity="warning", detector="loss_spike", policy="skip-on-loss-spike")
    night.write("incident_closed", incident="i21", status="exhausted", count=1, outcome={})
    deliver(box)
    again, needs_you = slack.thread(root)[-2:]
    assert "21st time" in again["text"]
    assert (again["broadcast"], needs_you["broadcast"]) == (False, True), "told, and somebody woken once"
