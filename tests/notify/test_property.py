"""Whatever the story says, whoever delivers and however Slack fails: what is due exists once, in order, up to date."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from notify.fake_slack import TOKEN, FakeSlack
from notify.night import Night

from guard.clock import FakeClock
from guard.incidents import IncidentLog, outside, read_story
from guard.notify import Courier, Limiter, ReceiverSpec, outbox, render
from guard.notify.desk import due

FAULTS = st.sampled_from(
    ["ok", "ok", "lost", "drop", "500", "html", "429:3", "fatal_error", "done:internal_error", "crash", "down"]
)
EVENTS = st.sampled_from(
    [
        "open",
        "again",
        "attach",
        "attempt",
        "escalate",
        "repeat",
        "fired",
        "resolve",
        "exhaust",
        "cause",
        "pass",
        "pass",
        "other pass",
        "hand over",
        "hours",
        "ack",
        "silence",
        "lift",
        "finish",
    ]
)


class Crash(BaseException):
    """The process dies here."""


class Play:
    """Writes a story as a guard, a daemon and people would: nothing after an incident's end, after the run's end only a
    new start."""

    def __init__(self, night: Night) -> None:
        self.night, self.clock = night, night.clock
        self.opened: list[str] = []
        self.rungs: dict[str, int] = {}
        self.closed = self.finished = self.silenced = False
        self.quiet_until = 0.0

    def event(self, event: str) -> None:
        night = self.night
        if event in ("silence", "lift"):
            self.silenced = True
            self.quiet_until = self.clock.time() + 3600.0 if event == "silence" else 0.0
            outside.append(night.run_dir, self.clock, "silence", until=self.quiet_until, author="ada", policy=None)
            return
        if self.finished:
            night.started()
            self.finished = False
        if event in ("open", "again") or self.closed or not self.opened:
            if len(self.opened) < 8:
                self.opened.append(f"i{len(self.opened)}")
                night.opened(self.opened[-1], signal="same" if event == "again" else self.opened[-1])
                self.closed = False
            return
        last = self.opened[-1]
        match event:
            case "attach":
                night.opened(f"{last}-with-{night.seq}", attached_to=last)
            case "attempt":
                night.attempt(last, self.rungs.get(last, 0))
            case "escalate":
                self.rungs[last] = self.rungs.get(last, -1) + 1
                night.attempt(last, self.rungs[last])
            case "repeat":
                night.attempt(last, self.rungs.get(last, 0), repeat=2)
            case "fired":
                night.fired(last, count=4)
            case "resolve" | "exhaust":
                night.closed(last, "resolved" if event == "resolve" else "exhausted")
                self.closed = True
            case "cause":
                night.cause(last)
            case "finish":
                night.finished()
                self.finished = True
            case "ack":
                outside.append(night.run_dir, self.clock, "ack", incident=last, author="ada")


@pytest.fixture(scope="module")
def server():
    fake = FakeSlack(FakeClock()).start()
    yield fake
    fake.stop()


@example(events=["open", "exhaust", "pass", "again"], faults=[])
@example(events=["open", "attempt", "pass", "attempt", "hand over"], faults=[])
@example(events=["open", "pass", "silence", "attempt", "pass", "escalate", "other pass"], faults=[])
@example(events=["silence", "open", "pass", "attempt", "hand over"], faults=["ok", "lost"])
@example(events=["silence", "open", "pass", "resolve", "pass", "again"], faults=["500"])
@example(events=["open", "pass", "exhaust", "hours", "pass", "ack", "hours", "pass"], faults=["ok", "lost", "lost"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(events=st.lists(EVENTS, min_size=1, max_size=14), faults=st.lists(FAULTS, max_size=14))
def test_every_due_message_exists_once(server, events, faults):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        clock = FakeClock()
        server.clock, server.messages, server.requests, server.times = clock, [], [], {}
        server.faults = [(f, None) for f in faults if f not in ("crash", "down")]
        crashes = [f == "crash" for f in faults]
        outages = [f == "down" for f in faults]
        told = outbox.Outbox.told

        def dies(self, item, now, digest):
            if crashes and crashes.pop(0):
                raise Crash
            told(self, item, now, digest)

        patch.setattr(outbox.Outbox, "told", dies)
        night = Night(Path(folder) / "run", clock)
        play, limiter = Play(night), Limiter(clock)
        spec = ReceiverSpec(
            "training", "slack", channel="#training", token=TOKEN, base_url=server.url, remind_every=7200.0
        )
        down = ReceiverSpec("training", "slack", channel="#training", token=TOKEN, base_url="http://127.0.0.1:9/api/")

        def new(its: ReceiverSpec = spec) -> Courier:
            return Courier(night.run_dir, [its], clock=clock, limiter=limiter, say=lambda text: None)

        couriers = [new(), new()]

        def one_pass(which: int = 0) -> float | None:
            before, quiet = len(server.messages), play.quiet_until > clock.time() and not unsure(night)
            try:
                if outages and outages.pop(0):  # nothing listens there
                    clock.advance(outbox.LEASE + 1)
                    new(down).deliver_once()
                    clock.advance(outbox.LEASE + 1)
                    return 0.0
                progress = couriers[which].deliver_once()
            except Crash:
                clock.advance(outbox.LEASE + 1)
                couriers[which] = new()
                return 0.0
            if quiet:
                assert len(server.messages) == before, "nobody is woken during a silence"
            return progress.next_try if progress.waiting or not progress.leader else None

        for event in events:
            match event:
                case "pass":
                    one_pass()
                case "other pass":
                    one_pass(1)
                case "hand over":
                    clock.advance(outbox.LEASE + 1)
                    couriers.reverse()
                    one_pass()
                case "hours":
                    clock.advance(3 * 3600.0)
                case _:
                    play.event(event)
        clock.advance(max(0.0, play.quiet_until - clock.time()) + 1.0)
        for _ in range(100):
            wait = one_pass()
            if wait is None and not outages:
                break
            clock.advance((wait or 0.0) + 0.01)
        assert couriers[0].pending() == []
        timely = not play.silenced and clock.time() - FakeClock().time() < 120.0
        check(server, night, spec, timely=timely)


def unsure(night: Night) -> bool:
    """A message may have been sent and not been recorded: it is looked for, and sent again if it is not there."""
    box = outbox.Outbox(night.run_dir / "outbox.db")
    try:
        return bool(box.items("training", "state = 'sending'"))
    finally:
        box.close()


def check(server: FakeSlack, night: Night, spec: ReceiverSpec, *, timely: bool) -> None:
    log = IncidentLog(read_story(night.run_dir))
    box = outbox.Outbox(night.run_dir / "outbox.db")
    rows = {(row.incident, row.key): row.state for row in box.items("training")}
    box.close()
    keys = [m["metadata"]["event_payload"]["key"].split("/", 1)[1] for m in server.live]
    assert len(keys) == len(set(keys)), "told twice"
    times = server.times.get("C0000001", [])
    assert all(b - a >= 0.99 for a, b in itertools.pairwise(times)), "at most one message a second"
    mine: set[str] = set()
    for subject in due(log, spec):
        if rows[subject.id, "root"] == "dropped":
            assert not timely
            assert not subject.unresolved(), "kept back by a silence, and not told after it"
            continue
        [root] = [m for m in server.roots() if key_of(m) == f"{subject.id}/root"]
        message = subject.message()
        assert root["text"] == render.slack_text(message.text)
        assert root["blocks"] == message.blocks
        replies = {r.key: r for r in subject.replies()}
        thread = [key_of(m).partition("/")[2] for m in server.thread(root)]
        for key, reply in replies.items():
            assert rows[subject.id, key] in ("told", "dropped"), "lost"
            assert (key in thread) == (rows[subject.id, key] == "told")
            # Where the root itself was told late enough to wake, its own turn for the worse is not told beneath it.
            woke = reply.broadcast or key.partition("/")[0] in ("closed:exhausted", "crashed")
            assert rows[subject.id, key] == "told" or not timely or woke, "dropped without need"
        # A run that is over may be resumed, and its story goes on; an answer may come at any time.
        in_order = [key for key in thread if key in replies and key.partition("/")[0] not in ("over", "ack")]
        assert in_order == [key for key in replies if key in in_order], "in their order"
        assert all(float(m["ts"]) > float(root["ts"]) for m in server.thread(root)), "root first"
        reminders = [m for m in server.thread(root) if "/reminder:" in key_of(m) or "/after-silence" in key_of(m)]
        assert all(m["broadcast"] for m in reminders)
        mine |= {f"{subject.id}/root", *(f"{subject.id}/{key}" for key in thread)}
        extra = set(thread) - replies.keys() - {key_of(m).partition("/")[2] for m in reminders}
        assert all(key.partition("/")[0] == "over" for key in extra), "nobody asked for it"
    assert set(keys) == mine, "nobody asked for it"


def key_of(message: dict) -> str:
    return message["metadata"]["event_payload"]["key"].split("/", 1)[1]
