"""Names, errors and ids that somebody else has written: only text, and never too much of it, wherever it is read."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from daemon.conftest import Stage
from daemon.theatre import Theatre
from notify.fake_slack import TOKEN, FakeSlack

from guard.cli._main import main
from guard.daemon import page, standing
from guard.daemon.answers import Answers
from guard.daemon.metrics import Collector
from guard.incidents import IncidentLog, acts, read_story
from guard.notify import Courier, ReceiverSpec, render, render_digest
from guard.notify.evidence import report

NASTY = "../x <!channel> <@U1> `ticks` *bold* two\nlines \u202eRTL \x1b[31mred\x1b[0m @here & <script>alert(1)</script>"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(params=[NASTY, NASTY + "z" * 5_000_000], ids=["nasty", "and 5 MB"])
def foreign(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stage(theatre: Theatre, foreign: str) -> Stage:
    """A run in which whatever may be foreign is."""
    name = foreign[:2000]
    stage = theatre.run("plain")
    theatre.home.announce_run(stage.path, name)
    stage.journal("run_started", mode="enforce", run=name, run_dir=str(stage.path), host=name, rank=name, pid=1)
    known: dict[str, Any] = {"policy": name, "detector": name, "severity": "critical"}
    detection = {"signal": name, "value": 1.0, "message": foreign}
    stage.journal("incident_opened", incident=name, **known, detection=detection)
    did = {"type": name, "summary": foreign, "changes": {name: foreign}, "standing": True}
    ladder: dict[str, Any] = {"rung": 0, "rungs": 2, "repeat": 0, "escalated": False, "would": False}
    stage.journal("attempt", incident=name, **ladder, results=[did], unavailable=[[name, foreign]])
    kept = {"restarts": name, "rank": name, "stderr": [foreign] * 50, "stacks": {name: foreign}}
    stage.journal("incident_evidence", incident=name, evidence=kept, cause=foreign)
    stage.journal("incident_opened", incident="w1", **{**known, "detector": "hang"}, detection=detection)
    stage.journal("incident_evidence", incident="w1", evidence=kept, cause=foreign)
    stage.journal("incident_closed", incident="w1", status="exhausted", count=1, outcome={})
    acts.acknowledge(stage.path, name, name, theatre.clock)
    return stage


def strings(value: Any) -> Iterator[str]:
    """All that Slack reads as markup."""
    if isinstance(value, dict):
        kind, text = value.get("type"), value.get("text")
        if kind == "mrkdwn" and isinstance(text, str):
            yield text
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


def harmless(text: str) -> None:
    """As Slack takes it."""
    assert not CONTROL.search(text)
    assert not re.search(r"<[!@#](?!date\^)|<script|@here", text)
    assert text.count("`") in (0, 2), "a command's own ticks"
    assert "*bold*" not in re.sub("`.*`", "", text)
    for command in re.findall("`(.*)`", text):
        assert len(shlex.split(html.unescape(command))) in (3, 4), "what is copied into a shell is one word each"
    assert len(text) <= 3000


def test_slack(theatre: Theatre, stage: Stage, slack: FakeSlack) -> None:
    spec = ReceiverSpec(
        "lab", "slack", channel="#training", token=TOKEN, base_url=slack.url, lifecycle=True, remind_every=60.0
    )
    theatre.home.claim("listeners", "A1", "me")
    courier = Courier(stage.path, [spec], clock=theatre.clock, home=theatre.home, say=theatre.said.append)
    for _ in range(20):
        courier.deliver_once()
        theatre.clock.advance(30)
        theatre.home.claim("listeners", "A1", "me")
    assert len(slack.roots()) == 3
    assert any(m["thread"] for m in slack.live)
    assert "actions" in json.dumps(slack.live), "buttons are looked at too"
    for message in slack.live:
        for text in (message["text"], *strings(message["blocks"])):
            harmless(text)
        for block in message["blocks"]:
            assert block["type"] != "header" or "\n" not in block["text"]["text"]
            for element in block.get("elements", []):
                assert len(element["value"]) <= 2000
    assert theatre.said == []


def test_storm_and_digest(stage: Stage) -> None:
    entries = read_story(stage.path)
    log = IncidentLog(entries)
    incidents = list(log.incidents.values())
    for message in (render.storm(log, incidents, 0.0, [1]), render_digest([entries], 0.0, 1e12)):
        harmless(render.slack_text(message.text))
        for text in strings(message.blocks):
            harmless(text)


def test_an_answer_in_slack_is_a_line_a_run(theatre: Theatre, stage: Stage, slack: FakeSlack) -> None:
    theatre.run("other")
    Answers(slack.url).send(slack.hook(), standing.of_all(list(theatre.home.runs()), theatre.clock))
    (answer,) = slack.hooks
    harmless(answer["text"])
    assert len(answer["text"].splitlines()) == 2


def test_the_status_page_and_the_metrics(theatre: Theatre, stage: Stage) -> None:
    theatre.go(3)
    text = page._html(theatre.daemon)
    assert not CONTROL.search(text)
    assert "<script" not in text
    assert "<!channel" not in text
    assert len(text) < 20_000
    labels = [value for m in Collector(theatre.daemon).collect() for s in m.samples for value in s.labels.values()]
    assert all(len(value) <= 80 for value in labels)


COMMANDS: list[Callable[[str], list[str]]] = [
    lambda run: ["incidents", run],
    lambda run: ["show", run, "w1"],
    lambda run: ["show", run],
    lambda run: ["status", run],
    lambda run: ["ack", run, "w2"],
    lambda run: ["notify", run, "--wait", "0"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=["incidents", "show", "show latest", "status", "ack", "notify"])
def test_the_terminal(stage: Stage, command: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(command(str(stage.path)))
    shown = "".join(capsys.readouterr())
    assert shown
    assert "Traceback" not in shown
    assert not CONTROL.search(shown)
    assert len(shown) < 40_000


def test_the_report(stage: Stage) -> None:
    log = IncidentLog(read_story(stage.path))
    for incident in log.incidents:
        text = report(log, incident)
        assert not CONTROL.search(text)
        assert len(text) < 40_000
        outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
        assert "<script" not in outside.replace("\\<", "")


def test_an_incident_cannot_name_a_folder_elsewhere(theatre: Theatre, stage: Stage) -> None:
    from guard.incidents import plot

    for name in ("..", "../x", "/tmp/x"):
        stage.journal("incident_opened", incident=name, policy="p", detector="d", severity="critical", detection={})
        with pytest.raises(ValueError, match="cannot name a folder"):
            plot.render(stage.path, name)
    assert not (stage.path.parent / "x").exists()
