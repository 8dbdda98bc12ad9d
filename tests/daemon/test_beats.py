from __future__ import annotations

from guard.daemon.beats import Beat, Beats


def test_what_an_earlier_life_left_behind_does_not_count(stage):
    stage.beat(40)
    stage.beat(40, rank=1)
    beats = Beats(stage.path)
    assert beats.read() == {}
    stage.clock.advance(1)
    stage.beat(40)  # the same numbers, but written anew
    assert beats.read() == {0: Beat(0, 40, 40, "step")}


def test_no_directory_and_files_that_are_no_heartbeats(stage):
    beats = Beats(stage.path)
    assert beats.read() == {}
    stage.beat(3, phase="my own phase", rank=12)
    for name, text in (("heartbeat.x", "1 1 step 1 1"), ("heartbeat.2", "torn 1 st"), ("heartbeat.3", "")):
        (stage.path / name).write_text(text)
    (stage.path / "heartbeat.4").mkdir()
    assert beats.read() == {12: Beat(12, 3, 3, "my own phase")}


def test_when_rank_0_begins_anew_ranks_of_before_are_forgotten(stage):
    beats = Beats(stage.path)
    for rank in range(3):
        stage.beat(9, rank=rank)
    assert len(beats.read()) == 3
    stage.clock.advance(5)
    stage.beat(0, phase="start")
    assert list(beats.read()) == [0]
    stage.beat(1, rank=1)
    assert list(beats.read()) == [0, 1]
    stage.beat(1)
    assert list(beats.read()) == [0, 1], "rank 2 is gone for good"
