"""What those outside the process add to a run's story: appended whole, read in the order of time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from guard.clock import FakeClock
from guard.errors import UsageError
from guard.incidents import IncidentLog, StoryFollower, read_story
from guard.incidents.journal import NAME, encode
from guard.incidents.outside import append


def journaled(run_dir: Path, time: float, message: str) -> None:
    entry = {"v": 1, "seq": 0, "time": time, "kind": "notice", "tick": 0, "step": 0, "severity": "info"}
    with (run_dir / NAME).open("ab") as file:
        file.write(encode({**entry, "message": message}))


def test_both_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    clock = FakeClock(100.0)
    follower = StoryFollower(tmp_path)
    assert list(follower.read()) == []
    journaled(tmp_path, 99.0, "before")
    append(tmp_path, clock, "ack", incident="i0001", author="ada")
    journaled(tmp_path, 101.0, "after")
    assert follower.grown()
    assert [e["kind"] for e in follower.read(sync=True)] == ["notice", "ack", "notice"]
    assert not follower.grown()
    append(tmp_path, clock, "ack", incident="i0002", author="ada")
    assert [e["incident"] for e in follower.read()] == ["i0002"]
    assert [e["kind"] for e in read_story(tmp_path)] == ["notice", "ack", "ack", "notice"]


def test_a_journal_made_anew_is_noticed(tmp_path: Path) -> None:
    journaled(tmp_path, 99.0, "before")
    follower = StoryFollower(tmp_path)
    list(follower.read())
    assert not follower.shrunk()
    (tmp_path / NAME).write_bytes(b"")
    assert follower.shrunk()


def test_a_torn_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    clock = FakeClock(100.0)
    append(tmp_path, clock, "ack", incident="i0001", author="ada")
    (path,) = tmp_path.glob("outside.*.jsonl")
    path.write_bytes(path.read_bytes() + b'{"v": 1, "kind": "a')
    append(tmp_path, clock, "ack", incident="i0002", author="ada")
    follower = StoryFollower(tmp_path)
    assert [e["incident"] for e in follower.read()] == ["i0001", "i0002"]
    assert follower.damaged == 1


def test_several_processes_may_write_at_once(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from guard.clock import SystemClock
from guard.incidents.outside import append
for i in range(50):
    append(Path({str(tmp_path)!r}), SystemClock(), "ack", incident=f"i{{i}}", author="x" * 1000)
"""
    writers = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [w.wait() for w in writers] == [0, 0]
    follower = StoryFollower(tmp_path)
    assert len(list(follower.read())) == 100
    assert follower.damaged == 0


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        append(tmp_path / "nowhere", FakeClock(), "ack", incident="i0001", author="ada")


def test_additions_may_lie_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    append(elsewhere, FakeClock(), "ack", incident="i0001", author="ada")
    assert len(list(StoryFollower(tmp_path, elsewhere).read())) == 1
    assert list(StoryFollower(tmp_path).read()) == []


def test_acknowledged_and_silenced(tmp_path: Path) -> None:
    clock = FakeClock(100.0)
    append(tmp_path, clock, "ack", incident="i0001", author="ada")
    append(tmp_path, clock, "silence", until=200.0, author="ada", policy=None)
    append(tmp_path, clock, "silence", until=300.0, author="bob", policy="p")
    log = IncidentLog(read_story(tmp_path))
    assert log.acks["i0001"]["author"] == "ada"

    def by(policy: str, now: float) -> str | None:
        return found["author"] if (found := log.silence(policy, now)) else None

    assert [by("p", 150.0), by("q", 150.0), by("p", 250.0), by("q", 250.0)] == ["bob", "ada", "bob", None]
    log.apply(append(tmp_path, clock, "silence", until=0.0, author="ada", policy="p"))
    assert by("p", 250.0) is None
