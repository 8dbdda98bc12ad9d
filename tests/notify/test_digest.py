"""Several runs over a span of time in one message, told once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from notify.night import Night

from guard.incidents import read_story
from guard.notify import ReceiverSpec, blocks, post_digest, render, render_digest
from guard.notify.outbox import Outbox

DAY = 86400.0


@pytest.fixture
def day(tmp_path, clock):
    """Three runs: repaired ones, one that needs somebody, and one that ended long ago."""
    began = clock.time()
    long_ago = Night(tmp_path / "old", clock)
    long_ago.finished()
    clock.advance(2 * DAY)
    good, bad = Night(tmp_path / "good", clock), Night(tmp_path / "bad", clock)
    for i in range(3):
        good.opened(f"i{i}", signal=f"s{i}")
        good.attempt(f"i{i}")
        good.closed(f"i{i}")
    good.opened("rode", attached_to="i0")
    clock.advance(5 * 3600)
    good.tick = 12_365
    good.finished()
    bad.opened("b1")
    bad.closed("b1", status="exhausted")
    clock.advance(3600)
    return [read_story(n.run_dir) for n in (long_ago, good, bad)], began


def test_every_figure_comes_from_the_journals(day, clock):
    message = render_digest(day[0], clock.time() - DAY, clock.time())
    assert message.first_line == "Last 1 day: 2 runs, 4 incidents, 3 repaired, 1 needs you"
    [(_, body)] = message.sections
    assert body.splitlines() == [
        "• exp1: finished at step 12,345 after 5 h; 3 incidents, 3 repaired",
        "• exp1: under way since 2023-11-16 22:13:20 UTC; 1 incident, 1 needs you",
    ]


def test_what_came_later_or_was_before_does_not_count(day, clock):
    runs, began = day
    assert render_digest(runs, began - DAY, began).first_line == "Last 1 day: 0 runs, 0 incidents"
    assert render_digest(runs, began, began + DAY).first_line == "Last 1 day: 1 run, 0 incidents"
    now = clock.time()
    later = render_digest(runs, now, now + 600)
    assert later.first_line == "Last 10 min: 1 run, 0 incidents"
    assert "No run was under way." in render_digest([], 0.0, 60.0).sections[0][1]


def test_names_of_hundreds_of_runs_are_cut_and_ping_nobody(tmp_path, clock):
    entries = []
    for i in range(200):
        night = Night(tmp_path / f"r{i}", clock)
        [started] = read_story(night.run_dir)
        entries.append([{**started, "run": "<!channel> *bold* `x`\n../../y" * 100}])
    message = render_digest(entries, clock.time() - 60, clock.time() + 60)
    assert "… and 175 more runs" in message.sections[0][1]
    text = str(message.blocks)
    assert "<!channel>" not in text
    assert blocks.text_size(message.blocks) <= 10_000
    assert len(message.sections[0][1].splitlines()) == 26


@pytest.mark.parametrize("kind", ["threaded", "webhook"])
def test_it_is_told_once_for_each_time_it_is_due(day, slack, spec, clock, tmp_path, kind):
    to = spec if kind == "threaded" else ReceiverSpec("hook", "webhook", webhook_url=slack.hook())
    box = Outbox(tmp_path / "state.db")
    found = slack.live if kind == "threaded" else slack.hooks
    message = render_digest(day[0], clock.time() - DAY, clock.time())
    assert post_digest(to, message, key="2026-01-01", box=box, clock=clock)
    other = render_digest(day[0][:1], clock.time() - DAY, clock.time())
    assert post_digest(to, other, key="2026-01-01", box=box, clock=clock)
    found = slack.live if kind == "threaded" else slack.hooks
    assert len(found) == 1
    assert found[0]["text"] in (message.text, render.slack_text(message.text))
    assert post_digest(to, other, key="2026-01-02", box=box, clock=clock)
    assert len(slack.live if kind == "threaded" else slack.hooks) == 2


def test_a_lost_reply_does_not_double_it(day, slack, spec, clock, tmp_path):
    box = Outbox(tmp_path / "state.db")
    message = render_digest(day[0], clock.time() - DAY, clock.time())
    slack.fail("lost", method="chat.postMessage")
    assert not post_digest(spec, message, key="k", box=box, clock=clock)
    clock.advance(600)
    box.close()
    assert post_digest(spec, message, key="k", box=Outbox(tmp_path / "state.db"), clock=clock)
    assert len(slack.live) == 1


def test_a_receiver_that_is_off_hears_nothing(day, slack, spec, clock, tmp_path):
    box = Outbox(tmp_path / "state.db")
    message = render_digest(day[0], 0.0, clock.time())
    assert not post_digest(replace(spec, off_reason="no token"), message, key="k", box=box, clock=clock)
    slack.tokens.clear()
    assert not post_digest(spec, message, key="k", box=box, clock=clock)
    assert slack.live == []
