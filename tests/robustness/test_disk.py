"""A disk that is full, stalled, read-only or gone: training goes on, says so once, and loses no line it could keep."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guard.incidents import read_journal
from guard.incidents.rundir import RunDir

from .conftest import Train, Training


class Disk:
    """What stands between the writer's thread and the journal."""

    def __init__(self) -> None:
        self.error: OSError | None = None
        self.answers = threading.Event()
        self.answers.set()

    def before_write(self) -> None:
        self.answers.wait()
        if self.error is not None:
            raise self.error

    def fill(self) -> None:
        self.error = OSError(errno.ENOSPC, "No space left on device")

    def stall(self) -> None:
        self.answers.clear()

    def mend(self) -> None:
        self.error = None
        self.answers.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    broken = Disk()
    real = RunDir._write_whole

    def write(self: RunDir, line: bytes) -> None:
        broken.before_write()
        real(self, line)

    monkeypatch.setattr(RunDir, "_write_whole", write)
    yield broken
    broken.mend()


def whole_and_in_order(run: Training) -> bool:
    return [e["seq"] for e in run.journal] == list(range(run.guard.report.files.seq))


def said_about(name: str, err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("guard: ") and name in line]


def test_a_full_disk_stops_nothing_and_loses_nothing(
    train: Train, disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train()
    run.steps(3)
    before = len(run.journal)
    disk.fill()
    for _ in range(5):
        run.fault()
    assert run.finite
    assert [i.status for i in run.guard.incidents] == ["resolved"] * 5
    assert len(run.journal) == before
    (said,) = said_about("journal.jsonl", capsys.readouterr().err)
    assert "No space left on device" in said
    assert "training goes on" in said
    disk.mend()
    run.fault()
    assert whole_and_in_order(run)
    assert run.kinds.count("incident_closed") == 6
    assert capsys.readouterr().err == ""


def test_what_a_full_disk_cut_short_is_taken_back(train: Train) -> None:
    run = train()
    run.steps(3)
    files = run.guard.report.files
    real = files._file

    class Short:
        """Writes half of the first line, as a disk with 20 bytes left does."""

        cut = True

        def fileno(self) -> int:
            return int(real.fileno())

        def write(self, line: bytes) -> int:
            if self.cut:
                self.cut = False
                return int(real.write(line[:20]))
            return int(real.write(line))

        def close(self) -> None:
            real.close()

    files._file = Short()
    run.fault()
    assert run.finite
    assert whole_and_in_order(run)


def test_a_stalled_disk_is_waited_for_once_and_not_longer_than_the_patience(
    train: Train, disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train()
    run.steps(3)
    disk.stall()
    start = time.monotonic()
    for _ in range(10):
        run.fault()
    assert time.monotonic() - start < 10.0  # 10 faults, 4 lines each; the patience is 0.25 s
    assert run.finite
    assert [i.status for i in run.guard.incidents] == ["resolved"] * 10
    (said,) = said_about("does not answer", capsys.readouterr().err)
    assert "training goes on without waiting" in said
    disk.mend()
    run.guard.close(timeout=30.0)
    assert whole_and_in_order(run)
    assert run.kinds[-1] == "run_finished"


def test_closing_does_not_wait_for_a_stalled_disk(train: Train, disk: Disk) -> None:
    run = train()
    run.steps(3)
    disk.stall()
    start = time.monotonic()
    run.guard.close(timeout=1.0)
    assert time.monotonic() - start < 8.0


def test_a_directory_that_vanishes_and_comes_back(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    run = train()
    run.steps(3)
    written = len(run.journal)
    shutil.rmtree(run.run_dir)
    for _ in range(3):
        run.fault()
    assert run.finite
    assert not run.run_dir.exists()
    assert len(said_about("journal.jsonl", capsys.readouterr().err)) == 1
    run.run_dir.mkdir(mode=0o700)
    run.fault()
    run.guard.close(timeout=30.0)
    seqs = [e["seq"] for e in run.journal]
    assert seqs == list(range(written, run.guard.report.files.seq))
    assert run.kinds.count("incident_closed") == 4


def test_a_journal_that_vanishes_alone_is_begun_anew(train: Train) -> None:
    run = train()
    run.steps(3)
    (run.run_dir / "journal.jsonl").unlink()
    run.fault()
    assert run.kinds[:3] == ["examining", "incident_opened", "incident_evidence"]


def test_a_path_that_can_be_no_directory(train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    run = train(run_dir=tmp_path / "file" / "run")
    run.steps(3)
    run.fault()
    run.guard.close(timeout=5.0)
    assert run.finite
    assert [i.status for i in run.guard.incidents] == ["resolved"]
    said = capsys.readouterr().err.splitlines()
    assert len(said_about("training goes on", "\n".join(said))) >= 1
    assert len(said) == len(set(said))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_is_read_only(train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir(mode=0o500)
    run = train()
    run.steps(3)
    run.fault()
    assert run.finite
    assert len(said_about("Permission denied", capsys.readouterr().err)) >= 1


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Any]:
    """A file system of 64 KiB, and a function that changes how it is mounted."""
    target = tmp_path / "small"
    target.mkdir()

    def mount(*options: str) -> None:
        subprocess.run(["mount", *options, str(target)], check=True, capture_output=True)

    try:
        mount("-t", "tmpfs", "-o", "size=1m", "tmpfs")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    yield target, mount
    subprocess.run(["umount", "-l", str(target)], check=False, capture_output=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_file_system_that_is_really_full(train: Train, mounted: Any) -> None:
    target, _ = mounted
    run = train(run_dir=target / "run")
    run.steps(3)
    filler = target / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 512):
            pass
    for _ in range(20):
        run.fault()
    assert run.finite
    assert [i.status for i in run.guard.incidents] == ["resolved"] * 20
    assert [e["seq"] for e in read_journal(run.run_dir)] == list(range(len(run.journal)))
    filler.unlink()
    run.fault()
    assert whole_and_in_order(run)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_file_system_that_becomes_read_only(train: Train, mounted: Any) -> None:
    target, mount = mounted
    run = train(run_dir=target / "run")
    run.steps(3)
    run.guard.report.files._file.close()  # a file open for writing forbids the remount
    run.guard.report.files._file = None
    mount("-o", "remount,ro")
    run.fault()
    assert run.finite
    mount("-o", "remount,rw")
    run.fault()
    assert whole_and_in_order(run)
