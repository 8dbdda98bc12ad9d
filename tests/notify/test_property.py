"""Whatever the journal says and however Slack fails: every due message exists once, in order, and is up to date."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from notify.fake_slack import TOKEN, FakeSlack
from notify.night import Night

from guard.clock import FakeClock
from guard.incidents import IncidentLog, read_journal
from guard.notify import Courier, ReceiverSpec, outbox, render
from guard.notify.desk import due

FAULTS = st.sampled_from(
    ["ok", "ok", "lost", "drop", "500", "html", "429:3", "fatal_error", "done:internal_error", "crash", "down"]
)
EVENTS = st.sampled_from(
    [
        "open",
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
        "finish",
    ]
)


class Crash(BaseException):
    """The process dies here."""


def play(event: str, night: Night, opened: list[str], rungs: dict[str, int], state: dict[str, bool]) -> None:
    """Writes a journal as a guard would: nothing after an incident's end, after the run's end only a new start."""
    if state.pop("finished", False):
        night.started()
    if event == "open" or state.pop("closed", not opened):
        if len(opened) < 8:
            opened.append(f"i{len(opened)}")
            night.opened(opened[-1])
        else:
            state["closed"] = True
        return
    last = opened[-1]
    match event:
        case "attach":
            night.opened(f"{last}-with-{night.seq}", attached_to=last)
        case "attempt":
            night.attempt(last, rungs.get(last, 0))
        case "escalate":
            rungs[last] = rungs.get(last, -1) + 1
            night.attempt(last, rungs[last])
        case "repeat":
            night.attempt(last, rungs.get(last, 0), repeat=2)
        case "fired":
            night.fired(last, count=4)
        case "resolve" | "exhaust":
            night.closed(last, "resolved" if event == "resolve" else "exhausted")
            state["closed"] = True
        case "cause":
            night.cause(last)
        case "finish":
            night.finished()
            state["finished"] = True


@pytest.fixture(scope="module")
def server():
    fake = FakeSlack(FakeClock()).start()
    yield fake
    fake.stop()


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(events=st.lists(EVENTS, min_size=1, max_size=12), faults=st.lists(FAULTS, max_size=14))
def test_every_due_message_exists_once(server, events, faults):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        clock = FakeClock()
        server.clock, server.messages, server.requests = clock, [], []
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
        spec = ReceiverSpec("training", "slack", channel="#training", token=TOKEN, base_url=server.url)
        down = ReceiverSpec("training", "slack", channel="#training", token=TOKEN, base_url="http://127.0.0.1:9/api/")
        opened: list[str] = []
        rungs: dict[str, int] = {}
        state: dict[str, bool] = {}
        couriers = [new(night, spec, clock)]

        def one_pass() -> float | None:
            try:
                if outages and outages.pop(0):  # nothing listens there
                    couriers[0] = new(night, down, clock)
                progress = couriers[0].deliver_once()
            except Crash:
                clock.advance(outbox.LEASE + 1)
                couriers[0] = new(night, spec, clock)
                return 0.0
            if couriers[0]._specs[0] is down:
                clock.advance(outbox.LEASE + 1)
                couriers[0] = new(night, spec, clock)
                return 0.0
            return progress.next_try if progress.waiting or not progress.leader else None

        for event in events:
            if event == "pass":
                one_pass()
            else:
                play(event, night, opened, rungs, state)
        for _ in range(100):
            wait = one_pass()
            if wait is None and not outages:
                break
            clock.advance((wait or 0.0) + 0.01)
        assert couriers[0].pending() == []
        check(server, IncidentLog(read_journal(night.run_dir)), spec)


def new(night: Night, spec: ReceiverSpec, clock: FakeClock) -> Courier:
    return Courier(night.run_dir, [spec], clock=clock, say=lambda text: None)


def check(server: FakeSlack, log: IncidentLog, spec: ReceiverSpec) -> None:
    keys = [m["metadata"]["event_payload"]["key"].split("/", 1)[1] for m in server.live]
    assert len(keys) == len(set(keys)), "told twice"
    wanted = {f"{i.id}/{key}" for i in due(log, spec) for key in ["root", *(r.key for r in render.replies(log, i))]}
    assert wanted <= set(keys), "not told"
    assert all(k in wanted or k.endswith("/over") for k in keys), "nobody asked for it"
    for incident in due(log, spec):
        [root] = [m for m in server.roots() if m["metadata"]["event_payload"]["key"].endswith(f"/{incident.id}/root")]
        message = render.root(log, incident)
        assert root["text"] == render.slack_text(message.text)
        assert root["blocks"] == message.blocks
        thread = [m["metadata"]["event_payload"]["key"].split("/", 2)[2] for m in server.thread(root)]
        # A run that is over may be resumed, and its story goes on.
        events = [key for key in thread if key != "over"]
        assert events == [r.key for r in render.replies(log, incident) if r.key != "over"], "in their order"
        assert all(float(m["ts"]) > float(root["ts"]) for m in server.thread(root)), "root first"
