"""The run directory: numbered lines, one owner, rows, heartbeat."""

from __future__ import annotations

import csv
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guard import process
from guard.clock import FakeClock
from guard.errors import RunDirError
from guard.incidents import read_journal, rundir
from guard.incidents.journal import NAME
from guard.incidents.rundir import CSV_COLUMNS, Lease, RunDir, holder_alive

Open = Callable[..., RunDir]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def open_dir(tmp_path: Path, clock: FakeClock) -> Iterator[Open]:
    opened: list[RunDir] = []

    def make(path: Path = tmp_path / "run", beat: tuple[int, int, str] = (12, 10, "step")) -> RunDir:
        opened.append(RunDir(path, clock, lambda: beat))
        return opened[-1]

    yield make
    for files in opened:
        files.close(5.0)


def notice(files: RunDir, text: str = "hello") -> dict[str, Any]:
    return files.journal({"kind": "notice", "tick": 1, "step": 1, "severity": "info", "message": text})


def holder(path: Path, **changes: Any) -> None:
    """Somebody else owns the directory."""
    path.mkdir(exist_ok=True)
    mine = Lease(path / "owner.json", FakeClock())._me
    (path / "owner.json").write_text(json.dumps({**mine, "expires": FakeClock().now + 60.0, **changes}))


# ---- journal


def test_lines_are_numbered_dated_and_on_disk_at_once(open_dir: Open, tmp_path: Path, clock: FakeClock) -> None:
    files = open_dir()
    first, second = notice(files), notice(files)
    assert [first["seq"], second["seq"]] == [0, 1]
    assert first["time"] == clock.now
    assert read_journal(tmp_path / "run") == [first, second]


def test_nobody_else_may_look_inside(open_dir: Open, tmp_path: Path) -> None:
    notice(open_dir())
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "run" / NAME).stat().st_mode) == 0o600


def test_numbers_go_on_after_a_reopen(open_dir: Open) -> None:
    files = open_dir()
    notice(files)
    files.close(5.0)
    assert notice(open_dir())["seq"] == 1


def test_a_torn_line_is_cut_off_by_the_next_writer(open_dir: Open, tmp_path: Path) -> None:
    files = open_dir()
    notice(files)
    files.close(5.0)
    with (tmp_path / "run" / NAME).open("ab") as file:
        file.write(b'{"v":1,"seq":1,"ti')
    assert notice(open_dir())["seq"] == 1
    lines = (tmp_path / "run" / NAME).read_bytes().splitlines()
    assert [json.loads(x)["seq"] for x in lines] == [0, 1]


@pytest.mark.parametrize(
    "damage",
    [b"\x00" * 40, b"{}", b"[]", b"7", b'{"seq":"x"}'],
    ids=["zeros", "empty", "list", "number", "text for a number"],
)
def test_a_damaged_last_line_stops_nobody(open_dir: Open, tmp_path: Path, damage: bytes) -> None:
    files = open_dir()
    notice(files)
    files.close(5.0)
    with (tmp_path / "run" / NAME).open("ab") as file:
        file.write(damage + b"\n")
    assert notice(open_dir())["seq"] >= 1
    assert [e["message"] for e in read_journal(tmp_path / "run")] == ["hello", "hello"]


# ---- one owner


def test_two_live_guards_are_refused(open_dir: Open, tmp_path: Path) -> None:
    holder(tmp_path / "run", pid=os.getppid(), started=process.started(os.getppid()))
    with pytest.raises(RunDirError, match=f"belongs to a running guard \\(pid {os.getppid()}"):
        open_dir()
    assert holder_alive(tmp_path / "run", FakeClock())


def test_a_dead_process_is_taken_over_from(open_dir: Open, tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    started = process.started(dead.pid)
    dead.wait()
    holder(tmp_path / "run", pid=dead.pid, started=started)
    assert notice(open_dir())["seq"] == 0


def test_a_pid_that_is_used_again_is_not_the_old_process(open_dir: Open, tmp_path: Path) -> None:
    holder(tmp_path / "run", pid=os.getppid(), started="1")
    notice(open_dir())


def test_another_host_blocks_until_its_lease_is_over(open_dir: Open, tmp_path: Path, clock: FakeClock) -> None:
    holder(tmp_path / "run", host="node8")
    with pytest.raises(RunDirError, match="node8"):
        open_dir()
    clock.advance(61.0)
    notice(open_dir())


def test_a_host_that_has_restarted_blocks_no_longer_than_the_lease(
    open_dir: Open, tmp_path: Path, clock: FakeClock
) -> None:
    holder(tmp_path / "run", boot="before")
    clock.advance(61.0)
    notice(open_dir())


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '{"host": 1, "expires": "soon"}', '{"pid": "x"}'])
def test_an_owner_file_that_says_nothing_blocks_nobody(open_dir: Open, tmp_path: Path, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "owner.json").write_text(text)
    notice(open_dir())


def test_closing_gives_the_directory_up(open_dir: Open, tmp_path: Path, clock: FakeClock) -> None:
    files = open_dir()
    assert (tmp_path / "run" / "owner.json").exists()
    files.close(5.0)
    assert not (tmp_path / "run" / "owner.json").exists()


# ---- rows and heartbeat


def test_rows_are_written_in_batches(open_dir: Open, tmp_path: Path) -> None:
    files = open_dir()
    files.rows.extend((t, t - 1, 2.5, float("nan"), 1e-3, 1e-3, 65536.0) for t in range(3))
    files.close(5.0)
    with (tmp_path / "run" / "signals.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [r["tick"] for r in rows] == ["0", "1", "2"]
    assert (rows[0]["loss"], rows[0]["grad_norm"], rows[0]["loss_scale"]) == ("2.5", "nan", "65536")


def test_old_rows_are_thinned_and_new_ones_kept(
    open_dir: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir, "_MAX_SIGNALS", 4000)
    for start in range(0, 1000, 50):
        files = open_dir()
        files.rows.extend((t, t, 1.0, 1.0, 1.0, 1.0, 1.0) for t in range(start, start + 50))
        files.close(5.0)
    path = tmp_path / "run" / "signals.csv"
    assert path.stat().st_size < 2 * 4000
    with path.open() as file:
        ticks = [int(r["tick"]) for r in csv.DictReader(file)]
    assert ticks == sorted(set(ticks))
    assert ticks[-50:] == list(range(950, 1000))
    assert ticks[0] < 100


def test_the_heartbeat_is_one_small_record(open_dir: Open, tmp_path: Path, clock: FakeClock) -> None:
    files = open_dir(beat=(1234, 1200, "eval"))
    files.close(5.0)
    text = (tmp_path / "run" / "heartbeat.0").read_text()
    tick, step, phase, monotonic, wall = text.split()
    assert (int(tick), int(step), phase) == (1234, 1200, "eval")
    assert float(monotonic) == float(wall) == clock.now
    assert len(text) == 80
    assert text.endswith("\n")


def test_a_shorter_heartbeat_leaves_nothing_of_a_longer_one(open_dir: Open, tmp_path: Path) -> None:
    open_dir(beat=(123456789, 123456789, "checkpoint")).close(5.0)
    open_dir(beat=(1, 1, "step")).close(5.0)
    assert len((tmp_path / "run" / "heartbeat.0").read_text().splitlines()) == 1
