"""`guard run` and what it supervises, killed in any moment: real processes, started again as systemd would."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guard.incidents import IncidentLog, read_journal
from guard.process import started

PROGRAMS = Path(__file__).with_name("programs.py")
_LIMIT = 200  # [s] for all of it


class Unit:
    """`guard run` of a paced run, in a folder; its output goes to a file, as under systemd."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.until = folder, time.monotonic() + _LIMIT
        self.command = [sys.executable, "-m", "guard", "run", "--", sys.executable, str(PROGRAMS), "paced", str(folder)]
        self.command += options
        self.environment = {
            **os.environ,
            "GUARD_RUN_DIR": str(folder / "run"),
            "GUARD_LOCAL_STATE": str(folder / "state"),
        }
        self.start()

    def start(self) -> None:
        with (self.folder / "out").open("ab") as out:
            self.process = subprocess.Popen(self.command, env=self.environment, stdout=out, stderr=out)

    def said(self) -> str:
        return (self.folder / "out").read_text()

    def until_true(self, true) -> None:
        while not true():
            assert time.monotonic() < self.until, self.said()
            time.sleep(0.02)

    def training(self) -> int:
        """Its pid if it lives, or 0."""
        try:
            pid = int((self.folder / "pid").read_text())
        except (OSError, ValueError):
            return 0
        return pid if started(pid) else 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill_training(self) -> None:
        pid = self.training()
        os.kill(pid, signal.SIGKILL)
        self.until_true(lambda: not started(pid))

    def wait(self) -> int:
        return self.process.wait(max(1.0, self.until - time.monotonic()))

    def crashes(self) -> int:
        """As often as the journal says; which has no gap, and comes to the last step."""
        entries = read_journal(self.folder / "run")
        assert [e["seq"] for e in entries] == list(range(len(entries)))
        log = IncidentLog(entries)
        assert log.finished["status"] == "finished", self.said()
        assert not (self.folder / "second").exists(), "two processes were at work in one moment"
        assert not list((self.folder / "state").rglob("*.json"))
        mine = [i for i in log.incidents.values() if i.policy == "supervisor"]
        assert {i.detector for i in mine} <= {"crash"}
        return sum(i.count for i in mine)


@pytest.fixture
def little_memory():
    """A control group of our own with a limit; its `cgroup.procs`."""
    name, limit = f"guard-test-{os.getpid()}", str(200 << 20)
    second = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    group = Path("/sys/fs/cgroup", *([] if second else ["memory"]), name)
    try:
        group.mkdir()
        (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(limit)
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"this machine lets nobody make a control group with a limit of memory: {error}")
    yield group / "cgroup.procs"
    group.rmdir()


@pytest.fixture
def unit(tmp_path):
    units = []

    def make(*options: str) -> Unit:
        units.append(Unit(tmp_path, *options))
        return units[-1]

    yield make
    for one in units:
        one.process.kill()
        one.process.wait()
        if pid := one.training():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(_LIMIT + 60)
def test_guard_run_is_killed_and_the_next_one_goes_on_with_the_same_process(unit):
    one = unit("steps=120")
    one.until_true(lambda: "step 12\n" in one.said())
    pid = one.training()
    one.kill()
    one.start()
    one.until_true(lambda: f"process {pid} was not" in one.said())
    assert one.training() == pid
    one.until_true(lambda: "step 40\n" in one.said())
    refused = subprocess.run(one.command, env=one.environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert f"supervised by another guard run (pid {one.process.pid})" in refused.stderr
    one.kill_training()
    assert one.wait() == 0, one.said()
    assert one.crashes() == 1
    assert one.training() != pid
    said = one.said()
    assert [n for n in range(1, 121) if f"step {n}\n" not in said] == [], "all that was printed was passed on"
    assert said.count("exit code not known; it is started again") == 1


@pytest.mark.slow
@pytest.mark.timeout(_LIMIT + 60)
@pytest.mark.parametrize("seed", range(6))
def test_killed_in_any_moment_in_any_order(unit, seed):
    """Five times each: with the training, with guard run, or both at once."""
    rng, one, kills = random.Random(seed), unit("steps=200"), 0
    one.until_true((one.folder / "run" / "heartbeat.0").exists)
    for what in rng.choices(["training", "guard run", "both"], k=5):
        time.sleep(rng.uniform(0.0, 2.5))
        if what != "training":
            one.kill()
        if what == "training":
            one.until_true(lambda: one.training() or one.process.poll() is not None)
        if what != "guard run" and one.training():
            one.kill_training()
            kills += 1
        if one.process.poll() is not None:
            one.start()
    code = one.wait()
    if code:
        assert "GIVEN UP" in one.said()
        return
    assert one.crashes() == kills
    assert "step 200\n" in one.said()


@pytest.mark.slow
def test_a_kill_for_lack_of_memory_is_told_as_one(little_memory, tmp_path):
    command = [sys.executable, "-m", "guard", "run", "--restarts", "0", "--", sys.executable, str(PROGRAMS), "hungry"]
    enter = f'echo $$ > {little_memory} && exec "$@"'
    environment = {**os.environ, "GUARD_RUN_DIR": str(tmp_path / "run")}
    done = subprocess.run(
        ["sh", "-c", enter, "sh", *command, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 137
    told = "the training process was killed (SIGKILL); the kernel killed a process of this job for lack of memory"
    assert told in done.stderr
    (crash,) = IncidentLog(read_journal(tmp_path / "run")).incidents.values()
    assert crash.cause == "the kernel killed a process of this job for lack of memory"
