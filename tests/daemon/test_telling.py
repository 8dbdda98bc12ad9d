"""What reaches people through the daemon: each incident once, whoever dies, and what is due when nothing happens."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from daemon.conftest import Stage
from daemon.theatre import Theatre
from notify.fake_slack import TOKEN, FakeSlack
from notify.trouble import TABLE, Trouble

from guard.daemon.metrics import Collector
from guard.daemon.settings import Digest, Escalate
from guard.incidents.acts import acknowledge
from guard.notify import Courier
from guard.notify.aside import Aside
from guard.policy import PolicySet, Receiver, SecretRef
from guard.receivers import receiver_specs


@pytest.fixture
def lab(slack: FakeSlack) -> Receiver:
    return Receiver(type="slack", channel="#training", token=SecretRef(TOKEN), base_url=slack.url, mention="<@U012>")


@pytest.fixture
def oncall(slack: FakeSlack) -> Receiver:
    return Receiver(
        type="slack", channel="#oncall", token=SecretRef(TOKEN), base_url=slack.url, min_severity="critical"
    )


def opened(stage: Stage, incident: str, detector: str = "loss_spike", **more: Any) -> None:
    known = {"policy": detector, "severity": "warning", "detection": {"message": "seen"}, **more}
    stage.journal("incident_opened", incident=incident, detector=detector, **known)


def closed(stage: Stage, incident: str, status: str = "resolved") -> None:
    stage.journal("incident_closed", incident=incident, status=status, count=1, outcome={})


def dead(theatre: Theatre, name: str = "run") -> Stage:
    """A run that has made progress and then died."""
    stage = theatre.run(name)
    theatre.go(8, stages=(stage,))
    theatre.die(stage)
    theatre.go(10)
    return stage


def test_a_death_is_told_once_and_calls_somebody(theatre: Theatre, slack: FakeSlack, lab: Receiver) -> None:
    theatre.restart(receivers={"lab": lab})
    dead(theatre)
    (root,) = slack.roots()
    assert "Needs you: the run crashed" in root["text"]
    calls = [m for m in [root, *slack.thread(root)] if "<@U012>" in str(m)]
    assert len(calls) == 1
    theatre.restart(receivers={"lab": lab})
    theatre.go(20)
    assert len(slack.roots()) == 1


def test_the_runs_own_receivers_and_the_daemons(
    theatre: Theatre, slack: FakeSlack, lab: Receiver, oncall: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", TOKEN)
    theatre.restart(receivers={"slack": oncall, "same": lab})
    stage = theatre.run()
    own = f"{{type: slack, channel: '#training', token: '${{A_TOKEN}}', base_url: '{slack.url}'}}"
    (stage.path / "policy.yaml").write_text(
        f"version: 1\npolicies: []\nreceivers:\n  slack: {own}\n  here: {{type: console}}\n"
    )
    opened(stage, "i1", severity="critical")
    theatre.go(10, stages=(stage,))
    assert len(slack.roots("C0000001")) == len(slack.roots("C0000002")) == 1


def test_a_night_without_slack(theatre: Theatre, slack: FakeSlack, lab: Receiver) -> None:
    theatre.restart(receivers={"lab": lab})
    stage = theatre.run()
    theatre.go(5, stages=(stage,))
    slack.stop()
    opened(stage, "i1")
    opened(stage, "i2", "grad_explosion")
    closed(stage, "i1")
    theatre.go(600, stages=(stage,), every=5.0)
    found = metrics(theatre)
    assert found["guard_outbox_depth"] == [2.0]
    assert found["guard_outbox_oldest_age_seconds"][0] == pytest.approx(600, abs=30)
    assert "guard_last_success_timestamp_seconds" not in found
    slack.start()
    theatre.go(400, stages=(stage,), every=5.0)
    assert len(slack.roots()) == 2
    found = metrics(theatre)
    assert found["guard_outbox_depth"] == [0.0]
    assert found["guard_last_success_timestamp_seconds"][0] == pytest.approx(theatre.clock.now, abs=420)


def metrics(theatre: Theatre) -> dict[str, list[float]]:
    return {m.name: [s.value for s in m.samples] for m in Collector(theatre.daemon).collect()}


def attempt(stage: Stage) -> None:
    rollback = {"type": "rollback", "summary": "rolled back 40 steps", "changes": {}, "standing": False}
    known: dict[str, Any] = {"rung": 0, "rungs": 2, "repeat": 0, "escalated": False, "would": False}
    stage.journal("attempt", incident="i1", **known, results=[rollback], unavailable=[])


PLACES: dict[str, tuple[str, Callable[[Stage], None]]] = {
    "root": ("chat.postMessage", lambda stage: opened(stage, "i1")),
    "reply": ("chat.postMessage", attempt),
    "edit": (
        "chat.update",
        lambda stage: stage.journal("incident_evidence", incident="i1", evidence={}, cause="a bad batch"),
    ),
}


@pytest.mark.slow
# A Slack that does not answer in time is in the courier's own table: there the clock that waits is a real one.
@pytest.mark.parametrize("trouble", [t for t in TABLE if t.fault != "hang"], ids=lambda t: t.fault)
@pytest.mark.parametrize("place", PLACES)
def test_of_many_runs_nothing_is_lost_or_doubled(
    theatre: Theatre,
    slack: FakeSlack,
    lab: Receiver,
    trouble: Trouble,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theatre.restart(receivers={"lab": lab})
    monkeypatch.setattr(theatre.daemon.telling, "_hands", ThreadPoolExecutor(1))  # they share a clock that is played
    stages = tuple(theatre.run(f"r{i}") for i in range(3))
    theatre.go(8, stages=stages)
    method, event = PLACES[place]
    if place != "root":
        for stage in stages:
            opened(stage, "i1")
        theatre.go(8, stages=stages)
    trouble.begin(slack, method)
    for stage in stages:
        event(stage)
    depth = 0.0
    for seconds in (5.0, *[30.0] * 20):
        theatre.go(seconds, stages=stages, every=seconds)
        depth = max(depth, *metrics(theatre)["guard_outbox_depth"])
    assert depth == 1.0, "it is seen while it lasts"
    trouble.end(slack)
    for stage in stages:
        closed(stage, "i1")
    theatre.go(800, stages=stages, every=20.0)
    assert metrics(theatre)["guard_outbox_depth"] == [0.0, 0.0, 0.0]
    keys = [m["metadata"]["event_payload"]["key"] for m in slack.live]
    assert len(keys) == len(set(keys)), "nothing is doubled"
    roots = slack.roots()
    assert len(roots) == 3
    assert all("No action needed" in r["text"] for r in roots)
    for root in roots:
        told = [m["metadata"]["event_payload"]["key"].rsplit("/", 1)[1] for m in slack.thread(root)]
        late = place == "root" and not told  # what had happened before a late message is in it
        assert late or told[-1] == "closed:resolved"
        assert place != "reply" or told == ["attempt:0", "closed:resolved"]
        assert all(float(m["ts"]) > float(root["ts"]) for m in slack.thread(root))
    assert all(b - a >= 0.999 for a, b in itertools.pairwise(slack.times["C0000001"])), "one a second, over all runs"


def test_two_hosts_daemons_on_one_home_tell_once(theatre: Theatre, slack: FakeSlack, lab: Receiver) -> None:
    theatre.restart(receivers={"lab": lab})
    other = theatre.begin("elsewhere", receivers={"lab": lab})
    stages = [theatre.run(f"r{i}") for i in range(4)]
    theatre.go(8, stages=tuple(stages))
    for i, stage in enumerate(stages):
        opened(stage, f"i{i}", severity="critical")
    theatre.go(15, stages=tuple(stages))
    assert len(slack.roots()) == 4
    teller = next(d for d in theatre.daemons if d.tells(d.watched()[0]))
    theatre.daemons.remove(teller)
    teller.close(0.0)
    theatre.daemon = theatre.daemons[0]
    for stage in stages:
        opened(stage, "more", "grad_explosion")
    theatre.go(30, stages=tuple(stages))
    assert len(slack.roots()) == 8
    assert other in (teller, theatre.daemon)


def test_nobody_answers(theatre: Theatre, slack: FakeSlack, lab: Receiver, oncall: Receiver) -> None:
    receivers = {"lab": lab, "oncall": oncall}
    theatre.restart(receivers=receivers, escalate=Escalate(after=1800.0, to="oncall"), remind_every=3600.0)
    quiet, loud = theatre.run("quiet"), theatre.run("loud")
    theatre.go(8, stages=(quiet, loud))
    for stage in (quiet, loud):
        opened(stage, "i1", "divergence")
        closed(stage, "i1", "exhausted")
    theatre.go(20, stages=(quiet, loud))
    assert len(slack.roots()) == 2
    assert slack.roots("C0000002") == [], "the one on call is left asleep"
    acknowledge(quiet.path, "i1", "ada", theatre.clock)
    theatre.go(1900, stages=(quiet, loud), every=20.0)
    (called,) = slack.roots("C0000002")
    assert "loud" in str(called)
    theatre.go(3000, stages=(quiet, loud), every=20.0)
    acknowledged, unanswered = sorted(slack.roots(), key=lambda r: "loud" in str(r))
    assert not [m for m in slack.thread(acknowledged) if "Unresolved for" in m["text"]]
    (reminder,) = [m for m in slack.thread(unanswered) if "Unresolved for 1 h" in m["text"]]
    assert reminder["broadcast"]
    assert reminder["text"].startswith("<@U012>")


def test_a_digest_is_told_once_whatever_happens(
    theatre: Theatre, slack: FakeSlack, lab: Receiver, oncall: Receiver
) -> None:
    how: dict[str, Any] = {
        "receivers": {"lab": lab, "oncall": oncall},
        "digest": Digest(cron="0 * * * *", timezone="UTC", to=("lab",)),
    }
    theatre.restart(**how)
    stage = theatre.run("exp1")
    theatre.go(20, stages=(stage,))
    opened(stage, "i1")
    closed(stage, "i1")
    theatre.go(20, stages=(stage,))

    def digests(channel: str = "C0000001") -> list[str]:
        return [r["text"] for r in slack.roots(channel) if "ast " in r["text"]]

    assert digests() == []
    hour = 3600.0
    to_the_hour = hour - theatre.clock.now % hour
    theatre.go(to_the_hour - 60, stages=(stage,), every=30.0)
    slack.stop()
    theatre.go(300, stages=(stage,), every=20.0)
    theatre.restart(**how)
    slack.start()
    theatre.go(600, stages=(stage,), every=20.0)
    (first,) = digests()
    assert "1 run, 1 incident, 1 repaired" in first
    theatre.go(20, stages=(stage,))
    theatre.clock.advance(3 * hour)  # the daemon was not there, and three were missed
    theatre.restart(**how)
    theatre.go(100, stages=(stage,), every=20.0)
    assert len(digests()) == 2
    assert "1 run, 0 incidents" in digests()[1]
    assert digests("C0000002") == []


def test_the_process_leaves_it_to_the_daemon_while_there_is_one(
    theatre: Theatre, slack: FakeSlack, lab: Receiver
) -> None:
    theatre.restart(receivers={"lab": lab})
    stage = theatre.run()
    specs = receiver_specs(PolicySet(receivers={"lab": lab}))
    aside = Aside("auto", theatre.home, theatre.clock)
    inside = Courier(stage.path, specs, clock=theatre.clock, aside=aside, say=theatre.said.append)
    theatre.go(10, stages=(stage,))
    opened(stage, "i1")
    assert inside.deliver_once().told == 0
    theatre.go(5, stages=(stage,))
    assert len(slack.roots()) == 1
    assert inside.deliver_once().told == 0
    theatre.daemons.remove(theatre.daemon)
    theatre.daemon.close(0.0)
    theatre.clock.advance(61)
    opened(stage, "i2", "grad_explosion")
    for _ in range(5):
        inside.deliver_once()
        theatre.clock.advance(5)
    assert len(slack.roots()) == 2
    inside.close(0.0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a directory away")
def test_a_hub_reads_and_tells_and_writes_nothing_of_others(theatre: Theatre, slack: FakeSlack, lab: Receiver) -> None:
    theatre.restart(receivers={"lab": lab})
    stage = theatre.run()
    for path in (*stage.path.iterdir(), stage.path):
        os.chown(path, 12345, 12345)
    theatre.go(8, stages=(stage,))
    before = {p.name for p in stage.path.iterdir()}
    theatre.die(stage)
    theatre.go(20)
    assert {p.name for p in stage.path.iterdir()} == before
    (root,) = slack.roots()
    assert "crashed" in root["text"]


def test_buttons_only_while_somebody_listens(theatre: Theatre, slack: FakeSlack, lab: Receiver) -> None:
    theatre.restart(receivers={"lab": lab})
    dead(theatre, "before")
    theatre.home.claim("listeners", "A1", "me")
    theatre.clock.advance(15)
    assert theatre.home.claim("listeners", "A1", "me")
    dead(theatre, "after")
    without, with_ = (r["blocks"] for r in sorted(slack.roots(), key=lambda r: float(r["ts"])))
    assert not [b for b in without if b["type"] == "actions"]
    (actions,) = [b for b in with_ if b["type"] == "actions"]
    assert "guard:ack" in [e["action_id"] for e in actions["elements"]]
