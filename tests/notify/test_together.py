"""What is told together: the same fault once more, what those outside saw, and storms over many runs."""

from __future__ import annotations

import itertools

import pytest
from notify.night import Night

from guard.notify import Courier, Limiter

HALF_HOUR = 1800.0


def test_the_same_fault_once_more_is_told_in_its_message(night, slack, courier, deliver, clock):
    c = courier()
    night.opened()
    night.attempt()
    night.closed()
    deliver(c)
    clock.advance(HALF_HOUR - 60)
    night.opened("a2")
    deliver(c)
    [root] = slack.roots()
    assert "🟡 Seen: NaN or Inf in loss or gradients, nothing done yet (2nd time)" in root["text"]
    assert "No action needed: repaired, 40 steps lost" in str(root["blocks"]), "what was before"
    assert f"guard show {night.run_dir} a2" in str(root["blocks"])
    night.attempt("a2")
    night.closed("a2", status="exhausted")
    deliver(c)
    again, tried, ended = slack.thread(root)[-3:]
    assert again["text"].startswith("Again, 2nd time: NaN or Inf")
    assert [again["broadcast"], tried["broadcast"], ended["broadcast"]] == [False, False, True]
    assert c.pending() == []


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        pytest.param({"signal": "grad_norm"}, 2, id="another signal"),
        pytest.param({"policy": "another"}, 2, id="another policy"),
        pytest.param({"detector": "loss_spike"}, 2, id="another fault"),
        pytest.param({}, 1, id="the same"),
    ],
)
def test_only_the_same_fault_counts(night, slack, courier, deliver, change, messages):
    night.opened()
    night.closed()
    night.opened("a2", **change)
    deliver(courier())
    assert len(slack.roots()) == messages


def test_after_half_an_hour_it_is_another_story(night, slack, courier, deliver, clock):
    night.opened()
    night.closed()
    clock.advance(HALF_HOUR + 1)
    night.opened("a2")
    deliver(courier())
    assert len(slack.roots()) == 2


def test_what_rode_along_neither_begins_a_row_nor_joins_one(night, slack, courier, deliver):
    night.opened("a1")
    night.opened("b1", detector="loss_spike", attached_to="a1")
    night.opened("b2", detector="loss_spike")
    c = courier()
    deliver(c)
    assert len(slack.roots()) == 2
    night.attempt("b1")  # it got a story of its own after all
    deliver(c)
    assert len(slack.roots()) == 3


def test_a_row_of_many_is_still_one_message(night, slack, courier, deliver, clock):
    c = courier()
    for i in range(30):
        night.opened(f"a{i}")
        night.closed(f"a{i}")
        deliver(c)
        clock.advance(600)
    [root] = slack.roots()
    assert "(30th time)" in root["text"]
    assert "… and 23 more" in str(root["blocks"])


# ---- from outside


@pytest.mark.parametrize(
    ("detector", "line"), [("hang", "Needs you: the run hangs"), ("crash", "Needs you: the run crashed")]
)
def test_what_a_daemon_saw_calls_somebody_at_once(night, slack, courier, deliver, detector, line):
    c = courier()
    night.watched(detector=detector)
    deliver(c)
    [root] = slack.roots()
    assert root["text"].startswith(f"<@U012> 🔴 {line}")
    assert root["blocks"][1]["text"]["text"] == "<@U012>", "beside blocks a mention in the text calls nobody"
    assert slack.thread(root) == [], "and is not said a second time"
    night.goes_on()
    deliver(c)
    assert root["text"].startswith("🟢 No action needed: the run ")
    [reply] = slack.thread(root)
    assert not reply["broadcast"]


def test_a_crashed_run_that_is_started_again_needs_nobody(night, slack, courier, deliver, clock):
    c = courier()
    night.watched(detector="crash")
    deliver(c)
    clock.advance(60)
    night.started()
    deliver(c)
    [root] = slack.roots()
    assert "No action needed: the run crashed and was started again" in root["text"]


def test_a_further_hang_wakes_once_more(night, slack, courier, deliver, clock):
    c = courier()
    night.watched("w1")
    night.goes_on("w1")
    deliver(c)
    clock.advance(60)
    night.watched("w2")
    deliver(c)
    [root] = slack.roots()
    assert [m["broadcast"] for m in slack.thread(root)] == [False, False, True], "over, again, needs you"
    over, again, needs_you = (m["text"] for m in slack.thread(root))
    assert over.startswith("No action needed: the run hung and went on")
    assert again.startswith("Again, 2nd time: no progress")
    assert needs_you.startswith("<@U012> Needs you: the run hangs (rank 3, no progress for 12 min)")


@pytest.mark.parametrize("status", ["exhausted", "stopped"])
def test_a_message_that_comes_with_bad_news_wakes_by_itself_and_once(night, slack, courier, deliver, status):
    night.opened()
    night.attempt()
    night.closed(status=status)
    deliver(courier())
    [root] = slack.roots()
    assert root["text"].startswith("<@U012> 🔴 Needs you")
    assert not any(m["broadcast"] for m in slack.thread(root))


def test_a_stop_that_somebody_asked_for_calls_nobody(night, slack, courier, deliver):
    night.opened("p1", policy="person", detector="request", message="ada asked for it", severity="info")
    night.closed("p1", status="stopped")
    deliver(courier())
    [root] = slack.roots()
    assert "No action needed: stopped, ada asked for it" in root["text"]
    assert not any(m["broadcast"] for m in slack.thread(root))


def test_additions_may_lie_in_a_folder_beside(night, slack, courier, deliver, tmp_path):
    from guard.incidents import outside

    beside = tmp_path / "beside"
    beside.mkdir()
    c = courier(beside=beside)
    night.opened()
    deliver(c)
    outside.append(beside, night.clock, "ack", incident="a1", author="ada")
    deliver(c)
    assert "Acknowledged by ada" in slack.roots()[0]["text"]


# ---- many runs in one channel


@pytest.fixture
def fleet(tmp_path, clock, slack, spec):
    """So many runs, each with a courier of its own in one process."""
    limiter = Limiter(clock)

    def make(n):
        nights = [Night(tmp_path / f"run{i}", clock) for i in range(n)]
        return nights, [Courier(x.run_dir, [spec], clock=clock, limiter=limiter, say=print) for x in nights]

    return make


def test_all_runs_together_send_one_message_a_second(fleet, slack):
    nights, couriers = fleet(5)
    for night in nights:
        night.opened()
    for c in couriers:
        c.deliver_once()
    times = slack.times["C0000001"]
    assert len(times) == 5
    assert [b - a for a, b in itertools.pairwise(times)] == [1.0] * 4


def test_a_storm_over_many_runs_is_one_rolling_message(fleet, slack, clock):
    nights, couriers = fleet(30)
    for night in nights:
        night.opened(severity="warning")
    for _ in range(2):
        for c in couriers:
            c.deliver_once()
    assert len(slack.roots()) == 11
    rolling = slack.roots()[-1]
    assert "20 more incidents not told one by one" in rolling["text"]
    assert "and 19 other runs" in rolling["text"]
    assert all(c.pending() == [] for c in couriers)
    edits = rolling["edits"]
    for c in couriers:
        c.deliver_once()
    assert rolling["edits"] == edits, "nothing new"
    clock.advance(601)
    nights[0].opened("later", signal="other")
    couriers[0].deliver_once()
    assert len(slack.roots()) == 12


def test_when_the_run_that_kept_the_rolling_message_goes_another_begins_one(fleet, slack):
    nights, couriers = fleet(14)
    for night in nights[:12]:
        night.opened(severity="warning")
    for c in couriers[:12]:
        c.deliver_once()
    assert len(slack.roots()) == 11
    couriers[10].close(1.0)
    for night, c in zip(nights[12:], couriers[12:], strict=True):
        night.opened(severity="warning")
        c.deliver_once()
    assert len(slack.roots()) == 12
