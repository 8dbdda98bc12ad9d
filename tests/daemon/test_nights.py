"""Nights on which everything is killed: the training process, the daemon, and both, at random moments. Every incident
that was journaled reaches Slack once, and the run comes to its end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from notify.fake_slack import TOKEN, FakeSlack

from guard.clock import SystemClock
from guard.incidents import IncidentLog, read_journal, read_story
from guard.notify import Courier, story
from guard.policy import load
from guard.receivers import receiver_specs

PROGRAMS = Path(__file__).with_name("programs.py")
KILLS = int(os.environ.get("KILLS", "50"))
STEPS = int(os.environ.get("STEPS", "4000"))
_UNTIL_TOLD = 240.0  # [s]


class Night:
    """`guard run` with a training inside, and a daemon beside it that is started again as systemd would."""

    def __init__(self, folder: Path, slack: FakeSlack) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self.environment = {
            **os.environ,
            "GUARD_HOME": str(folder / "home"),
            "GUARD_LOCAL_STATE": str(folder / "local"),
            "SLACK_BOT_TOKEN": TOKEN,
            "SLACK_URL": slack.url,
            "STEPS": str(STEPS),
        }
        (folder / "daemon.yaml").write_text("version: 1\nlisten: off\n")
        self.daemons = 0
        how = ("--run-dir", str(self.run_dir), "--restarts", "20")
        self.run = self._start("run", *how, "--", sys.executable, str(PROGRAMS), "night", str(folder))
        self.daemon = self._daemon()

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            whole = [sys.executable, "-m", "guard", *command]
            return subprocess.Popen(whole, env=self.environment, stdout=log, stderr=log)

    def _daemon(self) -> subprocess.Popen[bytes]:
        self.daemons += 1
        return self._start("daemon", str(self.folder / "daemon.yaml"), "--state", str(self.folder / "state"))

    def kill(self, victim: str) -> None:
        if victim in ("training", "both") and (pid := self._training()) is not None:
            os.kill(pid, signal.SIGKILL)
        if victim in ("daemon", "both"):
            self.daemon.kill()
            self.daemon.wait()
            self.daemon = self._daemon()

    def _training(self) -> int | None:
        """The process that owns the run now."""
        try:
            pid = int(json.loads((self.run_dir / "owner.json").read_text())["pid"])
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if b"programs.py" in command and pid != self.run.pid else None

    def end(self) -> None:
        for process in (self.run, self.daemon):
            if process.poll() is None:
                process.terminate()
        for process in (self.run, self.daemon):
            process.wait(60)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_whatever_is_killed_every_incident_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(11)
    slack = FakeSlack(SystemClock()).start()
    night = Night(tmp_path, slack)
    try:
        kills = Counter[str]()
        while sum(kills.values()) < KILLS and night.run.poll() is None:
            _pause(dice.uniform(0.2, 6.0))
            victim = dice.choice(["training", "daemon", "both"])
            night.kill(victim)
            kills[victim] += 1
        code = night.run.wait(300)
        for name in ("SLACK_BOT_TOKEN", "SLACK_URL"):
            monkeypatch.setenv(name, night.environment[name])
        left = _wait_until_told(night.run_dir)
    finally:
        night.end()
        slack.stop()
    text = (tmp_path / "log").read_text("utf-8", "replace")
    entries = read_journal(night.run_dir)
    assert [e["seq"] for e in entries] == list(range(len(entries)))
    log = IncidentLog(read_story(night.run_dir))
    assert left == []
    assert log.finished is not None
    assert (log.finished["status"], log.finished["step"]) == ("finished", STEPS), text[-3000:]
    assert code in (0, 128 + signal.SIGKILL), "the latter if the last kill came after the end"
    keys = Counter(m["metadata"]["event_payload"]["key"] for m in slack.live)
    assert [key for key, n in keys.items() if n > 1] == []
    roots = {key.split("/")[1] for key in keys if key.endswith("/root")}
    told = story.groups(log)
    assert roots == set(told)
    assert {i.id for group in told.values() for i in (*group.again, *group.attached)} == set(log.incidents)
    print(f"\nkilled {dict(kills)}; {log.segments} lives, {night.daemons} daemons, {len(log.incidents)} incidents")
    print(f"{len(roots)} root messages, {len(slack.live) - len(roots)} replies, {len(slack.requests)} requests")


def _pause(seconds: float) -> None:
    """The moment is what is drawn here; nothing is waited for."""
    time.sleep(seconds)


def _wait_until_told(run_dir: Path) -> list[object]:
    """What is still untold when the time is up."""
    specs = receiver_specs(load(run_dir / "policy.yaml"))
    end = time.monotonic() + _UNTIL_TOLD
    while True:
        left = Courier(run_dir, specs, clock=SystemClock(), say=lambda _: None).pending()
        if not left or time.monotonic() > end:
            return list(left)
        time.sleep(0.5)
