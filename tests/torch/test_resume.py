"""A run that goes on in another process: where it was, with what was in force, and with what it had spent."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

import guard
from guard.checkpoints import manifest
from guard.clock import SystemClock
from guard.errors import ChangedModelError, RunDirError
from guard.guard import Guard
from guard.incidents import read_journal
from guard.incidents.afterwards import adding

CHECKPOINTS = {"every": "5 steps", "probation": "2 steps", "disk": {"every": "5 steps", "keep": 3}}


def policy(*policies: dict[str, Any], **checkpoints: Any) -> dict[str, Any]:
    return {"version": 1, "checkpoints": {**CHECKPOINTS, **checkpoints}, "policies": list(policies)}


SKIP = {"name": "skip", "trigger": {"type": "non_finite"}, "actions": [{"type": "skip_step"}]}


class Process:
    """What one process of a run has: its own model, optimizer and guard."""

    def __init__(self, run_dir: Path, rules: Any = None, width: int = 8, **arguments: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, width), nn.Dropout(0.1), nn.Linear(width, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        rules = policy(SKIP) if rules is None else rules
        self.guard: Guard = guard.attach(
            self.model, self.optimizer, policy=rules, run_dir=run_dir, receivers=[], **arguments
        )

    def go(
        self,
        steps: int,
        *,
        until: int | None = None,
        term: int = -1,
        nan: tuple[int, ...] = (),
        number: int = signal.SIGTERM,
    ) -> Process:
        """Trains to `steps`, or is lost before step `until`, or sends itself signal `number` in step `term`; the
        batches of `nan` are bad."""
        for x, y in self.guard.batches(lambda i: batch(i, bad=i in nan), steps=steps):
            if self.guard.step == until:
                break
            if self.guard.step == term:
                os.kill(os.getpid(), number)
            self.optimizer.zero_grad()
            self.guard.backward(F.cross_entropy(self.model(x), y))
            self.optimizer.step()
        return self

    def lost(self) -> None:
        """The process is gone, without a word; what it had begun to write is written."""
        durable = self.guard.boundary.durable
        assert durable is None or durable.store.wait(30)
        self.guard.let_go()

    def close(self) -> Process:
        self.guard.close()
        return self

    @property
    def weights(self) -> list[torch.Tensor]:
        return [v.clone() for v in self.model.state_dict().values()]


def batch(index: int, *, bad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(index))
    return x * (float("nan") if bad else 1.0), (x[:, 0] > 0).long()


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def kinds(run_dir: Path) -> list[str]:
    return [e["kind"] for e in read_journal(run_dir) if e["kind"] != "memory"]


def test_it_ends_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    whole = Process(tmp_path / "whole").go(40).close()
    Process(tmp_path / "run").go(40, until=23).lost()
    second = Process(tmp_path / "run")
    assert 0 < second.guard.step < 23
    second.go(40).close()
    assert equal(second.weights, whole.weights)
    assert kinds(tmp_path / "run") == ["run_started", "run_started", "resumed", "run_finished"]
    rows = (tmp_path / "run" / "signals.csv").read_text().splitlines()[1:]
    assert [int(r.split(",")[0]) for r in rows] == list(range(40))
    assert {r.rsplit(",", 1)[1] for r in rows} == {"0", "1"}


def test_a_run_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    Process(tmp_path, policy(SKIP, disk={"every": "1000 steps"})).go(40, until=3).lost()
    assert Process(tmp_path, policy(SKIP, disk={"every": "1000 steps"})).go(5).close().guard.step == 5
    rows = (tmp_path / "signals.csv").read_text().splitlines()[1:]
    assert [int(r.split(",")[0]) for r in rows] == list(range(5))


def test_what_was_in_force_still_is(tmp_path: Path) -> None:
    halve = {
        "name": "halve",
        "trigger": {"type": "non_finite"},
        "attempts": [[{"type": "skip_step"}, {"type": "scale_lr", "factor": 0.5}]],
    }
    Process(tmp_path, policy(halve)).go(40, until=23, nan=(12,)).lost()
    second = Process(tmp_path, policy(halve))
    assert second.guard.lr_multiplier == 0.5
    second.go(30).close()
    assert {row[5] for row in second.guard.signals if row[0] > 20} == {0.005}


def test_a_crash_loop_does_not_forget_its_budget(tmp_path: Path) -> None:
    rules = policy({**SKIP, "limits": {"max": 3}, "on_exhausted": "stop"})
    bad = tuple(range(7, 40))
    for last in (8, 9, 10):
        process = Process(tmp_path, rules)
        process.go(40, until=last, nan=bad).lost()
    fourth = Process(tmp_path, rules)
    with pytest.raises(guard.TrainingStopped):
        fourth.go(40, nan=bad)
    fourth.close()


def test_an_open_incident_goes_on_where_its_ladder_was(tmp_path: Path) -> None:
    ladder = {
        "name": "ladder",
        "trigger": {"type": "non_finite"},
        "attempts": [[{"type": "rollback"}], [{"type": "rollback", "data": "skip_offending"}]],
    }
    Process(tmp_path, policy(ladder)).go(40, until=9, nan=(12,)).lost()
    first = Process(tmp_path, policy(ladder))
    for x, y in first.guard.batches(lambda i: batch(i, bad=i == 12), steps=40):
        first.optimizer.zero_grad()
        first.guard.backward(F.cross_entropy(first.model(x), y))
        first.optimizer.step()
        if first.guard.incidents:
            break
    first.lost()
    second = Process(tmp_path, policy(ladder)).go(40, nan=(12,)).close()
    (incident,) = second.guard.incidents
    assert [a.rung for a in incident.attempts] == [0, 1]
    assert incident.status in ("resolved", "ended")


def test_a_persons_observe_outlives_the_process(tmp_path: Path) -> None:
    first = Process(tmp_path)
    first.guard.set_mode("observe", None)
    first.guard.report.write("mode", mode="observe", author="ada", policy=None)
    first.lost()
    assert Process(tmp_path).close().guard.mode == "observe"


def test_what_an_earlier_process_logged_between_passes_is_not_logged_twice(tmp_path: Path) -> None:
    data = [batch(i) for i in range(10)]

    def train(process: Process, until: int) -> None:
        for _ in range(4):
            for x, y in process.guard.batches(data):
                if process.guard.step == until:
                    return
                process.optimizer.zero_grad()
                process.guard.backward(F.cross_entropy(process.model(x), y))
                process.optimizer.step()
            process.guard.log(val_loss=1.0)

    first = Process(tmp_path)
    train(first, 25)
    first.lost()
    second = Process(tmp_path)
    train(second, -1)
    second.close()
    assert second.guard.step == 40
    assert second.guard.tick == 40


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "newer"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_taken(tmp_path: Path, damage: str) -> None:
    Process(tmp_path).go(40, until=33).lost()
    there = manifest.listing(tmp_path / "checkpoints").checkpoints
    newest = max((c for c in there if c.manifest.state == "good"), key=lambda c: c.manifest.tick).path
    file = newest / "manifest.json" if damage == "newer" else max(newest.iterdir(), key=lambda p: p.stat().st_size)
    if damage == "gone":
        file.unlink()
    elif damage == "newer":
        file.write_text(json.dumps({**json.loads(file.read_text()), "version": 99}))
    else:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data if damage == "flip" else data[:-7])
    second = Process(tmp_path)
    assert 0 < second.guard.step != int(newest.name[5:])
    (incident,) = second.guard.incidents
    assert incident.detector == "checkpoint_damaged"
    assert newest.name in incident.evidence["detection"]["message"]
    second.close()


def test_another_model_is_refused_with_the_difference(tmp_path: Path) -> None:
    Process(tmp_path).go(40, until=20).lost()
    with pytest.raises(ChangedModelError, match=r"0\.weight"):
        Process(tmp_path, width=9)
    Process(tmp_path).go(25).close()  # the directory is free again


def test_a_changed_policy_is_said(tmp_path: Path) -> None:
    Process(tmp_path).go(40, until=20).lost()
    second = Process(tmp_path, policy({**SKIP, "severity": "critical"})).close()
    (notice,) = second.guard.report.log.notices
    assert "severity: critical" in notice["message"]


def test_a_stop_inside_a_with_block_is_no_crash(tmp_path: Path) -> None:
    stop = {"name": "stop", "trigger": {"type": "non_finite"}, "attempts": [[{"type": "stop", "restore": "last_good"}]]}
    process = Process(tmp_path, policy(stop))
    with pytest.raises(guard.TrainingStopped), process.guard:
        process.go(40, nan=(12,))
    assert read_journal(tmp_path)[-1]["status"] == "stopped"
    with pytest.raises(RunDirError, match="has stopped"):
        Process(tmp_path, policy(stop))


def test_resume_must_and_never(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="no run"):
        Process(tmp_path / "new", resume="must")
    Process(tmp_path / "new").go(40, until=20).lost()
    again = Process(tmp_path / "new", resume="never")
    assert again.guard.step == 0
    again.close()
    with pytest.raises(RunDirError, match="has finished"):
        Process(tmp_path / "new")


def test_from_another_run(tmp_path: Path) -> None:
    first = Process(tmp_path / "first").go(21).close()
    second = Process(tmp_path / "second", resume=tmp_path / "first")
    assert 0 < second.guard.step <= 20
    second.go(21).close()
    assert equal(second.weights, first.weights)
    with pytest.raises(RunDirError, match="no sound checkpoint"):
        Process(tmp_path / "third", resume=tmp_path / "nowhere")


def test_a_handler_of_before_has_the_last_word(tmp_path: Path) -> None:
    called: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda *_: called.append(1))
    try:
        process = Process(tmp_path)
        with pytest.raises(SystemExit) as end:
            process.go(40, term=12)
        assert end.value.code == 143
        assert called == [1]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert kinds(tmp_path) == ["run_started", "preempted", "run_finished"]
    assert read_journal(tmp_path)[-1]["status"] == "preempted"
    second = Process(tmp_path)
    assert second.guard.step == 13
    whole = Process(tmp_path.with_name("whole")).go(40).close()
    assert equal(second.go(40).close().weights, whole.weights)


def test_a_signal_asks_for_a_checkpoint(tmp_path: Path) -> None:
    rules = policy(SKIP, every="1000 steps", disk={"every": "1000 steps", "signal": "SIGUSR1"})
    before = signal.getsignal(signal.SIGUSR1)
    process = Process(tmp_path, rules)
    process.guard.files.requested = lambda: True  # type: ignore[method-assign]  # whatever the time
    process.go(20, term=9, number=signal.SIGUSR1)
    process.close()
    assert [c.manifest.step for c in manifest.listing(tmp_path / "checkpoints").checkpoints] == [10]
    assert signal.getsignal(signal.SIGUSR1) == before
    assert "request" in kinds(tmp_path)


TROUBLE = {
    "full": ("write", OSError(errno.ENOSPC, "No space left on device")),
    "read-only": ("open", OSError(errno.EROFS, "Read-only file system")),
    "broken": ("fsync", OSError(errno.EIO, "Input/output error")),
}


@pytest.mark.parametrize("what", TROUBLE)
def test_a_disk_that_fails_never_stops_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    name, error = TROUBLE[what]
    healthy = Process(tmp_path / "healthy").go(30).close()
    process = Process(tmp_path / "run")
    store = process.guard.boundary.durable.store  # type: ignore[union-attr]
    real = getattr(os, name)

    def failing(*arguments: Any, **more: Any) -> Any:
        if threading.current_thread() is store._thread:
            raise error
        return real(*arguments, **more)

    monkeypatch.setattr(os, name, failing)
    monkeypatch.setattr(os, "fsync", failing if name == "fsync" else os.fsync)
    process.go(30).close()
    assert equal(process.weights, healthy.weights)
    if process.guard.incidents:  # a file may be written without this very call
        (incident,) = process.guard.incidents
        assert incident.detector == "checkpoint_failed"
        assert "training goes on" in incident.evidence["detection"]["message"]


def test_a_checkpoint_that_cannot_be_packed_is_no_reason_to_let_go(tmp_path: Path) -> None:
    process = Process(tmp_path)
    durable = process.guard.boundary.durable
    assert durable is not None
    real, calls = durable._portable, []

    def packs_only_later(snapshot: Any) -> Any:
        calls.append(snapshot.step)
        if len(calls) < 3:
            raise RuntimeError("no such thing")
        return real(snapshot)

    durable._portable = packs_only_later  # type: ignore[method-assign]
    process.go(60, nan=(40,)).close()
    assert [i.detector for i in process.guard.incidents] == ["checkpoint_failed", "non_finite"]
    assert manifest.listing(tmp_path / "checkpoints").checkpoints


def test_a_folder_that_vanishes_and_comes_back(tmp_path: Path) -> None:
    process = Process(tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    durable = process.guard.boundary.durable
    assert durable is not None
    for x, y in process.guard.batches(batch, steps=60):
        if process.guard.step == 12:
            assert durable.store.wait(30)
            folder.rename(tmp_path / "elsewhere")
        if process.guard.step == 30:
            assert durable.store.wait(30)
            (tmp_path / "elsewhere").rename(folder)
        process.optimizer.zero_grad()
        process.guard.backward(F.cross_entropy(process.model(x), y))
        process.optimizer.step()
    process.close()
    assert process.guard.step == 60
    assert [i.detector for i in process.guard.incidents] == ["checkpoint_failed"]
    assert max(c.manifest.step for c in manifest.listing(folder).checkpoints) > 30


def killed(folder: Path, kills: int, kind: str) -> dict[str, Any]:
    program = Path(__file__).with_name("_killed.py")
    done = subprocess.run(
        [sys.executable, program, folder, str(kills), "0", kind],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_kill_9_at_some_moments(tmp_path: Path) -> None:
    found = killed(tmp_path, 6, "accumulated")
    assert found["wrong"] == []
    assert found["resumed"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["accumulated", "plain", "epochs"])
def test_kill_9_at_a_hundred_moments(tmp_path: Path, kind: str) -> None:
    found = killed(tmp_path, 100, kind)
    assert found["wrong"] == []
    assert found["resumed"] > 50


def test_a_stopped_run_goes_on_once_a_person_lets_it(tmp_path: Path) -> None:
    rules = policy({"name": "stop", "trigger": {"type": "non_finite"}, "actions": [{"type": "stop"}]})
    first = Process(tmp_path, rules)
    with pytest.raises(guard.TrainingStopped):
        first.go(40, nan=(23,))
    first.close()
    with pytest.raises(RunDirError, match=r"has stopped; `guard resume .*` lets it go on"):
        Process(tmp_path, rules)
    with adding(tmp_path, SystemClock()) as (log, write):
        write("reopened", author="ada")
        assert log.finished is not None
        assert log.finished["status"] == "reopened"
    again = Process(tmp_path, rules)
    assert again.guard.resumed_from is not None
    assert again.go(40).close().guard.step == 40
    journal = read_journal(tmp_path)
    assert [e["seq"] for e in journal] == list(range(len(journal)))
    assert [e["status"] for e in journal if e["kind"] == "run_finished"] == ["stopped", "finished"]
