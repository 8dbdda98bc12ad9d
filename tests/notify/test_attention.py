"""Reminders, answers, silences and escalation: who is woken, when, and how often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from guard.notify import Escalation, ReceiverSpec

HOUR = 3600.0


@pytest.fixture
def reminding(courier, spec):
    return courier(replace(spec, remind_every=4 * HOUR))


def woken(slack, root=None):
    """Texts of the broadcast replies beneath a root."""
    return [m["text"] for m in slack.thread(root or slack.roots()[0]) if m["broadcast"]]


def through(clock, courier, hours, step=0.25):
    """Passes over a span of time."""
    for _ in range(int(hours / step)):
        clock.advance(step * HOUR)
        courier.deliver_once()


# ---- reminders


def test_an_unresolved_incident_is_reminded_of_ever_more_rarely_and_then_no_more(night, slack, clock, reminding):
    night.opened()
    reminding.deliver_once()
    times = []
    for hour in range(1, 400):
        clock.advance(HOUR)
        before = len(woken(slack))
        reminding.deliver_once()
        times += [hour] * (len(woken(slack)) - before)
    assert times == [4, 8, 16, 32, 64, 128]
    first = woken(slack)[0]
    assert first.startswith("<@U012> Unresolved for 4 h, and nobody has acknowledged it. Seen: NaN or Inf")
    assert first.endswith(f"type: `guard ack {night.run_dir} a1`")


def test_of_missed_reminders_only_the_latest_is_told(night, slack, clock, reminding):
    night.opened()
    reminding.deliver_once()
    clock.advance(20 * HOUR)
    reminding.deliver_once()
    assert len(woken(slack)) == 1
    assert "Unresolved for 20 h" in woken(slack)[0]


def test_a_turn_for_the_worse_begins_the_waiting_anew(night, slack, clock, reminding):
    night.opened()
    night.attempt()
    reminding.deliver_once()
    through(clock, reminding, 3)
    night.closed(status="exhausted")
    reminding.deliver_once()
    through(clock, reminding, 3.75)
    assert [t.split(":")[0] for t in woken(slack)] == ["<@U012> Needs you"]
    through(clock, reminding, 0.5)
    assert len(woken(slack)) == 2


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(lambda n: n.opened(severity="info"), id="info"),
        pytest.param(lambda n: n.opened(observed=True), id="observed"),
        pytest.param(lambda n: (n.opened(), n.closed()), id="resolved"),
        pytest.param(lambda n: (n.opened(), n.attempt(), n.finished()), id="over"),
        pytest.param(lambda n: (n.opened(), n.closed(status="exhausted"), n.finished()), id="finished as planned"),
        pytest.param(lambda n: (n.opened(), n.closed(status="exhausted"), n.ack()), id="acknowledged"),
        pytest.param(lambda n: (n.watched(), n.goes_on()), id="goes on again"),
    ],
)
def test_of_what_waits_for_nobody_nobody_is_reminded(night, slack, clock, courier, spec, story):
    c = courier(replace(spec, remind_every=HOUR, min_severity="info"))
    story(night)
    c.deliver_once()
    before = len(slack.live)
    through(clock, c, 12)
    assert len(slack.live) == before


def test_a_stopped_run_that_was_started_again_needs_nobody(night, slack, clock, reminding):
    night.opened()
    night.closed(status="stopped")
    night.finished("stopped")
    reminding.deliver_once()
    [root] = slack.roots()
    assert "Needs you: run stopped" in root["text"]
    clock.advance(60)
    night.started()
    reminding.deliver_once()
    assert "No action needed: the run stopped and was started again since" in root["text"]
    through(clock, reminding, 12)
    assert woken(slack) == []


def test_an_exhausted_incident_is_not_repaired_by_a_requeue(night, slack, clock, reminding):
    night.opened()
    night.closed(status="exhausted")
    reminding.deliver_once()
    clock.advance(60)
    night.finished("preempted")
    night.started()
    through(clock, reminding, 5)
    assert len(woken(slack)) == 1


def test_a_webhook_is_reminded_by_a_new_message(night, slack, clock, courier):
    hook = ReceiverSpec("hook", "webhook", webhook_url=slack.hook(), mention="@ada", remind_every=HOUR)
    c = courier(hook)
    night.opened()
    c.deliver_once()
    through(clock, c, 2)
    assert [h["mention"] for h in slack.hooks] == [None, "@ada", "@ada"]
    assert slack.hooks[-1]["text"].startswith("Unresolved for 2 h")
    assert len({h["key"] for h in slack.hooks}) == 3


def test_reminders_survive_a_restart(night, slack, clock, reminding, courier, spec):
    night.opened()
    reminding.deliver_once()
    through(clock, reminding, 4.25)
    clock.advance(60)
    again = courier(replace(spec, remind_every=4 * HOUR))
    through(clock, again, 3.25)
    assert len(woken(slack)) == 1


# ---- answers


def test_an_acknowledgement_is_shown_and_ends_the_reminders(night, slack, clock, reminding, deliver):
    night.opened()
    night.closed(status="exhausted")
    reminding.deliver_once()
    [root] = slack.roots()
    assert root["text"].startswith("<@U012>")
    night.ack(author="ada <!channel>")
    reminding.deliver_once()
    assert "· Acknowledged by ada &lt;!channel&gt;" in root["text"]
    assert not root["text"].startswith("<@U012>"), "nobody is called any more"
    [reply] = slack.thread(root)
    assert reply["text"] == "Acknowledged by ada &lt;!channel&gt;."
    assert not reply["broadcast"]
    through(clock, reminding, 12)
    assert woken(slack) == []


def test_an_acknowledgement_answers_for_what_was_seen_and_not_for_the_next_time(night, slack, clock, reminding):
    night.opened()
    night.closed(status="exhausted")
    night.ack()
    reminding.deliver_once()
    clock.advance(600)
    night.opened("a2")
    night.closed("a2", status="exhausted")
    reminding.deliver_once()
    [root] = slack.roots()
    assert "Acknowledged" not in root["text"]
    assert len(woken(slack)) == 2
    through(clock, reminding, 5)
    assert len(woken(slack)) == 3


def test_what_is_told_together_is_acknowledged_together(night, slack, clock, reminding):
    night.opened("first")
    night.closed("first", status="exhausted")
    clock.advance(600)
    night.opened("again")
    night.opened("along", attached_to="again", signal="other")
    night.closed("again", status="exhausted")
    reminding.deliver_once()
    [root] = slack.roots()
    night.ack("along")
    reminding.deliver_once()
    assert "Acknowledged by ada" in root["text"]
    assert [m["text"] for m in slack.thread(root)][-1] == "Acknowledged by ada."
    before = len(slack.live)
    through(clock, reminding, 12)
    assert len(slack.live) == before, "nobody is reminded"


# ---- silences


def test_a_silence_keeps_back_what_is_new_and_edits_go_on(night, slack, clock, courier, deliver):
    c = courier()
    night.opened()
    deliver(c)
    [root] = slack.roots()
    night.silence(HOUR)
    night.attempt()
    night.attempt(rung=1)
    night.opened("b2", signal="other")
    assert c.deliver_once().waiting == 0
    assert c.pending() == [], "it is not to be told now"
    assert "Working on it" in root["text"]
    assert slack.live == [root]


def test_after_a_silence_what_still_stands_is_told_once_and_what_is_repaired_is_not(
    night, slack, clock, courier, deliver
):
    c = courier()
    night.opened("known")
    deliver(c)
    night.silence(HOUR)
    night.opened("repaired", signal="1")
    night.opened("stands", signal="2")
    night.attempt("known")
    through(clock, c, 0.5)
    night.closed("repaired")
    night.closed("stands", status="exhausted")
    through(clock, c, 2)
    known, stands = slack.roots()
    assert [t[:60] for t in woken(slack, known)] == ["<@U012> The silence is over, and this still stands. Working "]
    assert len(slack.thread(known)) == 1
    assert stands["text"].startswith("<@U012> 🔴 Needs you: out of remedies")
    assert slack.thread(stands) == []
    assert c.pending() == []


def test_a_silence_may_be_lifted(night, slack, clock, courier):
    c = courier()
    night.silence(10 * HOUR)
    night.opened()
    through(clock, c, 1)
    assert slack.live == []
    night.silence(0)
    c.deliver_once()
    assert len(slack.roots()) == 1


def test_a_silence_of_one_policy_leaves_the_others(night, slack, clock, courier, deliver):
    night.silence(HOUR, policy="clip")
    night.opened("a", policy="clip")
    night.opened("b")
    deliver(courier())
    assert ["a" in r["text"].split() for r in slack.roots()] == [False]


def test_during_a_silence_nobody_is_reminded_and_afterwards_the_waiting_begins_anew(night, slack, clock, reminding):
    night.opened()
    reminding.deliver_once()
    night.silence(6 * HOUR)
    through(clock, reminding, 5.75)
    assert woken(slack) == []
    through(clock, reminding, 4)
    assert [t.split(".")[0] for t in woken(slack)] == ["<@U012> The silence is over, and this still stands"]
    through(clock, reminding, 0.5)
    assert "Unresolved for 10 h" in woken(slack)[-1]


def test_a_webhook_is_silent_too(night, slack, clock, courier):
    c = courier(ReceiverSpec("hook", "webhook", webhook_url=slack.hook()))
    night.opened("known")
    night.opened("repaired", signal="1")
    c.deliver_once()
    night.silence(HOUR)
    night.attempt("known")
    night.opened("new", signal="2")
    night.opened("short", signal="3")
    c.deliver_once()
    night.closed("repaired")
    night.closed("short")
    through(clock, c, 2)
    assert [(h["incident"], h["status"]) for h in slack.hooks[2:]] == [("known", "verifying"), ("new", "firing")]
    assert c.pending() == []


# ---- escalation


@pytest.fixture
def calling(courier, spec):
    call = Escalation(1800.0, "oncall")
    oncall = replace(spec, name="oncall", channel="#oncall", min_severity="critical", mention="<@UONCALL>")
    return lambda **options: courier(replace(spec, escalate=call), replace(oncall, **options))


def test_what_nobody_answers_is_told_to_the_next_once(night, slack, clock, calling):
    night.opened(severity="warning")
    night.closed(status="exhausted")
    c = calling()
    c.deliver_once()
    assert slack.roots("C0000002") == []
    clock.advance(1799)
    assert c.deliver_once().next_try == pytest.approx(1)
    assert slack.roots("C0000002") == []
    clock.advance(1)
    c.deliver_once()
    [root] = slack.roots("C0000002")
    assert root["text"].startswith("<@UONCALL> 🔴 Needs you")
    through(clock, c, 3)
    assert len([m for m in slack.live if m["channel"] == "C0000002"]) == 1
    night.ack()
    c.deliver_once()
    assert "Acknowledged by ada" in root["text"], "it is kept up to date there"


def test_who_is_on_call_sleeps_until_nobody_else_has_answered(night, slack, clock, calling):
    night.opened(severity="critical")
    c = calling(min_severity="info")
    through(clock, c, 4)
    assert slack.roots("C0000002") == [], "critical, but nobody is needed"
    night.closed(status="exhausted")
    through(clock, c, 1)
    assert len(slack.roots("C0000002")) == 1


@pytest.mark.parametrize("answer", ["ack", "silence", "repaired"])
def test_nobody_else_is_called_once_somebody_has_answered(night, slack, clock, calling, answer):
    night.watched(severity="warning")
    c = calling()
    c.deliver_once()
    clock.advance(600)
    {"ack": lambda: night.ack("w1"), "silence": lambda: night.silence(9 * HOUR), "repaired": night.goes_on}[answer]()
    through(clock, c, 4)
    assert slack.roots("C0000002") == []


def test_a_daemon_may_say_whom_to_call(night, slack, clock, courier, spec, said):
    c = courier(spec, escalate={"training": Escalation(60.0, "nobody")})
    assert said == ["receiver training cannot call nobody, which is off or not there"]
    night.opened()
    c.deliver_once()
    assert len(slack.roots()) == 1
