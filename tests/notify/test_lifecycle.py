"""A run's beginning and end, for receivers that want to know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from guard.notify import ReceiverSpec


@pytest.fixture
def c(courier, spec):
    return courier(replace(spec, lifecycle=True))


def root_of(slack):
    [root] = [r for r in slack.roots() if r["metadata"]["event_payload"]["key"].endswith("@run/root")]
    return root


def test_nobody_is_told_who_did_not_ask(night, slack, courier, deliver):
    night.finished()
    deliver(courier())
    assert slack.live == []


def test_a_run_from_start_to_end_is_one_message(night, slack, c, deliver, clock):
    deliver(c)
    root = root_of(slack)
    assert root["text"] == "🔵 No action needed: the run has started (run exp1)"
    clock.advance(5 * 3600 + 600)
    night.opened()
    night.attempt()
    night.closed()
    deliver(c)
    assert len(slack.roots()) == 2
    clock.advance(60)
    night.tick = 12_365
    night.finished()
    deliver(c)
    assert root["text"] == "🟢 No action needed: the run has finished (run exp1)"
    fields = {f["text"].split("\n")[0]: f["text"].split("\n")[1] for b in root["blocks"] for f in b.get("fields", [])}
    assert fields["*Steps*"] == "12,345"
    assert fields["*Incidents*"] == "1 incident, 1 repaired"
    assert fields["*Duration*"].startswith("5 h 1")
    [reply] = slack.thread(root)
    assert reply["text"].startswith("Finished at step 12,345, 5 h 1")
    assert reply["text"].endswith("after it began. 1 incident, 1 repaired.")
    assert not reply["broadcast"]
    assert c.pending() == []


def test_a_resumed_run_goes_on_in_its_message(night, slack, c, deliver, clock):
    night.finished("preempted")
    deliver(c)
    root = root_of(slack)
    assert "the run was preempted, and goes on when it is started again" in root["text"]
    clock.advance(60)
    night.started()
    deliver(c)
    assert "🔵 No action needed: the run has gone on" in root["text"]
    assert [m["text"].split(" ")[0] for m in slack.thread(root)] == ["Preempted", "Started"]
    assert "(2nd start)" in slack.thread(root)[-1]["text"]


@pytest.mark.parametrize("status", ["crashed", "stopped"])
def test_a_bad_end_wakes_somebody_unless_an_incident_does(night, slack, c, deliver, status):
    deliver(c)
    night.finished(status)
    deliver(c)
    [reply] = slack.thread(root_of(slack))
    assert reply["broadcast"]
    assert reply["text"].startswith(f"<@U012> {status.capitalize()} at step")


def test_where_an_incident_tells_it_nobody_is_woken_twice(night, slack, c, deliver):
    night.opened()
    night.attempt()
    deliver(c)
    night.finished("crashed")
    deliver(c)
    assert [m["broadcast"] for m in slack.thread(root_of(slack))] == [False]
    assert sum(m["broadcast"] for m in slack.live) == 1


def test_a_stop_that_a_person_asked_for(night, slack, c, deliver):
    night.opened("p1", policy="person", detector="request", message="ada asked for it", severity="info")
    night.closed("p1", status="stopped")
    night.finished("stopped")
    deliver(c)
    assert "No action needed: the run was stopped, ada asked for it" in root_of(slack)["text"]


def test_a_webhook_hears_of_start_and_end(night, slack, courier, deliver):
    c = courier(ReceiverSpec("hook", "webhook", webhook_url=slack.hook(), lifecycle=True))
    deliver(c)
    night.finished()
    deliver(c)
    assert [(h["incident"], h["status"]) for h in slack.hooks] == [(None, "running"), (None, "finished")]


def test_a_silence_of_the_run_holds_for_it_too(night, slack, c, deliver, clock):
    night.silence(3600.0)
    night.finished()
    deliver(c)
    assert slack.live == []
    clock.advance(3601)
    deliver(c)
    assert slack.live == [], "over meanwhile"


def test_it_is_no_part_of_a_storm(night, slack, c, deliver):
    for i in range(12):
        night.opened(f"i{i}", signal=f"s{i}", severity="warning")
    deliver(c)
    assert len(slack.roots()) == 1 + 10 + 1
