"""A story is followed for the price of a few stats; silences are folded from it."""

from __future__ import annotations

import os

import pytest

from guard.clock import FakeClock
from guard.incidents import IncidentLog, StoryFollower, outside, read_story
from guard.incidents.journal import NAME, encode


@pytest.fixture
def clock():
    return FakeClock()


def line(run_dir, clock, message):
    entry = {"v": 1, "seq": 0, "time": clock.time(), "kind": "notice", "tick": 0, "step": 0, "message": message}
    with (run_dir / NAME).open("ab") as file:
        file.write(encode(entry))


def test_growth_is_noticed_whichever_file_grows(tmp_path, clock):
    story = StoryFollower(tmp_path)
    assert not story.grown()
    line(tmp_path, clock, "one")
    assert story.grown()
    assert len(list(story.read())) == 1
    assert not story.grown()
    outside.append(tmp_path, clock, "ack", incident="a", author="ada")  # a new file
    assert story.grown()
    list(story.read())
    outside.append(tmp_path, clock, "ack", incident="b", author="ada")
    assert story.grown()
    list(story.read())
    assert not story.grown()
    (tmp_path / NAME).write_bytes(b"")
    assert story.shrunk()


def test_a_folder_that_did_not_change_is_not_listed_again(tmp_path, clock, monkeypatch):
    line(tmp_path, clock, "one")
    long_ago = tmp_path.stat().st_mtime_ns - 60_000_000_000
    os.utime(tmp_path, ns=(long_ago, long_ago))
    story = StoryFollower(tmp_path)
    list(story.read())
    story.grown()
    listed = []
    monkeypatch.setattr(type(tmp_path), "glob", lambda self, pattern: listed.append(self) or [])
    for _ in range(5):
        story.grown()
    assert listed == []
    os.utime(tmp_path)  # just now: a file made in the same moment may not show in the folder's time
    for _ in range(5):
        story.grown()
    assert len(listed) == 5


def test_silences_of_run_and_policy_and_their_ends(tmp_path, clock):
    def log():
        return IncidentLog(read_story(tmp_path))

    start = clock.time()
    outside.append(tmp_path, clock, "silence", until=start + 100, author="ada", policy="clip")
    outside.append(tmp_path, clock, "silence", until=start + 10, author="bob", policy=None)
    assert log().silence("clip", start)["author"] == "ada"
    assert log().silence("other", start)["author"] == "bob"
    assert [e["policy"] for e in log().silences(start)] == [None, "clip"]
    assert log().silence_ended("other", start + 11) == start + 10
    assert log().silence("other", start + 11) is None
    clock.advance(20)
    outside.append(tmp_path, clock, "silence", until=0, author="ada", policy="clip")
    assert log().silence("clip", clock.time()) is None
    assert log().silence_ended("clip", clock.time()) == start + 20, "when it was lifted"
    assert log().silence_ended("never", start) == 0.0
