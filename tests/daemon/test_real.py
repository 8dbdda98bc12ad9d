"""Real runs under a real supervisor, whose clock runs twenty times as fast between two lives."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from guard.clock import SystemClock
from guard.daemon.child import ChildProcess
from guard.daemon.supervise import Plan, Supervisor
from guard.incidents import IncidentLog, read_journal

PROGRAMS = Path(__file__).with_name("programs.py")


class Hasty(SystemClock):
    def monotonic(self) -> float:
        return time.monotonic() * 20

    def wait(self, event: threading.Event, timeout: float) -> bool:
        return event.wait(timeout / 20)


def supervise(folder: Path, *command: str, hang_timeout: float | None = None) -> tuple[int, list[str]]:
    said: list[str] = []
    supervisor = Supervisor(
        Plan(folder / "run", 3, hang_timeout),
        lambda token: ChildProcess(command, {**os.environ, "GUARD_RUN_DIR": str(folder / "run")}, token=token),
        clock=Hasty(),
        say=said.append,
        random=random.random,
    )
    return supervisor.run(), said


def journal(folder: Path) -> tuple[list[str], IncidentLog]:
    entries = read_journal(folder / "run")
    assert [e["seq"] for e in entries] == list(range(len(entries)))
    return [e["kind"] for e in entries if e["kind"] not in ("memory", "notice")], IncidentLog(entries)


def test_a_stopped_process_is_called_hung_and_started_again(tmp_path):
    code, said = supervise(tmp_path, sys.executable, str(PROGRAMS), "beats", str(tmp_path), hang_timeout=60.0)
    assert code == 0, said
    assert (tmp_path / "lives").read_bytes() == b".."
    kinds, log = journal(tmp_path)
    assert kinds == [
        "run_started",
        "incident_opened",
        "incident_evidence",
        "attempt",
        "run_started",
        "run_finished",
    ]
    (incident,) = log.incidents.values()
    assert (incident.detector, incident.opened_step, incident.evidence["phase"]) == ("hang", 3, "step")
    assert "stopped" in str(incident.evidence["stacks"])


@pytest.mark.parametrize("own", [(), ("own-run-dir",)])
def test_killed_started_again_and_stopped(tmp_path, own):
    command = (sys.executable, str(PROGRAMS), "trains", str(tmp_path), *own)
    code, said = supervise(tmp_path, *command)
    assert code == 76, said
    assert said[0].startswith("the training process was killed (SIGKILL)")
    assert said[-1] == "the run was stopped by its policy; it is not started again"
    kinds, log = journal(tmp_path)
    assert kinds.count("run_started") == 2
    assert kinds[:4] == ["run_started", "incident_opened", "incident_evidence", "attempt"]
    assert "resumed" in kinds
    assert log.finished["status"] == "stopped"
    crash, stop = log.incidents.values()
    assert (crash.detector, crash.status, stop.status) == ("crash", "ended", "stopped")


@pytest.mark.slow
def test_torchrun_as_the_command(tmp_path):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--master-port", "0")
    code, said = supervise(tmp_path, *torchrun, str(PROGRAMS), "trains", str(tmp_path))
    assert code == 76, said
    assert (tmp_path / "lives").read_bytes() == b".."
    assert said[0].startswith("the training process exited with code 1")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_once_and_the_code_is_the_commands(tmp_path, number):
    command = [sys.executable, "-m", "guard", "run", "--", sys.executable, str(PROGRAMS), "polite", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.read() == f"{number.name}\n"
        assert process.wait(timeout=60) == 5
