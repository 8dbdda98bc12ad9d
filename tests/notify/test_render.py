"""What people read: the first line, the numbers, and other people's text made harmless."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guard.incidents import IncidentLog, read_journal
from guard.notify import blocks, render, render_digest, words
from guard.notify.lifecycle import Run

STARTED = {"mode": "enforce", "policy": "default", "pid": 1, "rank": 0, "versions": {}, "policy_digest": "0"}


def read(night):
    log = IncidentLog(read_journal(night.run_dir))
    return log, next(iter(log.incidents.values()))


def tries(night, *rungs):
    for rung in rungs:
        night.attempt(rung=rung)


@pytest.mark.parametrize(
    ("story", "line"),
    [
        (lambda n: None, "Seen: NaN or Inf in loss or gradients, nothing done yet"),
        (lambda n: tries(n, 0), "Working on it: rolled back 40 steps to step 1,160, now checking that it helps"),
        (lambda n: (tries(n, 0), n.closed()), "No action needed: repaired, 40 steps lost"),
        (lambda n: n.closed(), "No action needed: NaN or Inf in loss or gradients passed by itself"),
        (
            lambda n: (tries(n, 0, 1), n.closed(status="exhausted")),
            "Needs you: out of remedies, the run goes on unrepaired",
        ),
        (
            lambda n: (tries(n, 0, 1), n.closed(status="exhausted"), n.finished("stopped")),
            "Needs you: out of remedies, run stopped",
        ),
        (lambda n: (tries(n, 0, 1), n.closed(status="stopped")), "Needs you: out of remedies, run stopped"),
        (lambda n: (tries(n, 0), n.closed(status="stopped")), "Needs you: run stopped"),
        (lambda n: (tries(n, 0), n.finished()), "Run over before a verdict: NaN or Inf in loss or gradients"),
        (
            lambda n: (tries(n, 0), n.closed(status="ended"), n.finished("crashed")),
            "Needs you: the run crashed before this was repaired",
        ),
    ],
)
def test_the_first_line_is_for_the_person_woken(night, story, line):
    night.opened()
    story(night)
    assert render.root(*read(night)).first_line == line


def test_the_whole_message(night, tmp_path):
    night.opened()
    night.cause()
    night.attempt(summary="rolled back 40 steps to step 1,160; the same batches follow")
    night.attempt(rung=1, summary="halved the learning rate to 5e-4", standing=True)
    night.closed()
    assert (
        render.to_terminal(render.root(*read(night))).replace(str(night.run_dir), "runs/exp1")
        == """\
No action needed: repaired, 40 steps lost
Critical · NaN or Inf in loss or gradients · run exp1

  Run     exp1
  Host    node7
  Rank    0
  Step    1,181
  Time    2023-11-14 22:13:20 UTC
  Policy  nan-rollback-retry-bf16

What happened
  Loss is NaN at step 1,200.
  Loss: NaN · usual 2.312

Where it began
  At step 1,179, 2 steps before it was seen.
  Cause: attention in layer 7 overflowed in FP16.

What the guard did
  1. Step 1,183: rolled back 40 steps to step 1,160; the same batches follow. Not
     possible: precision (the run is in FP32 already).
  2. Step 1,184: halved the learning rate to 5e-4. Not possible: precision (the run is
     in FP32 already).

Did it help?
  Yes, 40 steps lost. Loss before 2.31, after 2.29, expected 2.3.

Still in force
  • halved the learning rate to 5e-4

Next: guard show runs/exp1 a1
"""
    )


def test_the_thread_reads_as_a_log(night):
    night.opened()
    tries(night, 0, 1)
    night.closed(status="stopped")
    assert [(r.key, r.broadcast) for r in render.replies(*read(night))] == [
        ("attempt:0", False),
        ("attempt:1", False),
        ("closed:stopped", True),
    ]


def test_only_the_latest_escalation_wakes(night):
    night.opened()
    tries(night, 0, 1, 2)
    assert [r.broadcast for r in render.replies(*read(night))] == [False, False, True]


def test_nobody_is_pinged_by_an_error_text(night):
    night.opened(message="<!channel> <@U1> @here & `x` \x1b[31mred\x1b[0m \u202eevil \ud800")
    message = render.root(*read(night))
    text = json.dumps(message.blocks)
    assert "<!channel" not in text
    assert "<@U1" not in text
    assert "@here" not in text
    assert "&lt;!channel&gt;" in text
    assert all(b["text"].get("verbatim", True) for b in message.blocks if "text" in b)
    plain = render.to_terminal(message)
    assert "\x1b" not in plain
    assert "\u202e" not in plain
    plain.encode()


def test_megabytes_of_error_text_are_cut(night):
    night.opened(message="&<x>" * 1_250_000)
    night.cause(cause="y" * 5_000_000)
    for _ in range(40):
        night.attempt(rung=0, summary="&" * 5000)
    message = render.root(*read(night))
    assert blocks.text_size(message.blocks) <= 10_000
    assert len(message.blocks) <= 50
    assert all(len(b["text"]["text"]) <= 3000 for b in message.blocks if b["type"] == "section" and "text" in b)
    assert message.blocks[-1]["text"]["text"].endswith("`")
    assert len(render.to_terminal(message)) < 20_000
    marked = [b["text"]["text"] for b in message.blocks if b["type"] == "section" and "text" in b]
    assert not any(re.search(r"&(?!amp;|lt;|gt;)", text) for text in marked), "no entity is cut in two"


NASTY = ["../x", "*bold*", "`ticks`", "two\nlines", "<!channel> & @here", "\x1b[31mred", "z" * 5_000_000]


@pytest.mark.parametrize("name", NASTY, ids=range(len(NASTY)))
def test_a_runs_name_is_only_text_wherever_it_is_told(night, name):
    """In an incident, a storm, a run's own message, a digest and behind buttons."""
    night.write("run_started", **{**STARTED, "run": name, "host": name, "run_dir": name, "script": name})
    night.opened(message=name)
    night.write("ack", incident="a1", author=name)
    night.write("run_finished", status="stopped", summary={})
    entries = read_journal(night.run_dir)
    log = IncidentLog(entries)
    incident = log.incidents["a1"]
    told = [
        render.root(log, incident, listening=True),
        render.storm(log, [incident], 0.0, [3]),
        Run(log).message(),
        render_digest([entries], 0.0, 1e12),
    ]
    assert any(b["type"] == "actions" for b in told[0].blocks)
    for message in told:
        text = json.dumps(message.blocks)
        assert len(text) < 20_000
        assert len(message.text) < 2_000
        assert "<!channel" not in text
        assert "@here" not in text
        assert "\\u001b" not in text
        header, *others = message.blocks
        assert "\n" not in header["text"]["text"]
        assert all(len(b["text"]["text"]) <= 3000 for b in others if "text" in b)
        marked = [t["text"] for b in others for t in ([b["text"]] if "text" in b else b.get("fields", []))]
        assert not any("*bold*" in t.partition("`")[0] for t in marked), "it is not made bold"
        assert all(t.count("`") in (0, 2) for t in marked), "a command's ticks are the only ones"
    for reply in render.replies(log, incident):
        assert len(reply.text) < 3_000
        assert "<!channel" not in render.slack_text(reply.text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234, "1,234"),
        (2.3125, "2.312"),
        (0.000512345, "0.0005123"),
        (41234.5, "41,234"),
        (1e30, "1e+30"),
        ("nan", "NaN"),
        ("-inf", "-Inf"),
        (None, "NaN"),
        (-3.0, "-3"),
        (0, "0"),
    ],
)
def test_numbers(value, text):
    assert words.number(value) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=JSON,
    message=st.text(max_size=200),
    outcome=st.dictionaries(st.sampled_from(["loss_before", "loss_after", "loss_expected", "steps_lost"]), JSON),
)
def test_no_journal_content_breaks_it(value, message, outcome):
    log = IncidentLog()
    log.apply(
        {
            "kind": "incident_opened",
            "incident": "a",
            "policy": message,
            "detector": message,
            "severity": "info",
            "detection": {
                "signal": message,
                "value": value,
                "threshold": value,
                "baseline": value,
                "since": value,
                "message": message,
            },
            "signals": value,
            "tick": 3,
            "step": 2,
            "time": 1e20,
        }
    )
    log.apply(
        {
            "kind": "incident_closed",
            "incident": "a",
            "tick": 4,
            "time": 1.0,
            "status": "resolved",
            "count": 1,
            "outcome": outcome,
        }
    )
    incident = log.incidents["a"]
    rendered = render.root(log, incident)
    assert render.to_terminal(rendered)
    assert rendered.first_line
    assert all(b["text"]["text"] for b in rendered.blocks if "text" in b)
    render.replies(log, incident)
