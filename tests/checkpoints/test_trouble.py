"""A disk that is full, read-only, broken or gone, and a process that is killed: the old checkpoints stay."""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints.children import in_processes, killed_at_each_event, killed_within_a_file, too_small_a_file_limit
from checkpoints.conftest import Open
from checkpoints.small import Run, differences, folders, open_store, save

from guard.checkpoints import manifest, writing

EVENTS = 40  # more than there are files to open, rename and remove


def intact(folder: Path, run: Run) -> bool:
    fresh, store = Run(seed=9), open_store(folder)
    fresh.resume(store)
    assert store.close(30)
    return differences(fresh.everything(), run.everything()) == []


# ---- killed


def test_killed_at_any_file(tmp_path: Path) -> None:
    """While the same step is saved again: at each file one of the two is whole, and nothing half-written stays."""
    old, new = Run(seed=4).steps(2), Run().steps(2)
    store = open_store(tmp_path / "before")
    save(store, old)
    store.close(30)
    places = [tmp_path / str(n) for n in range(EVENTS)]
    for place in places:
        shutil.copytree(tmp_path / "before", place)
    in_processes(killed_at_each_event, places)
    ticks, half = [], 0
    for place in places:
        half += folders(place) != ["step-2"]
        (found,) = manifest.listing(place).checkpoints
        assert manifest.damage(found) == []
        assert intact(place, new if found.manifest.tick == 5 else old)
        assert folders(place) == ["step-2"]
        ticks.append(found.manifest.tick)
    assert ticks == sorted(ticks), "first the old one, then the new one"
    assert ticks[0] == 2
    assert ticks[-1] == 5
    assert half >= 15


def test_killed_within_a_file(tmp_path: Path) -> None:
    run = Run(seed=4).steps(1)
    store = open_store(tmp_path / "before")
    save(store, run)
    store.close(30)
    places = {limit: tmp_path / str(limit) for limit in (0, 1, 700, 5000, 20_000, 40_000)}
    for place in places.values():
        shutil.copytree(tmp_path / "before", place)
    in_processes(killed_within_a_file, places)
    for place in places.values():
        assert [n for n in folders(place) if n.startswith(".tmp-")]
        assert intact(place, run)
        assert folders(place) == ["step-1"]


# ---- the disk


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    in_processes(too_small_a_file_limit, tmp_path / "checkpoints")


SENTENCES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "the disk reports an input/output error",
    errno.EACCES: "writing there is not permitted",
    errno.ESTALE: "Stale file handle",
}


class Broken:
    """Raises where it is put, until it is mended."""

    def __init__(self, number: int) -> None:
        self.number: int | None = number

    def instead_of(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **how: Any) -> Any:
            if self.number is not None:
                raise OSError(self.number, os.strerror(self.number))
            return real(*arguments, **how)

        return call


@pytest.mark.parametrize("number", SENTENCES)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (os, "fsync"),
        (os, "mkdir"),
        (writing, "_save"),
        (writing.shards, "write"),
        (manifest, "seal"),
        (manifest, "write"),
        (Path, "rename"),
        (shutil, "disk_usage"),
    ],
)
def test_an_error_anywhere(
    owner: Any, name: str, number: int, store: Open, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, one = Run().steps(1), store()
    save(one, run)
    before = run.everything()
    broken = Broken(number)
    monkeypatch.setattr(owner, name, broken.instead_of(getattr(owner, name)))
    run.steps(1)
    (outcome,) = save(one, run)
    assert (outcome.kind, outcome.step) == ("failed", 2)
    assert outcome.reason == f"no checkpoint of step 2 in {place}: {SENTENCES[number]}"
    assert folders(place) == ["step-1"], "the old one stays, nothing half-written does"
    one.promote(1)
    broken.number = None
    assert [o.kind for o in save(one, run)] == ["saved"]
    assert folders(place) == ["step-1", "step-2"]
    fresh = Run(seed=9)
    fresh.resume(one, step=1)
    assert differences(fresh.everything(), before) == []


def test_what_a_write_of_a_tensor_says(store: Open, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes up through torch's own writer."""
    run, one = Run(hidden=3000).steps(1), store()
    real = builtins.open

    class Full:
        def __init__(self, file: Any) -> None:
            self.file, self.left = file, 20_000

        def write(self, data: Any) -> int:
            self.left -= len(data)
            if self.left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return int(self.file.write(data))

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    def open_(self: Path, mode: str = "r", **how: Any) -> Any:
        file = real(self, mode, **how)
        return Full(file) if mode == "wb" and self.name.endswith(".distcp") else file

    monkeypatch.setattr(Path, "open", lambda self, mode="r", *_, **how: open_(self, mode, **how))
    (outcome,) = save(one, run)
    assert outcome.reason == f"no checkpoint of step 1 in {place}: the disk is full"
    assert folders(place) == []


def test_too_little_space_is_seen_before_anything_is_written(
    store: Open, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, run = store(), Run()
    save(one, run)

    class Usage:
        free = 70_000

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage)
    monkeypatch.setattr(writing, "write", lambda *_: pytest.fail("nothing is to be written"))
    (outcome,) = save(one, run.steps(1))
    assert ": the disk is full: 70 kB are free and a checkpoint takes 1." in outcome.reason


def test_a_folder_that_vanishes_and_comes_back(store: Open, place: Path) -> None:
    """It is not made anew: where a disk is not mounted there is no place for checkpoints."""
    one, run = store(), Run()
    save(one, run.steps(1))
    away = place.with_name("away")
    place.rename(away)
    (outcome,) = save(one, run.steps(1))
    assert outcome.reason.endswith(": the folder has gone; mount it or make it again")
    one.promote(1)
    one.rewind(0)
    assert one.wait(30)
    assert not place.exists()
    away.rename(place)
    assert [o.kind for o in save(one, run)] == ["saved"]
    assert folders(place) == ["step-1", "step-2"]


def test_a_folder_that_vanishes_while_it_is_written(store: Open, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, run = store(), Run()
    real = manifest.seal

    def seal(path: Path) -> Any:
        shutil.rmtree(place, ignore_errors=True)
        return real(path)

    monkeypatch.setattr(manifest, "seal", seal)
    (outcome,) = save(one, run)
    assert outcome.reason.endswith(": the folder has gone; mount it or make it again")


def test_a_place_that_is_no_folder(store: Open, place: Path) -> None:
    place.write_text("")
    one = store()
    (outcome,) = save(one, Run())
    assert outcome.kind == "failed"
    assert place.read_text() == ""


def test_a_bug_in_the_thread_is_an_outcome(store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    one = store()
    with monkeypatch.context() as patch:
        patch.setattr(writing, "write", lambda *_: 1 / 0)
        (outcome,) = save(one, Run())
        assert outcome.reason.endswith(": ZeroDivisionError: division by zero")
    assert [o.kind for o in save(one, Run())] == ["saved"]


# ---- real file systems


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Any]:
    target = tmp_path / "disk"
    target.mkdir()

    def mount(*options: str) -> None:
        subprocess.run(["mount", *options, str(target)], check=True, capture_output=True)

    try:
        mount("-t", "tmpfs", "-o", "size=400k", "tmpfs")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    yield target, mount
    subprocess.run(["umount", "-l", str(target)], check=False, capture_output=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_file_system_that_is_really_full_then_read_only(
    store: Open, mounted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, mount = mounted
    monkeypatch.setattr(writing, "_MARGIN", 0)
    one, run = store(folder=target / "checkpoints"), Run()
    save(one, run.steps(1))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1 << 40}))
        filler = target / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        os.truncate(filler, filler.stat().st_size - 60_000)
        (outcome,) = save(one, run.steps(1))
        assert outcome.reason.endswith(": the disk is full")
        filler.unlink()
    assert [o.kind for o in save(one, run)] == ["saved"]
    mount("-o", "remount,ro")
    (outcome,) = save(one, run.steps(1))
    assert outcome.reason.endswith(": the file system is read-only")
    mount("-o", "remount,rw")
    assert [o.kind for o in save(one, run)] == ["saved"]
    assert folders(target / "checkpoints") == ["step-1", "step-2", "step-3"]
