"""Slack in trouble: nothing is lost, nothing is told twice, and the person is told once what to do."""

from __future__ import annotations

import itertools
import sqlite3
from dataclasses import replace

import pytest
from notify.fake_slack import TOKEN
from notify.trouble import TABLE

from guard.cli._attention import cannot_be_told
from guard.incidents import IncidentLog, read_story
from guard.notify import outbox, render
from guard.notify.slack import Slack


def texts(slack):
    return [m["metadata"]["event_payload"]["key"].split("/", 1)[1] for m in slack.live]


@pytest.mark.parametrize(
    "fault",
    [
        "lost",
        "hang",
        "done:fatal_error",
        "done:internal_error",
        "drop",
        "500",
        "html",
        "fatal_error",
        "429:7",
        "service_unavailable",
        "some_new_error",
    ],
)
@pytest.mark.parametrize("which", [0, 1, 2], ids=["root", "first reply", "second reply"])
def test_each_message_is_told_once_whatever_happens_to_it(night, slack, courier, deliver, spec, fault, which):
    night.opened()
    night.attempt()
    night.closed()
    slack.faults = [("ok", "chat.postMessage")] * which + [(fault, "chat.postMessage")]
    c = courier(replace(spec, timeout=0.1 if fault == "hang" else 2.0))
    deliver(c)
    slack.release.set()
    assert texts(slack) == ["a1/root", "a1/attempt:0", "a1/closed:resolved"]
    assert c.pending() == []
    assert len(slack.requests) < 12


@pytest.mark.parametrize("fault", ["lost", "drop", "500", "html", "429:7"])
def test_edits_survive_failures(night, slack, courier, deliver, fault):
    c = courier()
    night.opened()
    deliver(c)
    night.closed()
    slack.fail(fault, method="chat.update")
    deliver(c)
    [root] = slack.roots()
    assert "passed by itself" in root["text"]


def test_it_waits_as_long_as_slack_asks(night, slack, courier, clock):
    night.opened()
    slack.fail("429:77")
    c = courier()
    assert c.deliver_once().next_try == pytest.approx(77)
    clock.advance(76)
    c.deliver_once(eager=True)
    assert slack.live == []
    clock.advance(2)
    c.deliver_once()
    assert len(slack.live) == 1


def test_waits_grow_and_are_capped(night, slack, courier, clock):
    night.opened()
    slack.fail(*["500"] * 1000)
    c, waits, morning = courier(), [], clock.time() + 4 * 3600
    while clock.time() < morning:
        waits.append(c.deliver_once().next_try)
        clock.advance(waits[-1] + 0.01)
    assert waits[0] <= 2.0
    assert max(waits) <= 300.0
    assert 4 * 12 <= len(slack.requests) <= 4 * 24 + 10


def test_slack_down_for_a_night(night, slack, courier, deliver, clock, said):
    c = courier()
    slack.stop()
    night.opened()
    for _ in range(30):
        clock.advance((c.deliver_once().next_try or 0.0) + 1.0)
    [waiting] = c.pending()
    assert waiting.error == "connection refused"
    assert waiting.attempts > 5
    night.attempt()
    night.attempt(rung=1)
    night.closed()
    slack.start()
    deliver(c)
    [root] = slack.roots()
    assert root["edits"] == 0
    assert "No action needed" in root["text"]
    assert slack.thread(root) == [], "one current message, and no backlog"
    assert said == []


@pytest.mark.parametrize(
    ("break_it", "mend", "reason", "todo"),
    [
        (lambda s: s.tokens.clear(), lambda s: s.tokens.add(TOKEN), "invalid_auth", "set a new bot token"),
        (lambda s: s.members.clear(), lambda s: s.members.add("C0000001"), "not_in_channel", "/invite @bot"),
        (
            lambda s: s.channels.pop("C0000001"),
            lambda s: s.channels.update(C0000001="training"),
            "channel_not_found",
            "#training",
        ),
        (lambda s: s.archived.add("C0000001"), lambda s: s.archived.clear(), "is_archived", "choose another"),
        (lambda s: s.denied.add("chat.postMessage"), lambda s: s.denied.clear(), "missing_scope", "slack-app-manifest"),
    ],
)
def test_what_a_person_must_mend_is_said_once_and_tried_rarely(
    night, slack, courier, deliver, clock, said, break_it, mend, reason, todo
):
    break_it(slack)
    night.opened()
    c = courier()
    assert c.deliver_once().next_try == pytest.approx(600)
    for _ in range(20):
        clock.advance(60)
        c.deliver_once()
    assert len(slack.requests) <= 6
    assert len(said) == 1
    assert todo in said[0]
    assert [(p.error, p.first_line) for p in c.pending()] == [
        (reason, "Seen: NaN or Inf in loss or gradients, nothing done yet")
    ]
    mend(slack)
    clock.advance(600)
    deliver(c)
    assert len(slack.roots()) == 1
    assert said[1:] == ["receiver training can be told again"]


def test_one_receiver_in_trouble_does_not_hold_the_others(night, slack, courier, spec):
    c = courier(replace(spec, name="bad", channel="#nowhere"), spec)
    night.opened()
    c.deliver_once()
    assert len(slack.roots()) == 1
    assert [p.receiver for p in c.pending()] == ["bad"]


def test_one_bad_message_does_not_hold_the_others(night, slack, courier, deliver, clock):
    night.opened("bad")
    night.opened("good", signal="other")
    c = courier()
    slack.faults = [("invalid_blocks", "chat.postMessage"), ("msg_too_long", "chat.postMessage")]
    c.deliver_once()
    assert texts(slack) == ["good/root"]
    assert [(p.incident, p.error) for p in c.pending()] == [("bad", "msg_too_long")]
    clock.advance(601)
    deliver(c)
    assert texts(slack) == ["good/root", "bad/root"]


def test_blocks_that_slack_refuses_are_told_as_text(night, slack, courier, deliver):
    night.opened()
    slack.fail("invalid_blocks", method="chat.postMessage")
    deliver(courier())
    [root] = slack.roots()
    assert root["blocks"] == []
    assert "What happened" in root["text"]


def test_without_the_scope_to_look_it_is_told_again_rather_than_not_at_all(night, slack, courier, deliver, said):
    slack.denied |= {"conversations.history", "users.conversations"}
    night.opened()
    slack.fail("lost", method="chat.postMessage")
    deliver(courier())
    assert texts(slack) == ["a1/root", "a1/root"]
    assert len(said) == 1
    assert "may be told twice" in said[0]


def test_a_look_up_that_fails_is_repeated_before_anything_is_posted(night, slack, courier, deliver):
    night.opened()
    slack.fail("lost", method="chat.postMessage")
    slack.fail("500", "429:3", "drop", method="conversations.history")
    deliver(courier())
    assert texts(slack) == ["a1/root"]


def test_a_lost_reply_is_found_behind_many_other_messages(night, slack, courier, deliver, clock):
    night.opened()
    slack.fail("lost", method="chat.postMessage")
    c = courier()
    c.deliver_once()
    for _ in range(450):
        slack._chat_postMessage({"channel": "C0000001", "text": "chatter"})
    clock.advance(8 * 3600)
    deliver(c)
    assert len([m for m in slack.live if m["metadata"]]) == 1


@pytest.mark.parametrize("key", ["root", "attempt:0", "closed:resolved"])
def test_a_crash_between_post_and_record_tells_nothing_twice(night, slack, courier, deliver, monkeypatch, clock, key):
    night.opened()
    night.attempt()
    night.closed()
    told = outbox.Outbox.told

    def crash(self, item, now, digest):
        if item.key == key:
            raise KeyboardInterrupt
        told(self, item, now, digest)

    with monkeypatch.context() as patch:
        patch.setattr(outbox.Outbox, "told", crash)
        with pytest.raises(KeyboardInterrupt):
            courier().deliver_once()
    clock.advance(outbox.LEASE + 1)
    deliver(courier())
    assert texts(slack) == ["a1/root", "a1/attempt:0", "a1/closed:resolved"]


def test_two_couriers_on_one_outbox(night, slack, courier, clock):
    first, second = courier(), courier()
    night.opened()
    assert first.deliver_once().leader
    night.attempt()
    assert not second.deliver_once().leader
    assert second.pending()
    clock.advance(outbox.LEASE + 1)  # the first has died
    assert second.deliver_once().leader
    assert second.pending() == []
    assert not first.deliver_once().leader
    assert texts(slack) == ["a1/root", "a1/attempt:0"]


def test_a_courier_that_lost_its_lease_meanwhile_sends_nothing(night, slack, courier, clock, monkeypatch):
    first, second = courier(), courier()
    night.opened("a")
    night.opened("b", signal="other")
    post = Slack.post

    def slow(self, *args, **kwargs):
        answer = post(self, *args, **kwargs)
        clock.advance(outbox.LEASE + 1)
        monkeypatch.setattr(Slack, "post", post)
        assert second.deliver_once().leader
        return answer

    monkeypatch.setattr(Slack, "post", slow)
    first.deliver_once()
    assert texts(slack) == ["a/root", "b/root"]


def test_a_lost_outbox_is_made_good_by_looking(night, slack, courier, deliver, said):
    night.opened()
    night.attempt()
    deliver(courier())
    for file in night.run_dir.glob("outbox.db*"):
        file.unlink()
    night.closed()
    deliver(courier())
    [root] = slack.roots()
    assert "No action needed" in root["text"]
    assert texts(slack) == ["a1/root", "a1/attempt:0", "a1/closed:resolved"]


@pytest.mark.parametrize("damage", ["not a database", "a folder"])
def test_an_outbox_that_cannot_be_opened(night, slack, courier, deliver, said, damage):
    path = night.run_dir / "outbox.db"
    if damage == "a folder":
        path.mkdir()
    else:
        path.write_bytes(b"no database at all" * 100)
    night.opened()
    night.closed()
    deliver(courier())
    assert len(slack.roots()) == 1
    assert len(said) == 1
    assert "remembered in memory only" in said[0]


def test_an_outbox_that_breaks_meanwhile(night, slack, courier, deliver, said, monkeypatch):
    c = courier()
    night.opened()
    night.attempt()
    deliver(c)
    sending = outbox.Outbox.sending

    def full(self, item, now):
        if self.path is not None:
            raise sqlite3.OperationalError("database or disk is full")
        sending(self, item, now)

    monkeypatch.setattr(outbox.Outbox, "sending", full)
    night.closed()
    deliver(c)
    assert texts(slack) == ["a1/root", "a1/attempt:0", "a1/closed:resolved"]
    assert len(said) == 1


def test_the_outbox_syncs_every_record_and_is_private(night, monkeypatch):
    monkeypatch.undo()
    box = outbox.Outbox(night.run_dir / "outbox.db")
    assert box._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert box._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert box.path.stat().st_mode & 0o077 == 0


def test_a_locked_outbox_is_waited_for_and_then_done_without(night, slack, courier, deliver, said, monkeypatch):
    monkeypatch.setattr(outbox, "_LOCK_WAIT", 0.01)
    c = courier()
    c.deliver_once()
    lock = sqlite3.connect(night.run_dir / "outbox.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    night.opened()
    assert c.deliver_once().failures == ("outbox: database is locked",)
    assert said == []
    c.deliver_once()
    c.deliver_once()
    deliver(c)
    assert len(slack.roots()) == 1
    assert len(said) == 1
    lock.close()


def test_a_journal_that_vanishes_or_is_damaged(night, slack, courier, deliver, said):
    c = courier()
    night.opened()
    deliver(c)
    with (night.run_dir / "journal.jsonl").open("ab") as file:
        file.write(b'{"kind":"incident_opened","incident":"x"}\nno json\n[1]\n{"kind":')
    night.run_dir.joinpath("journal.jsonl").rename(night.run_dir / "gone")
    deliver(c)
    (night.run_dir / "gone").rename(night.run_dir / "journal.jsonl")
    deliver(c)
    assert len(slack.roots()) == 1


def test_a_damaged_line_silences_nothing(night, slack, courier, deliver, said):
    night.opened("odd")
    night.fired("odd", count="many")
    night.opened("unheard-of", severity="apocalyptic", signal="other")
    c = courier()
    deliver(c)
    assert texts(slack) == ["odd/root", "unheard-of/root"]
    assert said == []
    assert c.pending() == []


def test_a_token_is_in_no_error_no_log_no_file(night, slack, courier, clock, said, spec, caplog, capfd):
    caplog.set_level(0)
    secret = "xoxb-leaky\nX-Evil: yes"  # http.client quotes a header that it refuses
    specs = [
        replace(spec, token=secret),
        replace(spec, name="b", token=lambda: "xoxb-leaky"),
        replace(spec, name="c", webhook_url="http://127.0.0.1:9/hook-leaky", type="webhook"),
        replace(spec, name="d", webhook_url="http://[leaky", type="webhook"),
    ]
    night.opened()
    c = courier(*specs)
    progress = c.deliver_once()
    everything = "".join([repr(c.pending()), repr(progress), *said, caplog.text, *capfd.readouterr(), repr(specs)])
    everything += "".join(f.read_bytes().decode("latin-1") for f in night.run_dir.glob("outbox.db*"))
    assert len(c.pending()) == 4
    assert "leaky" not in everything


# ---- the table: each trouble in the middle of a night, and what people have read when it is over


def down(slack, clock, passing):
    slack.stop()
    passing(600)
    slack.start()


def ratelimited(slack, clock, passing):
    slack.fail(*["429:20"] * 12)
    passing(300)


def server_errors(slack, clock, passing):
    slack.fail(*["500", "html"] * 3)
    passing(600)


def replies_lost(slack, clock, passing):
    slack.fail(*["lost", "ok"] * 6, method="chat.postMessage")
    passing(600)


def slow(slack, clock, passing):
    slack.fail("hang", "ok", "hang", method="chat.postMessage")
    slack.release.set()  # the answer comes, but nobody waits for it in this test's real time
    passing(120)


def revoked(slack, clock, passing):
    slack.tokens.clear()
    passing(700)
    slack.tokens.add(TOKEN)


def archived(slack, clock, passing):
    slack.archived.add("C0000001")
    passing(700)
    slack.archived.clear()


TROUBLES = [down, ratelimited, server_errors, replies_lost, slow, revoked, archived]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("when", ["before the message", "after it", "at the reminder"])
def test_a_night_with_trouble(night, slack, courier, clock, spec, trouble, when):
    c = courier(replace(spec, remind_every=3600.0))

    def passing(seconds):
        end = clock.time() + seconds
        while clock.time() < end:
            progress = c.deliver_once()
            clock.advance(min(10.0, max(0.5, progress.next_try or 10.0)))

    if when == "before the message":
        night.opened()
        night.attempt()
        trouble(slack, clock, passing)
    else:
        night.opened()
        passing(5)
        night.attempt()
    night.attempt(rung=1)
    if when == "after it":
        trouble(slack, clock, passing)
    passing(900)
    night.closed(status="exhausted")
    passing(3595)
    if when == "at the reminder":
        trouble(slack, clock, passing)
    passing(2400)
    slack.faults.clear()
    night.ack()
    passing(900)
    keys = [key.partition("/")[2] for key in texts(slack)]
    assert len(keys) == len(set(keys)), "nothing is doubled"
    assert keys[0] == "root"
    events = {"attempt:0", "attempt:1", "closed:exhausted", "reminder:a1:exhausted:1", "ack"}
    # What had happened before the first message is in that message, and nowhere else.
    assert events - set(keys) in (set(), {"attempt:0"}, {"attempt:0", "attempt:1"})
    assert when != "after it" or set(keys) == {"root", *events}, "nothing is lost"
    [root] = slack.roots()
    assert "Needs you: out of remedies" in root["text"]
    assert "Acknowledged by ada" in root["text"]
    assert c.pending() == []
    times = slack.times["C0000001"]
    assert all(b - a >= 0.999 for a, b in itertools.pairwise(times)), "at most one a second"


PLACES = {
    "root": ("chat.postMessage", lambda n: n.opened()),
    "reply": ("chat.postMessage", lambda n: n.attempt()),
    "edit": ("chat.update", lambda n: n.cause()),
}


@pytest.mark.parametrize("trouble", TABLE, ids=lambda t: t.fault)
@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_lost_or_doubled(night, slack, courier, deliver, clock, spec, trouble, place):
    method, event = PLACES[place]
    c = courier(replace(spec, timeout=0.1 if trouble.fault == "hang" else 2.0))
    if place != "root":
        night.opened()
        deliver(c)
    trouble.begin(slack, method)
    event(night)
    shown = set()
    for _ in range(3):
        waiting = c.deliver_once().next_try or 1.0
        shown |= {line for line in cannot_be_told(c.pending()) if trouble.reason in line}
        clock.advance(waiting + 0.01)
    assert shown, "it is seen while it lasts"
    clock.advance(600)
    trouble.end(slack)
    night.attempt(rung=1)
    night.closed()
    deliver(c)
    assert c.pending() == []
    keys = texts(slack)
    assert len(keys) == len(set(keys)), "nothing is doubled"
    assert keys[0] == "a1/root"
    log = IncidentLog(read_story(night.run_dir))
    # What had happened before a message that is late is in that message, and nowhere else.
    late = place == "root" and len(keys) == 1
    assert keys[1:] == ([] if late else [f"a1/{r.key}" for r in render.replies(log, log.incidents["a1"])])
    [root] = slack.roots()
    assert "No action needed: repaired" in root["text"], "and up to date"
    assert all(b - a >= 0.999 for a, b in itertools.pairwise(slack.times["C0000001"]))


@pytest.mark.parametrize("what", ["the message", "a reply"])
def test_a_person_deletes(night, slack, courier, deliver, what):
    c = courier()
    night.opened()
    night.attempt()
    deliver(c)
    next(m for m in slack.live if bool(m["thread"]) == (what == "a reply"))["deleted"] = True
    night.ack()
    night.closed()
    deliver(c)
    assert texts(slack) == (["a1/attempt:0"] if what == "the message" else ["a1/root", "a1/ack", "a1/closed:resolved"])
    assert c.pending() == []
