"""What is written, what is refused, and what is said about it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints.conftest import Open
from checkpoints.small import Run, bits, differences, folders, save

from guard.checkpoints import DiskStore, manifest, shards, writing
from guard.clock import FakeClock
from guard.errors import CheckpointError


def kinds(store: DiskStore) -> list[tuple[str, int]]:
    return [(o.kind, o.step) for o in store.outcomes()]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A disk on which tensors are written only when the test says so."""

    class Gate:
        reached, opened = threading.Event(), threading.Event()

        def open(self) -> None:
            self.opened.set()

    gate, real = Gate(), shards.write

    def write(*arguments: Any) -> None:
        gate.reached.set()
        assert gate.opened.wait(30)
        real(*arguments)

    monkeypatch.setattr(shards, "write", write)
    yield gate
    gate.open()


def test_what_a_checkpoint_consists_of(store: Open, place: Path) -> None:
    run = Run().steps(3)
    (outcome,) = save(store(clock=FakeClock(1e9)), run, "probation", tick=7)
    assert folders(place) == ["step-3"]
    assert folders(place / "step-3") == [".metadata", "__0_0.distcp", "manifest.json", "rank_0.pt", "shared.pt"]
    made = manifest.read(place / "step-3")
    assert (made.step, made.tick, made.state, made.world, made.created) == (3, 7, "probation", 1, 1e9)
    assert made.torch == torch.__version__
    assert made.tensor_bytes == run.portable().bytes
    assert (outcome.kind, outcome.step, outcome.tick, outcome.bytes) == ("saved", 3, 7, made.bytes)
    assert made.bytes <= writing.room_needed(run.portable())
    assert place.stat().st_mode & 0o777 == 0o700
    for name in ("rank_0.pt", "shared.pt"):
        assert torch.load(place / "step-3" / name, weights_only=True)


def test_save_returns_at_once_and_one_write_at_a_time(store: Open, gate: Any) -> None:
    run, one = Run().steps(1), store()
    first = run.capture()
    from guard.checkpoints import to_portable

    assert one.save(to_portable(run.state, first))
    assert gate.reached.wait(30)
    assert one.writing
    assert one.busy(first)
    assert not one.busy(run.capture())
    assert not one.save(run.steps(1).portable()), "refused while another is under way"
    assert not one.wait(0)
    gate.open()
    assert one.wait(30)
    assert (one.writing, one.busy(first)) == (False, False)
    assert kinds(one) == [("saved", 1)]


def test_memory_is_given_back_when_it_is_written_and_not_before(store: Open, gate: Any) -> None:
    """The ring may drop a snapshot at any time; its buffers must not be written over while the disk reads them."""
    from guard.checkpoints import to_portable

    run, one = Run().steps(2), store()
    snapshot, other, given = run.capture(), run.capture(), []
    before = run.everything()
    one.save(to_portable(run.state, snapshot))
    assert gate.reached.wait(30)
    one.release(snapshot, given.append)
    one.release(other, given.append)
    assert given == [other]
    assert one.outcomes() == []
    assert given == [other]
    gate.open()
    assert one.wait(30)
    assert kinds(one) == [("saved", 2)]
    assert given == [other, snapshot]
    run.state.recycle(snapshot)
    run.steps(3).capture()  # overwrites it
    fresh = Run(seed=9)
    fresh.resume(one)
    assert differences(fresh.everything(), before) == []


def test_promotion_waits_for_its_save_and_only_takes_the_right_one(store: Open, gate: Any) -> None:
    run, one = Run().steps(4), store()
    one.save(run.portable(tick=9))
    one.promote(4, 8)
    one.promote(5)
    gate.open()
    assert one.wait(30)
    one.promote(4, 9)
    one.promote(4, 9)
    assert one.close(30)
    assert kinds(one) == [("saved", 4), ("promoted", 4)]
    assert manifest.read(one.folder / "step-4").state == "good"


def test_after_close_nothing_is_taken(store: Open, place: Path) -> None:
    one = store()
    assert one.close(30)
    assert not one.save(Run().portable())
    one.promote(1)
    assert one.outcomes() == []
    assert folders(place) == []


def test_the_same_step_again_replaces_it(store: Open, place: Path) -> None:
    one, first, second = store(), Run().steps(3), Run(seed=4).steps(3)
    save(one, first, tick=3)
    save(one, second, "probation", tick=8)
    assert folders(place) == ["step-3"]
    loading = Run().resume(one)
    assert (loading.manifest.tick, loading.manifest.state) == (8, "probation")
    assert bits(loading.portable.tensors["model.embed.weight"]) == bits(second.model.embed.weight)


def test_a_rollback_puts_what_came_later_on_probation_again(store: Open) -> None:
    one, run = store(), Run()
    for _ in range(4):
        save(one, run.steps(10))
    one.rewind(20)
    assert one.close(30)
    states = {c.manifest.step: c.manifest.state for c in manifest.listing(one.folder).checkpoints}
    assert states == {10: "good", 20: "good", 30: "probation", 40: "probation"}
    loading = one.load(Run().state)
    assert loading.manifest is not None
    assert loading.manifest.step == 20


def test_the_order_of_a_resume(store: Open) -> None:
    one, run = store(), Run()
    for state in ("good", "good", "preempted", "probation"):
        save(one, run.steps(1), state)

    def newest() -> Any:
        made = one.load(Run().state).manifest
        return made and (made.step, made.state)

    assert newest() == (3, "preempted")
    shutil.rmtree(one.folder / "step-3")
    assert newest() == (2, "good")
    shutil.rmtree(one.folder / "step-2")
    shutil.rmtree(one.folder / "step-1")
    assert newest() == (4, "probation")
    shutil.rmtree(one.folder / "step-4")
    assert newest() is None


def test_one_step_that_is_asked_for(store: Open) -> None:
    one, run = store(), Run()
    save(one, run.steps(1))
    save(one, run.steps(1))
    assert Run().resume(one, step=1).manifest.step == 1
    with pytest.raises(CheckpointError, match=r"there is no checkpoint of step 7 in .*; there are: 1, 2"):
        one.load(Run().state, step=7)
    (one.folder / "step-1" / "shared.pt").unlink()
    loading = one.load(Run().state, step=1)
    assert (loading.portable, loading.refused) == (None, [("step-1", "shared.pt is missing")])


def test_nothing_there(store: Open, place: Path) -> None:
    loading = store(folder=place / "deeper").load(Run().state)
    assert (loading.portable, loading.manifest, loading.refused) == (None, None, [])


# ---- damage


def flip(path: Path, at: int = -100) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def edit(path: Path, **changes: Any) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | changes))


def link_out(path: Path) -> None:
    outside = path.parent.parent.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


FITS = "is damaged: its checksum does not fit"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "tensor byte": (lambda c: flip(c / "__0_0.distcp"), f"__0_0.distcp {FITS}"),
    "list byte": (lambda c: flip(c / ".metadata"), f".metadata {FITS}"),
    "shared byte": (lambda c: flip(c / "shared.pt"), f"shared.pt {FITS}"),
    "rank byte": (lambda c: flip(c / "rank_0.pt"), f"rank_0.pt {FITS}"),
    "truncated": (lambda c: os.truncate(c / "__0_0.distcp", 1000), "__0_0.distcp has 1,000 bytes instead of "),
    "empty": (lambda c: os.truncate(c / "rank_0.pt", 0), "rank_0.pt has 0 bytes instead of "),
    "missing shard": (lambda c: (c / "__0_0.distcp").unlink(), "__0_0.distcp is missing"),
    "missing rank": (lambda c: (c / "rank_0.pt").unlink(), "rank_0.pt is missing"),
    "two": (lambda c: (flip(c / "shared.pt"), flip(c / "rank_0.pt")), f"rank_0.pt {FITS} (and 1 more)"),
    "link": (lambda c: link_out(c / "shared.pt"), "shared.pt cannot be read: Too many levels of symbolic links"),
    "pipe": (lambda c: fifo(c / "shared.pt"), "shared.pt cannot be read: it is no regular file"),
    "manifest byte": (
        lambda c: (c / "manifest.json").write_text((c / "manifest.json").read_text().replace('"tick": 2', '"tick": 3')),
        "its manifest is damaged: its checksum does not fit",
    ),
    "manifest cut": (lambda c: os.truncate(c / "manifest.json", 100), "its manifest is damaged: it is not JSON"),
    "manifest deep": (
        lambda c: (c / "manifest.json").write_text("[" * 100_000),
        "its manifest is damaged: it is not JSON",
    ),
    "manifest list": (
        lambda c: (c / "manifest.json").write_text("[]"),
        "its manifest is damaged: something is missing",
    ),
    "manifest binary": (
        lambda c: (c / "manifest.json").write_bytes(b"\xff\x00"),
        "its manifest is damaged: it is not JSON",
    ),
    "manifest gone": (lambda c: (c / "manifest.json").unlink(), "it has no manifest"),
    "manifest link": (
        lambda c: link_out(c / "manifest.json"),
        "its manifest cannot be read: Too many levels of symbolic links",
    ),
    "newer": (
        lambda c: edit(c / "manifest.json", version=2),
        "its manifest is of version 2, and this guard knows versions up to 1; use a newer guard",
    ),
    "renamed": (lambda c: c.rename(c.with_name("step-9")), "its manifest is of step 2"),
    "folder is a link": (lambda c: link_out(c), "it is no folder"),
    "folder is a file": (lambda c: (shutil.rmtree(c), c.write_text("")), "it is no folder"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused_by_name_and_the_one_before_is_taken(name: str, store: Open, place: Path) -> None:
    run, one = Run().steps(1), store()
    save(one, run)
    before = run.everything()
    save(one, run.steps(1))
    damage, said = DAMAGE[name]
    damage(place / "step-2")
    fresh = Run(seed=9)
    loading = fresh.resume(one)
    assert loading.manifest.step == 1
    assert differences(fresh.everything(), before) == []
    ((refused, why),) = loading.refused
    assert refused == ("step-9" if name == "renamed" else "step-2")
    assert why.startswith(said), why


def test_every_byte_counts(store: Open, place: Path) -> None:
    """Anywhere in any file, the manifest included."""
    one = store()
    save(one, Run().steps(1))
    (checkpoint,) = manifest.listing(place).checkpoints
    for path in sorted(checkpoint.path.iterdir()):
        for at in range(0, path.stat().st_size, max(1, path.stat().st_size // 15)):
            flip(path, at)
            found = manifest.listing(place)
            assert found.refused or manifest.damage(found.checkpoints[0]), (path.name, at)
            flip(path, at)
    assert manifest.damage(checkpoint) == []
    assert manifest.listing(place).refused == []


def test_all_damaged(store: Open, place: Path) -> None:
    one, run = store(), Run()
    for _ in range(3):
        save(one, run.steps(1))
    for folder in place.iterdir():
        flip(folder / "__0_0.distcp")
    loading = one.load(run.state)
    assert loading.portable is None
    assert [name for name, _ in loading.refused] == ["step-3", "step-2", "step-1"]


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("name", [".metadata", "shared.pt", "rank_0.pt"])
def test_code_in_a_file_is_not_run(name: str, store: Open, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with the checksum to go with it."""
    monkeypatch.chdir(place.parent)
    one, run = store(), Run()
    save(one, run.steps(1))
    save(one, run.steps(1))
    path = place / "step-2" / name
    if name == ".metadata":
        path.write_bytes(pickle.dumps(Evil()))
    else:
        torch.save(Evil(), path)
    made = manifest.read(place / "step-2")
    made.files[name] = manifest.seal(path)
    manifest.write(place / "step-2", made)
    loading = one.load(run.state)
    assert loading.manifest is not None
    assert loading.manifest.step == 1
    assert [n for n, _ in loading.refused] == ["step-2"]
    assert not (place.parent / "evil").exists()


def test_a_file_that_the_list_names_and_the_manifest_does_not(store: Open, place: Path) -> None:
    one = store()
    save(one, Run())
    made = manifest.read(place / "step-0")
    del made.files["__0_0.distcp"]
    manifest.write(place / "step-0", made)
    assert one.load(Run().state).refused == [("step-0", "ValueError: __0_0.distcp is not in its manifest")]


def test_anything_else_in_the_folder_is_left_alone(store: Open, place: Path) -> None:
    place.mkdir()
    for name in ("notes.txt", "step-", "step-x", "step-01", ".tmp-mine", ".old-stuff", ".tmp-step-3", "step-3.bak"):
        (place / name).mkdir()
    one = store()
    save(one, Run())
    assert len(folders(place)) == 9
    assert one.load(Run().state).refused == []


# ---- beside a reader


def test_a_reader_sees_old_or_new_and_never_neither(store: Open, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every rename while a step is saved again."""
    one, run = store(), Run().steps(1)
    save(one, run)
    seen = []
    real = Path.rename

    def rename(self: Path, target: Any) -> Any:
        seen.append([c.manifest.step for c in manifest.listing(place).checkpoints])
        done = real(self, target)
        found = manifest.listing(place)
        seen.append([c.manifest.step for c in found.checkpoints])
        assert not [p for c in found.checkpoints for p in manifest.damage(c)]
        return done

    monkeypatch.setattr(Path, "rename", rename)
    assert [o.kind for o in save(one, run, tick=5)] == ["saved"]
    assert len(seen) >= 4
    assert all(steps == [1] for steps in seen)


def test_everything_is_brought_to_the_disk_before_it_gets_its_name(
    store: Open, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real = Path.rename

    def fsync(fd: int) -> None:
        events.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    def rename(self: Path, target: Any) -> Any:
        events.append(f"-> {Path(target).name}")
        return real(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    save(store(), Run().steps(2))
    events = [".tmp" if e.startswith(".tmp-step-2-") else e for e in events if ".metadata.tmp" not in e]
    assert [e for e in events if e != "-> .metadata"] == [
        ".metadata",
        "__0_0.distcp",
        "rank_0.pt",
        "shared.pt",
        ".manifest.json.tmp",
        ".tmp",
        "-> step-2",
        place.name,
    ]
